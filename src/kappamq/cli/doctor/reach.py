"""Reachability of name servers, and of every broker address that they return."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Iterable, Mapping, Sequence

from kappamq.cli.doctor.checks import Finding, bad, note, ok
from kappamq.cli.shared.output import counted
from kappamq.client.admin.standing import REMOVED, Standing, caution, standing
from kappamq.config import properties
from kappamq.config.shapes import CAUTION
from kappamq.errors import KappaError, NotConnected, NotUnderstood, for_code
from kappamq.net.channel import Channel, split_address
from kappamq.net.serving.exposure import ADVICE, exposure
from kappamq.protocol.bodies.all import ClusterInfo, TopicList, TopicRouteData
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetAllTopics, GetClusterInfo, GetRoute

TOPICS_MAX = 100  # routes to fetch; brokers without a topic among them are found through the cluster list
BROKERS_MAX = 200
TEMPLATE_TOPIC = "TBW102"
_ADVERTISE = "start the broker with brokerIP1 in broker.conf (or --advertise) set to an address that clients can reach"


async def check(nameservers: Sequence[str], timeout: float, tls: ssl.SSLContext | None = None) -> list[Finding]:
    """Check each name server and its brokers; with `tls`, as a TLS client."""
    found: list[Finding] = []
    for nameserver in nameservers:
        found += await check_nameserver(nameserver, timeout, tls)
    return found


async def check_nameserver(nameserver: str, timeout: float, tls: ssl.SSLContext | None = None) -> list[Finding]:
    what = f"name server {nameserver}"
    try:
        channel = await Channel.connect(nameserver, timeout=timeout, tls=tls)
    except NotUnderstood as error:
        return [bad(what, "the address answers, but not as expected", str(error))]
    except KappaError as error:
        advice = "is it running (`kappamq nameserver`, `kappamq up`), is the port right, does a firewall block it?"
        return [bad(what, str(error), advice)]
    try:
        brokers = await broker_addresses(channel, timeout)
    except NotUnderstood as error:
        return [bad(what, "the address answers, but not as expected", str(error))]
    except KappaError as error:
        advice = "is this really a name server? A broker listens on 10911"
        return [bad(what, f"connected, but: {error}", advice)]
    finally:
        channel.close()
    if not brokers:
        return [
            ok(what, "answers"),
            bad(
                "brokers",
                f"no broker is registered with {nameserver}",
                f"start one (`kappamq broker -n {nameserver}`); a running broker registers every 30 s and logs "
                "why it cannot",
            ),
        ]
    found = [ok(what, f"answers and knows {counted(len(brokers), 'broker address')}"), *check_masters(brokers)]
    members: dict[tuple[str, str], Standing] = {}
    for (name, broker_id), address in sorted(brokers.items())[:BROKERS_MAX]:
        found += await check_broker(name, broker_id, address, nameserver, timeout, tls, members)
    return found + check_groups(members)


def check_groups(members: Mapping[tuple[str, str], Standing]) -> list[Finding]:
    """Report Raft groups that cannot lose a voter, and brokers that run without being members. `members`: by group and address."""
    found = []
    for (group, _), leader in sorted(members.items()):
        if not leader.leads:
            continue
        if (text := caution(leader.voters)) is not None:
            found.append(note(f"group {group}", text, "add members, one at a time: `kappamq member add`"))
        found += [
            bad(
                f"broker {group} ({other.member})",
                f"{address} runs, but is no member of its group: it gets no new messages",
                f"stop it, or take it in again: `kappamq member add {group} {other.member} HOST:PORT`",
            )
            for (name, address), other in sorted(members.items())
            if name == group and leader.of(other.member) == REMOVED
        ]
    return found


async def broker_addresses(channel: Channel, timeout: float) -> dict[tuple[str, int], str]:
    """Return (broker name, id) -> address as returned to clients: by route, else by the cluster list."""

    async def ask(header: Header) -> bytes:
        answer = await channel.request(header, timeout=timeout)
        if answer.code != 0:
            raise for_code(answer.code, answer.remark)
        return answer.body

    cluster = ClusterInfo.decode(await ask(GetClusterInfo()))
    found = {
        (name, number): where for name, data in cluster.brokers.items() for number, where in data.addresses.items()
    }
    topics = TopicList.decode(await ask(GetAllTopics())).topics
    for topic in [TEMPLATE_TOPIC, *sorted(topics)[:TOPICS_MAX]]:
        try:
            route = TopicRouteData.decode(await ask(GetRoute(topic=topic)))
        except NotConnected:
            raise
        except KappaError:
            continue  # deleted in between, or no template topic: not a problem
        for broker in route.brokers:
            found |= {(broker.broker_name, number): where for number, where in broker.addresses.items()}
    return found


async def check_broker(
    name: str,
    broker_id: int,
    address: str,
    nameserver: str,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    members: dict[tuple[str, str], Standing] | None = None,
) -> list[Finding]:
    """`members` is filled with what this broker reports about its Raft group, by name and address."""
    role = "master" if broker_id == 0 else f"slave {broker_id}"
    what = f"broker {name} ({role})"
    try:
        host, port = split_address(address)
    except KappaError as error:
        return [bad(what, str(error), "the broker registered an invalid address: set brokerIP1 (--advertise)")]
    failure = await connect_failure(host, port, timeout)
    if failure is not None:
        return [bad(what, f"{address} cannot be reached from here: {failure}", why_unreachable(host, nameserver))]
    if tls is not None:
        try:
            (await Channel.connect(address, timeout=timeout, tls=tls)).close()
        except KappaError as error:
            advice = "give the broker a certificate that this client trusts, or trust its CA here with --tls-ca"
            return [bad(what, str(error), advice)]
    try:
        about, settings = await ask_broker(address, timeout, tls)
    except KappaError as error:
        advice = f"if another program listens there, {_ADVERTISE}; if it is the broker, check its log"
        return [bad(what, f"{address} accepts connections, but does not answer as a broker: {error}", advice)]
    answers_as = settings.get("brokerName", name)
    if answers_as != name:
        return [bad(what, f"another broker, {answers_as}, answers at {address}", f"{_ADVERTISE}, each broker its own")]
    if members is not None and (own := standing(about)) is not None:
        members[name, address] = own
    own_words = check_own_words(what, about, settings)
    fast = await connect_failure(host, port - 2, timeout)
    if fast is not None:
        return [
            note(
                what,
                f"{address} answers, but not its second port {port - 2}: {fast}",
                "clients with the VIP channel enabled and slaves need it: open it in the firewall",
            ),
            *own_words,
        ]
    return [ok(what, f"{address} and port {port - 2} can be reached"), *own_words]


async def ask_broker(
    address: str, timeout: float, tls: ssl.SSLContext | None
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return a broker's runtime information and settings; empty if it refuses both. Raises KappaError if it is not a broker."""
    channel = await Channel.connect(address, timeout=timeout, tls=tls)
    try:
        runtime = await channel.request(GetBrokerRuntimeInfo(), timeout=timeout)
        if runtime.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise for_code(runtime.code, runtime.remark)  # perhaps a name server; a broker may also refuse
        config = await channel.request(GetBrokerConfig(), timeout=timeout)
        about = KVTable.decode(runtime.body).table if runtime.code == 0 else {}
        return about, properties.parse_bytes(config.body) if config.code == 0 else {}
    finally:
        channel.close()


def check_own_words(what: str, about: Mapping[str, str], settings: Mapping[str, str]) -> list[Finding]:
    """Return the relevant findings in the runtime information of one of our brokers; none for others."""
    if "kappamqKernel" not in about:
        return []
    found: list[Finding] = []
    exposed = exposure(settings.get("bindAddress", "127.0.0.1"))
    if exposed is not None:
        found.append(note(what, exposed, ADVICE))
    turns = int(about.get("kappamqLongTurns", "0"))
    if turns:
        longest = about.get("kappamqLongestTurnMs", "?")
        found.append(
            note(
                what,
                f"its event loop was blocked {counted(turns, 'time')} for more than 100 ms since its start, at most {longest} ms",
                "its log names the slowest request, if a request was the cause; else the machine is busy or its disk slow",
            )
        )
    return found + check_copies(what, about) + check_wall_clock(what, about) + check_damage(what, about)


def check_copies(what: str, about: Mapping[str, str]) -> list[Finding]:
    """Report what a broker warns about at its start regarding the configuration of its copies."""
    cautions = [text for name, text in sorted(about.items()) if name.startswith(CAUTION)]
    found = [note(f"{what}: copies", *text.split("; ", 1)) for text in cautions if "; " in text]
    missing = about.get("kappamqCopiesMissing", "nothing")
    if missing != "nothing":
        advice = "start the slaves and check their logs; until then senders hear code 11"
        found.append(bad(f"{what}: copies", missing, advice))
    return found


def check_masters(brokers: Iterable[tuple[str, int]]) -> list[Finding]:
    """Report each broker name of which only slaves are registered."""
    ids: dict[str, set[int]] = {}
    for name, broker_id in brokers:
        ids.setdefault(name, set()).add(broker_id)
    return [
        bad(
            f"broker {name}",
            f"has no master: only {'slave' if len(found) == 1 else 'slaves'} {', '.join(map(str, sorted(found)))} registered, "
            "so nothing can be sent to it",
            "start its master (brokerId=0), see why it does not register in its log, or make a slave the master",
        )
        for name, found in sorted(ids.items())
        if 0 not in found
    ]


def check_wall_clock(what: str, about: Mapping[str, str]) -> list[Finding]:
    """Report problems of a broker's wall clock; nothing if there are none."""
    state, jumps = about.get("kappamqClock", "ok"), about.get("kappamqClockJumps", "0 ")
    if state == "ok" and jumps.startswith("0 "):
        return []
    return [
        note(
            what,
            f"its wall clock: {state}; number of times it was set: {jumps}",
            "timers and retention follow the wall clock: check the time synchronisation there (chronyc tracking, timedatectl)",
        )
    ]


def check_damage(what: str, about: Mapping[str, str]) -> list[Finding]:
    """Report damage that a broker has found; nothing if there is none."""
    count, repaired, lost = (
        int(about.get(name, "0")) for name in ("kappamqDamageFound", "kappamqDamageRepaired", "kappamqUnreadableBytes")
    )
    if not count:
        return []
    text = f"{counted(count, 'place')} found damaged since its start, {repaired} repaired, {counted(lost, 'byte')} unreadable"
    advice = "see its log. Check the disk (smartctl, dmesg), run `kappamq store verify`, restore damaged log files from a backup"
    return [(note if repaired == count else bad)(f"{what}: damage", text, advice)]


async def connect_failure(host: str, port: int, timeout: float) -> str | None:
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return None


def why_unreachable(host: str, nameserver: str) -> str:
    """Return the usual reasons, by the kind of address the broker registered."""
    fix = _ADVERTISE
    try:
        broker_ip = ipaddress.ip_address(host)
    except ValueError:
        return f"the name must resolve from here to the broker's machine; else {fix}"
    nameserver_host = nameserver.rpartition(":")[0].strip("[]")
    if broker_ip.is_loopback and nameserver_host not in ("localhost", "127.0.0.1", "::1"):
        return f"it is a loopback address, valid only on the broker's own machine: {fix}"
    if broker_ip in ipaddress.ip_network("172.16.0.0/12") or broker_ip.is_link_local:
        return f"it looks like an address inside a container or a private link: {fix}, and publish port and port-2"
    return f"is the broker running, and does a firewall let the port through? If the address is valid only on another network: {fix}"

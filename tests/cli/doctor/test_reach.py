from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kappamq.cli.doctor import reach
from kappamq.cli.doctor.checks import Health
from kappamq.client.admin.standing import Standing
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.config.shapes import CAUTION, cautions
from kappamq.event_loop import run
from kappamq.local import Local, LocalThread
from tests.cli.conftest import SMALL


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_broker_that_is_not_there() -> None:
    (finding,) = run(reach.check_broker("b", 0, f"127.0.0.1:{free_port()}", "127.0.0.1:9876", 1.0))
    assert finding.health is Health.BAD
    assert "cannot be reached from here" in finding.text
    assert "firewall" in finding.advice


def test_an_address_nobody_can_use() -> None:
    (finding,) = run(reach.check_broker("b", 1, "nonsense", "127.0.0.1:9876", 1.0))
    assert finding.health is Health.BAD
    assert "--advertise" in finding.advice


def test_the_second_port_is_missed(cluster: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(cluster.broker.rpartition(":")[2])
    real = reach.connect_failure

    async def closed(host: str, asked: int, timeout: float) -> str | None:
        return "refused" if asked == port - 2 else await real(host, asked, timeout)

    monkeypatch.setattr(reach, "connect_failure", closed)
    finding, *_of_itself = run(reach.check_broker(name_of(cluster), 0, cluster.broker, cluster.nameserver, 10.0))
    assert finding.health is Health.NOTE
    assert "VIP" in finding.advice


def name_of(local: Local) -> str:
    return local.running_broker.config.name


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens_at_the_address_of_a_broker(answer: bytes | None) -> None:
    """It hangs up, says nothing, or speaks another language: no client gets anywhere with it."""

    async def main() -> list[reach.Finding]:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answer:
                writer.write(answer)
            if answer is not None:
                await ended.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            try:
                return await reach.check_broker("b", 0, f"127.0.0.1:{port}", "127.0.0.1:9876", 1.0)
            finally:
                ended.set()

    (finding,) = run(main())
    assert finding.health is Health.BAD
    assert "does not answer as a broker" in finding.text
    assert "--advertise" in finding.advice


def test_a_name_server_or_another_broker_at_the_address_of_a_broker(cluster: Local) -> None:
    (finding,) = run(reach.check_broker("b", 0, cluster.nameserver, cluster.nameserver, 10.0))
    assert finding.health is Health.BAD
    assert "does not answer as a broker" in finding.text
    (finding,) = run(reach.check_broker("somebody", 0, cluster.broker, cluster.nameserver, 10.0))
    assert finding.health is Health.BAD
    assert f"another broker, {name_of(cluster)}, answers at" in finding.text


@pytest.mark.parametrize(
    ("host", "nameserver", "text"),
    [
        ("127.0.0.1", "10.0.0.5:9876", "loopback"),
        ("172.17.0.2", "10.0.0.5:9876", "container"),
        ("10.0.0.9", "10.0.0.5:9876", "firewall"),
        ("broker.internal", "10.0.0.5:9876", "resolve"),
    ],
)
def test_the_usual_reasons(host: str, nameserver: str, text: str) -> None:
    advice = reach.why_unreachable(host, nameserver)
    assert text in advice
    assert "--advertise" in advice


def test_not_a_name_server(cluster: Local) -> None:
    found = run(reach.check([cluster.broker], 1.0))
    assert found[0].health is Health.BAD
    assert "really a name server" in found[0].advice


def test_everything_is_reached(cluster: Local) -> None:
    found = run(reach.check([cluster.nameserver], 1.0))
    # What the broker says of itself comes behind: other tests have damaged messages of this one, or kept it busy.
    assert [finding.health for finding in found[:2]] == [Health.OK, Health.OK]
    assert all("reached" not in finding.text for finding in found[2:])


def test_a_broker_whose_wall_clock_was_set() -> None:
    """It says so itself; the doctor passes it on."""

    def look(about: dict[str, str]) -> list[reach.Finding]:
        return reach.check_wall_clock("broker b", about)

    assert look({"kappamqClock": "ok", "kappamqClockJumps": "0 since the start, 3 in this store"}) == []
    assert look({}) == []
    (finding,) = look({"kappamqClock": "ok", "kappamqClockJumps": "2 since the start, 2 in this store"})
    assert finding.health is Health.NOTE
    assert "2 since the start" in finding.text
    (finding,) = look({"kappamqClock": "stands still"})
    assert "stands still" in finding.text


def test_a_broker_tells_who_can_reach_it_and_how_often_its_loop_was_late(tmp_path: Path) -> None:
    async def main(host: str, long_turns: int) -> list[reach.Finding]:
        small = {"mappedFileSizeCommitLog": "1048576", "store.message_bytes_max": "65536"}
        local = Local.at(tmp_path / host, nameserver_port=0, broker_port=0, host=host, properties=small)
        async with local:
            watch = local.running_broker.bursts.reader.watch
            watch.long_turns, watch.longest_turn_s = long_turns, 0.3
            return await reach.check_broker(name_of(local), 0, local.broker, local.nameserver, 10.0)

    found = run(main("0.0.0.0", 4))
    texts = [finding.text for finding in found if finding.health is Health.NOTE]
    assert any("all addresses" in text and "without authentication" in text for text in texts)
    assert any("more than 100 ms" in text for text in texts)
    found = run(main("127.0.0.1", 0))
    assert not any("without authentication" in finding.text for finding in found)


@pytest.mark.parametrize(("repaired", "health"), [(3, Health.NOTE), (2, Health.BAD)])
def test_damage_that_a_broker_has_found_is_told(repaired: int, health: Health) -> None:
    counts = {"kappamqDamageFound": "3", "kappamqDamageRepaired": str(repaired), "kappamqUnreadableBytes": "4096"}
    (finding,) = reach.check_damage("broker b", counts)
    assert finding.health is health
    assert f"3 places found damaged since its start, {repaired} repaired, 4096 bytes unreadable" in finding.text
    assert "store verify" in finding.advice
    assert reach.check_damage("broker b", {}) == []


def test_what_a_broker_says_of_itself_is_told(cluster: Local) -> None:
    broker = cluster.running_broker
    broker.damage.found += 3
    try:
        found = reach.check_own_words("broker b", *run(reach.ask_broker(broker.address, 10.0, None)))
    finally:
        broker.damage.found -= 3
    assert any("found damaged since its start" in finding.text for finding in found)


def test_what_a_broker_warns_of_about_its_copies_is_told_again() -> None:
    said = cautions(BrokerConfig(), CopiesConfig(role=SYNC_MASTER, in_sync=1))
    assert len(said) == 2
    about = {"kappamqKernel": "native", **{f"{CAUTION}{caution.name}": str(caution) for caution in said}}
    found = reach.check_own_words("broker b", about, {})
    assert {(one.text, one.advice) for one in found} == {(caution.text, caution.advice) for caution in said}
    assert {one.health for one in found} == {Health.NOTE}


def test_a_running_broker_tells_its_cautions(tmp_path: Path) -> None:
    properties = {**SMALL, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}
    with LocalThread(Local.at(tmp_path, nameserver_port=0, broker_port=0, properties=properties)) as local:
        found = run(reach.check_broker("broker-a", 0, local.broker, local.nameserver, 10.0))
    assert [one.text for one in found if "inSyncReplicas=1 waits for no slave" in one.text]


def test_slaves_without_a_master() -> None:
    assert reach.check_masters([("a", 0), ("a", 1), ("b", 0)]) == []
    (finding,) = reach.check_masters([("a", 0), ("b", 2), ("b", 1)])
    assert (finding.what, finding.health) == ("broker b", Health.BAD)
    assert "only slaves 1, 2 registered" in finding.text


def test_groups_that_have_lost_members() -> None:
    leader = Standing("n0", True, ("n0", "n1"), ("n3",))
    others = {
        ("a", "h:2"): Standing("n1", False, ("n0", "n1"), ()),
        ("a", "h:3"): Standing("n2", False, ("n0", "n1", "n2"), ()),
        ("a", "h:4"): Standing("n3", False, (), ()),
    }
    few, removed = reach.check_groups({("a", "h:1"): leader, **others})
    assert (few.health, few.what, few.text) == ("note", "group a", "2 voters (n0, n1): the loss of one stops the group")
    assert (removed.health, removed.what) == ("bad", "broker a (n2)")
    assert "h:3 runs, but is no member" in removed.text
    assert reach.check_groups(others) == [], "without a leader nobody can say"

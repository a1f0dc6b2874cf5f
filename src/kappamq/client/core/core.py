"""Shared by the producers, consumers and admins of a process: connections, routes, heartbeats, client id.

There is one core per event loop and name server list, reference-counted and closed with its last user. A second consumer
of the same group needs a client id of its own, so it gets a core of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from kappamq.client.core import pauses, registry, speed
from kappamq.client.core.channels import Channels
from kappamq.client.core.nameservers import NameServers
from kappamq.client.core.patience import Patience
from kappamq.client.core.routes import MASTER_ID, Route, Routes
from kappamq.client.core.settings import tls_context
from kappamq.client.producer.checks import Checks
from kappamq.client.producer.requests import Requests
from kappamq.client.pulling.damage import DamageReports
from kappamq.clock import Clock, SystemClock
from kappamq.config.client import ClientConfig
from kappamq.errors import ClientClosed, ClientError, GoingAway, KappaError, MaybeStored, NotConnected, for_code
from kappamq.message import MessageQueue
from kappamq.net.channel import Channel, split_address
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from kappamq.protocol.bodies.topics import TopicRouteData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import HeartBeat, NotifyConsumersChanged, UnregisterClient
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetRoute

log = logging.getLogger(__name__)

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
MOMENT_S: Final = 0.001
"""The shortest timeout of a request, so that a late one fails with a text about it."""
HEADLESS_S: Final = 1.0
"""How often the routes of topics are refreshed that have a broker without a master."""
GOODBYE_S: Final = 1.0
"""How long closing waits for brokers to unregister this client."""


class Member(Protocol):
    """A consumer, as seen by the core."""

    group: str

    def heartbeat(self) -> ConsumerData: ...

    def group_changed(self) -> None:
        """Called when another member joined or left."""

    def look_again(self) -> None:
        """Called when there may be new queues to read."""

    def serve(self, frame: Frame) -> Frame | Awaitable[Frame] | None:
        """Answer a broker's request for this group; None if it is not supported."""


class ClientCore:
    """Created by `acquire`, returned by `release`. Bound to the event loop that created it."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None, *, lasting_id: bool = False) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.client_id = _client_id(config, lasting=lasting_id)
        self.users = 0
        tls = tls_context(config)
        seconds = config.connect_timeout_ms / 1000
        self._nameserver_channels = Channels(connect_timeout=seconds, pending_max=config.inflight_max, tls=tls)
        self.brokers = Channels(
            connect_timeout=seconds,
            pending_max=config.inflight_max,
            tls=tls,
            on_request=self._serve,
            on_open=self._greet,
            on_lost=self._broker_lost,
            role="broker",
        )
        self.request_timeout = config.request_timeout_ms / 1000
        self.nameservers = NameServers(config.nameservers, self._nameserver_channels, self.request_timeout)
        self.routes = Routes(
            self._ask_route,
            default_topic=config.default_topic,
            default_queues=config.default_topic_queues,
            now=self.clock.liveness,
            nameservers=", ".join(config.nameservers),
            any_broker=self.nameservers.know_a_broker,
        )
        self.requests = Requests(self.clock)
        self.checks = Checks()
        self.damage = DamageReports()
        self._producers: Counter[str] = Counter()
        self._members: dict[str, Member] = {}
        self._remarks: dict[str, str | None] = {}  # the last remark of each broker on our heartbeats
        self._tasks: list[asyncio.Task[None]] = []
        self._telling: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        registry.add(self)
        speed.tell()
        self._tasks = [
            asyncio.create_task(every(self.config.route_poll_ms / 1000, self.routes.refresh_all, "route refresh")),
            asyncio.create_task(every(HEADLESS_S, self.routes.refresh_headless, "looking for new masters")),
            asyncio.create_task(every(self.config.heartbeat_ms / 1000, self.heartbeat, "heartbeat")),
        ]

    async def close(self) -> None:
        self._closed = True
        registry.remove(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.brokers.close()
        await self._nameserver_channels.close()

    def later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        """Call a function after a pause, which ends earlier if a test advances the clock."""
        pauses.later(self.clock, seconds, call, *args)

    # --- for the testing kit, which waits until all clients are idle ---

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def questions_out(self) -> int:
        """How many requests are pending at this client or its brokers, without long polls. May be read from any thread."""
        return self.brokers.unanswered + self._nameserver_channels.unanswered + self.checks.unanswered

    async def look_again(self) -> None:
        """Refresh all routes and rebalance now instead of at the next interval."""
        await self.routes.refresh_all()
        for member in self.members:
            member.look_again()

    # --- requests ---

    async def ask(
        self,
        address: str,
        header: Header,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: Collection[int] = SUCCESS,
        code: int | None = None,
        again: bool = True,
    ) -> Frame:
        """Send a request to a broker. Raises the error class of any response code not in `accept`.

        `again`: the request is idempotent, and is repeated if the connection is dead or the broker is shutting down.
        """
        if self._closed:
            raise ClientClosed("this client is closed: create a new one")
        limit = self.request_timeout if timeout is None else timeout
        answer = await self.brokers.request(address, header, body, limit, code=code, again=again)
        if answer.code == GoingAway.code:
            self.brokers.drop(address)
        if answer.code == GoingAway.code and again:
            answer = await self.brokers.request(address, header, body, limit, code=code)
        if answer.code not in accept:
            raise for_code(answer.code, answer.remark)
        return answer

    async def ask_queue(
        self,
        queue: MessageQueue,
        header: Header,
        *,
        timeout: float | None = None,
        accept: Collection[int] = SUCCESS,
        broker_id: int = MASTER_ID,
        code: int | None = None,
        again: bool = True,
    ) -> Frame:
        """Send a request to the broker of `queue`; `again`: if it cannot be reached, refresh the route and try once more."""
        address = (await self.routes.find(queue.topic)).reader(queue.broker, broker_id)
        try:
            return await self.ask(address, header, timeout=timeout, accept=accept, code=code, again=again)
        except NotConnected:
            if not again:
                raise
            route = await self.routes.refresh(queue.topic)
            if route is None or route.reader(queue.broker, broker_id) == address:
                raise
        address = route.reader(queue.broker, broker_id)
        return await self.ask(address, header, timeout=timeout, accept=accept, code=code)

    async def ask_master(
        self,
        topic: str,
        broker: str,
        header: Header,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: Collection[int] = SUCCESS,
        again: bool = True,
        patient: bool = True,
    ) -> Frame:
        """Send a request to the master of `broker`, wherever it is by then.

        `again`: the request may be executed twice, so it is repeated even if the connection was lost before the answer.
        `patient`: wait for a master, within the timeout. Raises the error of the last try."""
        limit = self.request_timeout if timeout is None else timeout
        now = self.clock.liveness
        deadline = now() + limit
        patience = Patience(self.routes, topic, now, deadline if patient else None)
        while True:
            address, sent = None, False
            try:
                address = await self.routes.find_master(topic, broker)
                await self.brokers.get(address, max(MOMENT_S, deadline - now()))
                sent = True
                left = max(MOMENT_S, deadline - now())
                return await self.ask(address, header, body, timeout=left, accept=accept, again=again)
            except KappaError as error:
                ambiguous = sent and not again and isinstance(error, (ClientError, MaybeStored))
                if ambiguous or not await patience.after(error, broker, address):
                    raise

    def connection_to(self, queue: MessageQueue) -> int | None:
        """Return the number of the open connection to the master of `queue`, None if there is none.

        While it stays the same, the broker process is the same and has lost no state."""
        route = self.routes.cached(queue.topic)
        address = route.addresses.get(queue.broker, {}).get(MASTER_ID) if route is not None else None
        return self.brokers.number(address) if address is not None else None

    async def ask_nameserver(self, header: Header, body: bytes = b"") -> Frame:
        if self._closed:
            raise ClientClosed("this client is closed: create a new one")
        return await self.nameservers.request(header, body)

    def _broker_lost(self, address: str) -> None:
        self.routes.lost(address)

    async def _ask_route(self, topic: str) -> TopicRouteData:
        answer = await self.ask_nameserver(GetRoute(topic=topic, standard_json=True))
        return TopicRouteData.decode(answer.body)

    # --- users ---

    def add_producer(self, group: str) -> None:
        self._producers[group] += 1
        # New connections start with a heartbeat anyway, but brokers with open ones do not know this group yet.
        if self._producers[group] == 1 and self.brokers.open:
            self._telling = asyncio.create_task(self._tell(self.brokers.open))

    async def remove_producer(self, group: str) -> None:
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._say_goodbye(producer_group=group)

    def has_member(self, group: str) -> bool:
        return group in self._members

    def add_member(self, member: Member) -> None:
        assert member.group not in self._members, f"two consumers of {member.group} on one core"
        self._members[member.group] = member

    async def remove_member(self, member: Member) -> None:
        if self._members.get(member.group) is member:
            del self._members[member.group]
            await self._say_goodbye(consumer_group=member.group)

    async def _say_goodbye(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        # Brokers notice a closed connection, but this one may be shared, and other members wait for our queues.
        header = UnregisterClient(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        requests = [channel.request(header, timeout=GOODBYE_S) for channel in self.brokers.open]
        await asyncio.gather(*requests, return_exceptions=True)

    # --- heartbeats ---

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker of the known routes; those out of reach get one when we reconnect."""
        if not self._producers and not self._members:
            return
        addresses = {address for route in self.routes.known for address in self._partners(route)}
        results = await asyncio.gather(*(self._heartbeat_to(address) for address in addresses), return_exceptions=True)
        for address, result in zip(addresses, results, strict=True):
            if isinstance(result, KappaError):
                log.warning("could not send a heartbeat to broker %s: %s", address, result)

    async def heartbeat_to(self, channel: Channel) -> None:
        """Send a heartbeat to one broker. Raises the error of its answer."""
        body = HeartbeatData(
            client_id=self.client_id,
            producers=[ProducerData(group=group) for group in sorted(self._producers)],
            consumers=[member.heartbeat() for _, member in sorted(self._members.items())],
        ).encode()
        answer = await channel.request(HeartBeat(), body, timeout=self.request_timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark)
        if answer.remark != self._remarks.get(channel.address):
            # Our brokers report here what is wrong with a group: members with different subscriptions, or an unknown group.
            self._remarks[channel.address] = answer.remark
            if answer.remark:
                log.warning("broker %s reports a problem with our consumer groups: %s", channel.address, answer.remark)

    async def _tell(self, channels: list[Channel]) -> None:
        await asyncio.gather(*(self.heartbeat_to(channel) for channel in channels), return_exceptions=True)

    async def _heartbeat_to(self, address: str) -> None:
        await self.heartbeat_to(await self.brokers.get(address))

    def _partners(self, route: Route) -> list[str]:
        # Only consumers may be redirected to a slave, so only they need to be known there.
        known = route.addresses.values()
        if self._members:
            return [address for addresses in known for address in addresses.values()]
        return [addresses[MASTER_ID] for addresses in known if MASTER_ID in addresses]

    async def _greet(self, channel: Channel) -> None:
        if not self._producers and not self._members:
            return
        try:
            await self.heartbeat_to(channel)
        except ClientError:
            raise
        except KappaError as error:
            log.warning("broker %s refused our heartbeat: %s", channel.address, error)

    # --- requests from brokers ---

    def _serve(self, channel: Channel, frame: Frame) -> Frame | Awaitable[Frame | None] | None:
        if frame.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            member = self._members.get(NotifyConsumersChanged.decode(frame.ext).consumer_group)
            if member is not None:
                member.group_changed()
            return reply(frame)
        if frame.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.checks.serve(channel, frame)
            return reply(frame)
        if frame.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self.requests.serve(frame)
        group = frame.ext.get("consumerGroup") or frame.ext.get("group") or ""
        member = self._members.get(group)
        return member.serve(frame) if member is not None else None


async def every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Run `work` every `seconds`, for ever; a failure is logged, and it runs again next time."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except KappaError as error:
            log.warning("%s failed: %s", what, error)
        except Exception:
            log.exception("%s failed", what)


def _client_id(config: ClientConfig, *, lasting: bool = False) -> str:
    instance = config.instance
    if instance == "DEFAULT" and not lasting:
        instance = f"{os.getpid()}#{secrets.token_hex(6)}"
    unit = f"@{config.unit}" if config.unit else ""
    return f"{local_host(config.nameservers[0])}@{instance}{unit}"


def local_host(nameserver: str) -> str:
    """Return the address of this machine that faces the name server, or its host name if that is given by name.

    It is only informative: the random part of the id distinguishes clients. A DNS lookup could block for seconds.
    """
    host, port = split_address(nameserver)
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return socket.gethostname()


# --- sharing ---

_cores: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, ...], list[ClientCore]]] = WeakKeyDictionary()


def acquire(config: ClientConfig, *, consumer_group: str | None = None, lasting_id: bool = False) -> ClientCore:
    """Return a started core for `config` on the running loop, shared with equal configurations; `release` it when done.

    `consumer_group`: choose a core that has no consumer of this group yet. `lasting_id`: one whose client id is the same
    after a restart of the program.
    """
    key = (lasting_id, config)
    cores = _cores.setdefault(asyncio.get_running_loop(), {}).setdefault(key, [])
    for core in cores:
        if consumer_group is None or not core.has_member(consumer_group):
            break
    else:
        clock = config.clock or registry.lent_clock(config.nameservers)
        core = ClientCore(config, clock, lasting_id=lasting_id)
        core.start()
        cores.append(core)
    core.users += 1
    return core


async def release(core: ClientCore) -> None:
    core.users -= 1
    if core.users:
        return
    for cores in _cores.get(asyncio.get_running_loop(), {}).values():
        if core in cores:
            cores.remove(core)
    await core.close()

"""Registration with the name servers: everything at start and at intervals; a changed topic or role at once.

Each name server has its own task, so one that hangs does not delay the others. Each gets a beat every
second, and drops us after three without one: so a dead machine is out of the routes before its connections break.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kappamq.broker.events import MasterFound
from kappamq.broker.naming.address import Address
from kappamq.broker.naming.role_now import RoleNow
from kappamq.broker.upkeep.slices import Worker
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError, RequestTimeout
from kappamq.events import Events
from kappamq.net.channel import Channel
from kappamq.protocol import address
from kappamq.protocol.bodies.topics import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
)
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.nameserver import (
    BrokerHeartbeat,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)
from kappamq.state.events import SettingsChanged, TopicChanged
from kappamq.state.topics import Topics

log = logging.getLogger(__name__)

_CONNECT_S = 3.0
_START_S = 3.0
_OTHERS_S = 0.25  # once one name server knows us
_UNREGISTER_S = 3.0
_RETRY_S = 1.0
_TOLD_S = 0.5
BEAT_S: Final = 1.0
MISSED_MAX: Final = 3
"""After this many lost beats a name server considers us dead; after as many unanswered ones we consider it dead."""
_TIMEOUT_MS = round(MISSED_MAX * BEAT_S * 1000)
_SINGLES_MAX = 32
"""Up to this many changed topics are sent one by one. Never several in one table: a name server may take that for the whole table."""


class _NameServer:
    """One name server: a connection that is opened when needed, and kept; and the changes it does not know yet."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._tls = tls
        self._connecting = asyncio.Lock()
        self.channel: Channel | None = None
        self.registered = False  # it knows us, over the connection that we have
        self.role: tuple[int, int] | None = None  # id and version that it knows of
        self.takes_beats = True  # Apache's older ones do not
        self.missed = 0  # beats that it has not answered, one after the other
        self.tried = False
        self.late = False  # it did not answer in the time we have for it
        self.complained = False
        self.known_change = 0  # number of the last change that it knows of
        self.changed: dict[str, DataVersion] = {}  # topics it has not heard of, as of these versions, in their order
        self.all_due = True
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def connect(self) -> Channel:
        async with self._connecting:
            if self.channel is None or not self.channel.is_open:
                self.registered = False
                self.channel = await Channel.connect(
                    self.address, timeout=_CONNECT_S, tls=self._tls, on_closed=self._closed
                )
                self.takes_beats, self.missed = True, 0
            return self.channel

    def _closed(self, channel: Channel) -> None:
        if channel is self.channel:
            self.registered = False
            self.wake.set()

    @property
    def local_ip(self) -> str | None:
        """Our end of the connection to it; None if there is no connection."""
        if self.channel is None or not self.channel.is_open:
            return None
        return local_ip(self.channel)

    def is_waited_for(self, change: int) -> bool:
        return self.registered and not self.late and self.known_change < change


class Registration:
    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        address: Address,
        ha_port: int,
        worker: Worker,
        tls: ssl.SSLContext | None,
        role: RoleNow,
        events: Events,
    ) -> None:
        self._config = config
        self._role = role
        self._events = events
        self._master: MasterFound | None = None  # what was published last
        self._tls = tls
        self._topics = topics
        self._address = address
        self._ha_port = ha_port
        self._worker = worker
        self._servers = [_NameServer(address, tls) for address in config.nameservers]
        self._running = False
        self._leaving: list[asyncio.Task[None]] = []
        self._changes = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for name servers that know of a change
        self._answered = asyncio.Event()  # a name server knows us
        self._tried = asyncio.Event()  # all of them have been tried, successfully or not
        self._encoding = asyncio.Lock()
        # version, which has the term in it, and permission
        self._encoded: tuple[tuple[DataVersion, int], bytes] | None = None

    async def learn_address(self) -> None:
        """Find out under which ip name servers see us, as soon as one of them can be reached, if any can."""
        tries = {asyncio.create_task(server.connect()): server for server in self._servers}
        while tries:
            done, _ = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
            reached = False
            for task in done:
                server, error = tries.pop(task), task.exception()
                if error is None:
                    reached = True
                elif isinstance(error, KappaError | OSError):
                    log.warning("name server %s cannot be reached: %s", server.address, error)
                else:
                    raise error
            if reached:
                break
        for task in tries:
            task.cancel()
        self._address.learn(self.local_ip)

    @property
    def local_ip(self) -> str | None:
        """Our end of the first connection to a name server; one to another machine says more than loopback."""
        ips = [ip for server in self._servers if (ip := server.local_ip) is not None]
        outward = [ip for ip in ips if not address.is_loopback(ip)]
        return next(iter(outward + ips), None)

    async def start(self) -> None:
        """Returns when every name server knows us; but with those that hang or cannot be reached we go on later."""
        self._running = True
        for server in self._servers:
            server.task = asyncio.create_task(self._keep(server))
        self._look_who_waits()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                await self._answered.wait()
                async with asyncio.timeout(_OTHERS_S):
                    await self._tried.wait()

    def topic_has_changed(self, event: TopicChanged) -> None:
        self.topic_changed(event.topic)

    def topic_changed(self, topic: TopicConfig) -> None:
        """Register this topic soon."""
        self._changes += 1
        for server in self._servers:
            server.changed.pop(topic.name, None)
            server.changed[topic.name] = self._topics.version
            server.wake.set()

    def role_changed(self) -> None:
        """Register the role that we have now, at once."""
        self._changes += 1
        self._master = None
        for server in self._servers:
            server.wake.set()

    def settings_changed(self, event: SettingsChanged) -> None:
        if "broker.permission" in event.fields:
            self.all_changed()
        if "broker.nameservers" in event.fields:
            self.set_nameservers(self._config.nameservers)

    def all_changed(self) -> None:
        """Register everything soon: something that affects all topics has changed."""
        self._changes += 1
        for server in self._servers:
            server.all_due = True
            server.wake.set()

    def set_nameservers(self, addresses: Sequence[str]) -> None:
        """Register with these from now on. Unregisters from the name servers that are no longer listed; connections to the others stay."""
        known = {server.address: server for server in self._servers}
        self._servers = [
            known.pop(address) if address in known else _NameServer(address, self._tls)
            for address in dict.fromkeys(addresses)
        ]
        self._leaving = [task for task in self._leaving if not task.done()]
        self._leaving += [asyncio.create_task(self._leave(server)) for server in known.values()]
        if self._running:
            for server in self._servers:
                if server.task is None:
                    server.task = asyncio.create_task(self._keep(server))
        self._look_who_waits()

    async def announced(self) -> None:
        """Wait until the name servers that know us know of every change so far. One that takes long is not waited for
        again before it has answered."""
        change = self._changes
        if not any(server.is_waited_for(change) for server in self._servers):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, waiter))
        try:
            async with asyncio.timeout(_TOLD_S):
                await waiter
        except TimeoutError:
            for server in self._servers:
                server.late |= server.is_waited_for(change)
        finally:
            self._waiting = [entry for entry in self._waiting if entry[1] is not waiter]

    def _look_who_waits(self) -> None:
        if all(server.tried for server in self._servers):
            self._tried.set()
        if self._tried.is_set() or any(server.registered for server in self._servers):
            self._answered.set()
        for change, waiter in self._waiting:
            if not waiter.done() and not any(server.is_waited_for(change) for server in self._servers):
                waiter.set_result(None)

    # -- one name server ---------------------------------------------------------------------------------------------------

    async def _keep(self, server: _NameServer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve(server))
            group.create_task(self._beat(server))

    async def _beat(self, server: _NameServer) -> None:
        """Send a beat every second, forever; over the same connection, whatever else is in flight there."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if server.registered and server.takes_beats and not await self._beat_once(server):
                    server.registered = False
                    server.wake.set()
            except Exception:
                log.exception("could not send a heartbeat to name server %s", server.address)
            await asyncio.sleep(max(0.0, BEAT_S - (loop.time() - began)))

    async def _beat_once(self, server: _NameServer) -> bool:
        """Return whether the name server still knows us."""
        channel, role = server.channel, self._role
        assert channel is not None
        beat = BrokerHeartbeat(
            broker_name=self._config.name,
            broker_address=self._address.of(local_ip(channel)),
            cluster=self._config.cluster,
            broker_id=role.broker_id,
            epoch=role.version,
            timeout_ms=_TIMEOUT_MS,
        )
        try:
            answer = await channel.request(request(beat), timeout=BEAT_S)
        except RequestTimeout:
            server.missed += 1
            if server.missed >= MISSED_MAX:
                log.warning("name server %s does not answer heartbeats, reconnecting", server.address)
                channel.close()
            return server.missed < MISSED_MAX
        except (KappaError, OSError):
            return False
        server.missed = 0
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            server.takes_beats = False
            return True
        if answer.code == ResponseCode.SUCCESS:
            self._hear_of_master(answer)
        return answer.code == ResponseCode.SUCCESS

    def _hear_of_master(self, answer: Frame) -> None:
        if self._role.is_master:
            return
        answered = RegisterBrokerResponse.decode(answer.ext)
        known, version = self._master, answered.master_version
        if not answered.master_address:
            return  # it knows of none: it has just been started, or we are about to elect one
        if known is not None and known.version is not None and version is not None and version < known.version:
            return  # one name server has not heard of the new one yet
        found = MasterFound(answered.master_address, answered.ha_address, version)
        if found != known:
            self._master = found
            self._events.publish(found)

    async def _serve(self, server: _NameServer) -> None:
        """Keep one name server informed, for ever."""
        while True:
            server.wake.clear()
            try:
                await self._tell(server)
            except Exception:
                log.exception("registration at name server %s failed", server.address)
                server.registered = False
            server.tried = True
            self._look_who_waits()
            period = self._config.register_period_ms / 1000
            if not server.registered:
                await asyncio.sleep(min(period, _RETRY_S))
                continue
            try:
                async with asyncio.timeout(period):
                    await server.wake.wait()
            except TimeoutError:
                server.all_due = True

    async def _tell(self, server: _NameServer) -> None:
        """Bring one name server up to date. It gets all topics first: it refuses a new broker with one topic only."""
        try:
            channel = await server.connect()
            self._address.learn(self.local_ip)
            # Changes from here on are sent the next time; data read later may be newer, never older.
            change, (changed, server.changed) = self._changes, (server.changed, {})
            role, permission = (self._role.broker_id, self._role.version), self._config.permission
            if server.registered and server.role != role:
                # First the role alone: clients wait for that, and thousands of topics take a while. Its version is unique.
                await self._register(channel, encoded([], DataVersion(role[1]), permission), role)
                server.all_due = True
            if server.all_due or not server.registered or len(changed) > _SINGLES_MAX:
                server.all_due = False
                await self._register(channel, await self._everything(role), role)
            else:
                for name, version in changed.items():
                    topic = self._topics.get(name)
                    if topic is not None:
                        one = encoded([topic], replace(version, state_version=role[1]), permission)
                        await self._register(channel, one, role)
            server.role = role
            server.known_change, server.registered, server.late, server.complained = change, True, False, False
        except (KappaError, OSError) as error:
            server.registered = False
            if isinstance(error, RequestTimeout) and server.channel is not None:
                server.channel.close()  # whatever hangs there, the next attempt starts over
            if not server.complained:
                log.warning("registration at name server %s failed, retrying: %s", server.address, error)
                server.complained = True

    async def _everything(self, role: tuple[int, int]) -> bytes:
        """All topics, encoded once for all name servers, and by a worker: that takes long if there are many."""
        async with self._encoding:
            key = (replace(self._topics.version, state_version=role[1]), self._config.permission)
            if self._encoded is None or self._encoded[0] != key:
                topics = list(self._topics.table.values())  # together with the version: they belong together
                self._encoded = (key, await self._worker(encoded, topics, *key))
            return self._encoded[1]

    async def _register(self, channel: Channel, body: bytes, role: tuple[int, int]) -> None:
        ours = self._address.of(local_ip(channel))
        header = RegisterBroker(
            broker_name=self._config.name,
            broker_address=ours,
            cluster=self._config.cluster,
            ha_address=f"{ours.rpartition(':')[0]}:{self._ha_port}",
            broker_id=role[0],
            timeout_ms=_TIMEOUT_MS,
            acting_master=False,
            compressed=False,
            body_crc=0,
        )
        answer = await channel.request(request(header, body), timeout=self._config.register_timeout_ms / 1000)
        if answer.code != 0:
            raise KappaError(f"code {answer.code}: {answer.remark}")
        if answer.remark:
            log.warning("name server %s says: %s", channel.address, answer.remark)
        self._hear_of_master(answer)
        if answer.body:
            self._topics.make_ordered(list(KVTable.decode(answer.body).table))

    # -- leaving -----------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Unregister everywhere; a name server that does not answer will notice by itself."""
        await asyncio.gather(*self._leaving, *(self._leave(server) for server in self._servers))

    async def _leave(self, server: _NameServer) -> None:
        if server.task is not None:
            server.task.cancel()
        if server.channel is None or not server.channel.is_open:
            return
        try:
            if server.registered:
                header = UnregisterBroker(
                    broker_name=self._config.name,
                    broker_address=self._address.of(server.local_ip),
                    cluster=self._config.cluster,
                    broker_id=self._role.broker_id,
                )
                await server.channel.request(request(header), timeout=_UNREGISTER_S)
        except (KappaError, OSError) as error:
            log.info("could not unregister from name server %s: %s", server.address, error)
        finally:
            server.channel.close()


def encoded(topics: Sequence[TopicConfig], version: DataVersion, permission: int) -> bytes:
    """The body of a registration."""
    table = TopicTable(topics={topic.name: _as_allowed(topic, permission) for topic in topics}, data_version=version)
    return RegisterBrokerBody(topics=table).encode()


def _as_allowed(topic: TopicConfig, permission: int) -> TopicConfig:
    """Restrict a topic's permission to that of the broker."""
    allowed = permission & (PERMISSION_READ | PERMISSION_WRITE)
    if allowed == PERMISSION_READ | PERMISSION_WRITE:
        return topic
    return TopicConfig(
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.permission & allowed,
        topic.filter_type,
        topic.sys_flag,
        topic.order,
        topic.attributes,
    )


def local_ip(channel: Channel) -> str:
    """Our end of a connection; an IPv6 address without its brackets."""
    return address.split(channel.local_address)[0]

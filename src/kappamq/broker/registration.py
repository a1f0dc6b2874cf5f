"""Telling the name servers about us: everything at start and every so often, one topic at once when it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence

from kappamq.broker.topics import Topics
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError
from kappamq.net.channel import Channel
from kappamq.protocol import address
from kappamq.protocol.bodies_topics import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
)
from kappamq.protocol.frame import request
from kappamq.protocol.headers_nameserver import RegisterBroker, UnregisterBroker

log = logging.getLogger(__name__)

_CONNECT_S = 3.0
_UNREGISTER_S = 3.0
_RETRY_S = 1.0
_TOLD_S = 3.0


class _NameServer:
    """One name server: a connection that is made when needed, and kept."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._tls = tls
        self.channel: Channel | None = None
        self.registered = False
        self.complained = False

    async def connect(self) -> Channel:
        if self.channel is None or not self.channel.is_open:
            self.registered = False
            self.channel = await Channel.connect(self.address, timeout=_CONNECT_S, tls=self._tls)
        return self.channel


class Registration:
    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        address: Callable[[str | None], str],
        ha_port: Callable[[], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._tls = tls
        self._topics = topics
        self._address = address  # our address, given the local one of a connection (None: not known)
        self._ha_port = ha_port
        self._servers = [_NameServer(address, tls) for address in config.nameservers]
        self._task: asyncio.Task[None] | None = None
        self._leaving: list[asyncio.Task[None]] = []
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._told = asyncio.Event()  # no change waits to be told
        self._told.set()
        self.on_order_topics: Callable[[list[str]], None] = lambda topics: None

    async def local_address(self) -> str | None:
        """The ip by which the first reachable name server sees us; None if none can be reached."""
        for server in self._servers:
            try:
                return local_ip(await server.connect())
            except (KappaError, OSError) as error:
                log.warning("name server %s cannot be reached: %s", server.address, error)
        return None

    async def start(self) -> None:
        await self._register_all()
        self._task = asyncio.create_task(self._run())

    def topic_changed(self, topic: TopicConfig) -> None:
        """Register this topic soon; several changes in one turn go together."""
        self._changed.add(topic.name)
        self._told.clear()
        self._wake.set()

    def all_changed(self) -> None:
        """Register everything soon: something that is true of all topics has changed."""
        self._changed.update(self._topics.table)
        self._told.clear()
        self._wake.set()

    def set_nameservers(self, addresses: Sequence[str]) -> None:
        """Register with these from now on. Those we leave are told so; connections to the others stay."""
        known = {server.address: server for server in self._servers}
        self._servers = [
            known.pop(address) if address in known else _NameServer(address, self._tls)
            for address in dict.fromkeys(addresses)
        ]
        self._leaving += [asyncio.create_task(self._unregister(server)) for server in known.values()]
        self.all_changed()

    async def told(self) -> None:
        """Wait until the name servers know of every change so far, but not for long: one of them may be down."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), _TOLD_S)

    async def _run(self) -> None:
        while True:
            period = self._config.register_period_ms / 1000
            unregistered = any(not server.registered for server in self._servers)
            try:
                await asyncio.wait_for(self._wake.wait(), min(period, _RETRY_S) if unregistered else period)
                self._wake.clear()
                changed, self._changed = self._changed, set()
                await self._register_topics(changed)
                if not self._changed:
                    self._told.set()
            except TimeoutError:
                await self._register_all()
            except (KappaError, OSError) as error:
                log.warning("registration failed: %s", error)

    async def _register_all(self) -> None:
        await asyncio.gather(*(self._register(server, None) for server in self._servers))

    async def _register_topics(self, names: set[str]) -> None:
        await asyncio.gather(
            *(self._register(server, names if server.registered else None) for server in self._servers)
        )

    async def _register(self, server: _NameServer, names: set[str] | None) -> None:
        """Tell one name server about some topics, or all. It is told all first: it refuses a newcomer with one topic only."""
        try:
            channel = await server.connect()
            if not server.registered:
                names = None
            topics = [
                self._topics.table[name]
                for name in (self._topics.table if names is None else names)
                if name in self._topics.table
            ]
            if not topics:
                return
            table = TopicTable(
                topics={topic.name: self._as_allowed(topic) for topic in topics}, data_version=self._topics.version
            )
            ours = self._address(local_ip(channel))
            header = RegisterBroker(
                broker_name=self._config.name, broker_address=ours, cluster=self._config.cluster,
                ha_address=f"{ours.rpartition(':')[0]}:{self._ha_port()}", broker_id=self._config.broker_id,
                timeout_ms=None, acting_master=False, compressed=False, body_crc=0,
            )  # fmt: skip
            body = RegisterBrokerBody(topics=table).encode()
            answer = await channel.request(request(header, body), timeout=self._config.register_timeout_ms / 1000)
            if answer.code != 0:
                raise KappaError(f"code {answer.code}: {answer.remark}")
            server.registered, server.complained = True, False
            if answer.body:
                self.on_order_topics(list(KVTable.decode(answer.body).table))
        except (KappaError, OSError) as error:
            server.registered = False
            if not server.complained:
                log.warning("registration at name server %s failed, trying again: %s", server.address, error)
                server.complained = True

    def _as_allowed(self, topic: TopicConfig) -> TopicConfig:
        """What the broker as a whole does not permit, no topic of it does."""
        allowed = self._config.permission & (PERMISSION_READ | PERMISSION_WRITE)
        if allowed == PERMISSION_READ | PERMISSION_WRITE:
            return topic
        return TopicConfig(
            topic.name, topic.read_queues, topic.write_queues, topic.permission & allowed, topic.filter_type, topic.sys_flag,
            topic.order, topic.attributes,
        )  # fmt: skip

    async def stop(self) -> None:
        """Sign off everywhere; a name server that does not answer will notice by itself."""
        if self._task is not None:
            self._task.cancel()
        await asyncio.gather(*self._leaving, *(self._unregister(server) for server in self._servers))

    async def _unregister(self, server: _NameServer) -> None:
        if server.channel is None or not server.channel.is_open:
            return
        try:
            header = UnregisterBroker(
                broker_name=self._config.name, broker_address=self._address(local_ip(server.channel)),
                cluster=self._config.cluster, broker_id=self._config.broker_id,
            )  # fmt: skip
            await server.channel.request(request(header), timeout=_UNREGISTER_S)
        except (KappaError, OSError) as error:
            log.info("could not sign off at name server %s: %s", server.address, error)
        finally:
            server.channel.close()


def local_ip(channel: Channel) -> str:
    """Our end of a connection; an IPv6 address without its brackets."""
    return address.split(channel.local_address)[0]

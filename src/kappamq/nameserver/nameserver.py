"""A running name server: the service behind a listening socket, and the scan for expired brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from kappamq.clock import Clock
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import KappaError
from kappamq.nameserver.request_sizes import REQUEST_SIZES
from kappamq.nameserver.routes import MinIdChange
from kappamq.nameserver.service import NameService, Peer
from kappamq.net.channel import Channel
from kappamq.net.requests.reader import RequestReader
from kappamq.net.serving.connection import Connection
from kappamq.net.serving.exposure import warn_if_exposed
from kappamq.net.serving.server import FrameServer
from kappamq.net.tls import outgoing_context
from kappamq.protocol import address
from kappamq.protocol.frame import request
from kappamq.protocol.headers.nameserver import NotifyMinBrokerId

log = logging.getLogger(__name__)

_NOTICE_TIMEOUT_S = 0.3
_NOTICES_MAX = 1000
_BEAT_SCAN_S = 0.5
_LATE_S = 1.0


class NameServer:
    """Listens from `start` to `stop`. Name servers are independent of each other; any number may run."""

    def __init__(self, config: NameServerConfig, clock: Clock, *, net: NetConfig | None = None) -> None:
        self.config = config
        self._net = net or NetConfig()
        self._outgoing = outgoing_context(self._net)
        self._clock = clock
        self.service = NameService(config, clock, net=self._net, notify=self._notify, beside=self._beside)
        self._server: FrameServer | None = None
        self._reader: RequestReader | None = None  # of the server
        self._port = config.port
        self._scan: asyncio.Task[None] | None = None
        self._notices: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Read the KV configuration and listen. Raises ConfigError if the file cannot be read or the port is in use."""
        self.service.kv.load()
        server = FrameServer(self.service, self._net, self._clock, REQUEST_SIZES)
        self._reader = server.reader
        self._port = await server.start(self.config.listen_host, self.config.port)
        self._server = server
        warn_if_exposed("name server", self.config.listen_host)
        self._scan = asyncio.create_task(self._scan_forever())

    async def stop(self) -> None:
        """Close the socket and all connections. May be called twice, or without a start."""
        tasks = [*self._notices, *([self._scan] if self._scan is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._scan = None
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _beside(
        self, connection: Peer, work: Callable[..., Any], *arguments: Any, size: int | None = None
    ) -> Awaitable[Any]:
        """Run long work of a request in the thread that reads large requests."""
        assert self._reader is not None, "requests come from its server"
        return self._reader.beside.run(cast(Connection, connection), work, *arguments, size=size)

    @property
    def port(self) -> int:
        """The port it listens on; with 0 in the configuration, known after `start`."""
        return self._port

    @property
    def address(self) -> str:
        return address.join(self.config.listen_host, self._port)

    async def _scan_forever(self) -> None:
        """Look periodically for brokers that are silent, and more often for those that send beats.

        A scan that comes late says nothing about brokers: their beats may be waiting in the sockets. It is left to the next one."""
        period, everybody_at = min(_BEAT_SCAN_S, self.config.scan_ms / 1000), self._clock.liveness()
        while True:
            began = self._clock.liveness()
            await asyncio.sleep(period)
            now = self._clock.liveness()
            if now - began > period + _LATE_S:
                log.warning(
                    "this name server stood still for %.1f s: nobody is removed for being silent meanwhile", now - began
                )
            elif now - everybody_at >= self.config.scan_ms / 1000:
                everybody_at = now
                self.service.expire()
            else:
                self.service.expire(beating=True)

    def _notify(self, change: MinIdChange) -> None:
        for target in change.notify:
            if len(self._notices) >= _NOTICES_MAX:
                log.warning("too many notifications in flight; broker %s is not notified of %s", target, change)
                continue
            task = asyncio.create_task(self._tell(target, change))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _tell(self, target: str, change: MinIdChange) -> None:
        header = NotifyMinBrokerId(
            min_broker_id=change.min_id,
            broker_name=change.broker_name,
            min_broker_address=change.min_address,
            offline_broker_address=change.offline_address,
            ha_broker_address=change.ha_address,
        )
        try:
            channel = await Channel.connect(target, timeout=_NOTICE_TIMEOUT_S, tls=self._outgoing)
            try:
                await channel.oneway(request(header, oneway=True))
            finally:
                channel.close()
        except (KappaError, OSError) as error:
            log.info("could not notify broker %s that the smallest broker id changed: %s", target, error)

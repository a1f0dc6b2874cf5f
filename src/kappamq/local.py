"""Name server and broker in one process and one event loop: for `kappamq up`, tests and examples.

    async with Local.at(Path("data")) as local:             # on a running loop
        ...

    with LocalThread(Local.at(Path("data"))) as local:      # from blocking code: a loop of its own in a thread
        Producer(nameserver=local.nameserver)

Ports are chosen as in ports.py: None is the default port or a free one, 0 any free one, a number exactly that one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kappamq.broker.broker import Broker
from kappamq.clock import Clock, SystemClock
from kappamq.config.apache import BrokerSettings, Findings, broker_settings
from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import ConfigError, KappaError
from kappamq.event_loop import run
from kappamq.nameserver.nameserver import NameServer
from kappamq.ports import BROKER_PORT, BROKER_PORT_OFFSETS, NAMESERVER_PORT, reachable, start_on_port
from kappamq.store.files import Files

R = TypeVar("R")
STOP_S_MAX = 30.0


class Local:
    """A name server and a broker connected to each other. Start it once, stop it once."""

    def __init__(
        self,
        settings: BrokerSettings,
        nameserver: NameServerConfig,
        *,
        nameserver_port: int | None = None,
        broker_port: int | None = None,
        findings: Findings | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.settings = settings
        self._other_nameservers = settings.broker.nameservers
        self.findings = findings or Findings()
        self._nameserver_config = nameserver
        self.nameserver_port = nameserver_port  # as requested: None, 0 or a number
        self.broker_port = broker_port
        self._clock = clock or SystemClock()
        self._files = files
        self._nameserver: NameServer | None = None
        self._broker: Broker | None = None

    @classmethod
    def at(
        cls,
        data: Path,
        *,
        nameserver_port: int | None = None,
        broker_port: int | None = None,
        host: str = "127.0.0.1",
        properties: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> Self:
        """Keep all data in the directory `data`; `properties` as in broker.conf (RocketMQ's names or ours)."""
        settings, findings = broker_settings(
            properties or {},
            defaults={"store": {"root": data}, "broker": {"listen_host": host}},
        )
        # A port in the properties counts as explicit, like one in the arguments.
        named = {"listenPort", "broker.port"} & (properties or {}).keys()
        if broker_port is None and named:
            broker_port = settings.broker.port
        return cls(
            settings,
            NameServerConfig(listen_host=settings.broker.listen_host, root=settings.store.root / "namesrv"),
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            findings=findings,
            clock=clock,
            files=files,
        )

    async def start(self) -> Self:
        """Return when both servers answer. Raises ConfigError for a port in use, StoreError for the data directory."""
        host = self.settings.broker.listen_host
        try:
            self._nameserver = await start_on_port(
                "name server", host, self.nameserver_port, NAMESERVER_PORT, (0,), self._start_nameserver
            )
            self._broker = await start_on_port(
                "broker", host, self.broker_port, BROKER_PORT, BROKER_PORT_OFFSETS, self._start_broker
            )
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start_nameserver(self, port: int) -> NameServer:
        needed = [self.broker_port + offset for offset in BROKER_PORT_OFFSETS] if self.broker_port else []
        if port in needed:
            raise ConfigError(
                f"name server and broker cannot share port {port}: a broker on {self.broker_port} needs "
                f"{', '.join(map(str, needed))}; choose another --broker-port or --nameserver-port"
            )
        server = NameServer(replace(self._nameserver_config, port=port), self._clock, net=self.settings.net)
        await server.start()
        return server

    async def _start_broker(self, port: int) -> Broker:
        nameservers = (self.nameserver, *self._other_nameservers)
        changes: dict[str, dict[str, Any]] = {"broker": {"port": port, "nameservers": nameservers}}
        if self.settings.net.tls_mode == "enforcing":
            changes["net"] = {"tls_outgoing": True}  # otherwise the two could not talk to each other
        self.settings = self.settings.replace(changes)
        chosen = self.settings
        broker = await Broker.open(
            chosen.broker, chosen.store, chosen.net, self._clock, files=self._files, copies=chosen.copies
        )
        await broker.start()
        return broker

    async def stop(self) -> None:
        """Stop the broker first, so that it can unregister from the name server. May be called twice."""
        broker, self._broker = self._broker, None
        nameserver, self._nameserver = self._nameserver, None
        try:
            if broker is not None:
                await broker.stop()
        finally:
            if nameserver is not None:
                await nameserver.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def data(self) -> Path:
        return self.settings.store.root

    @property
    def nameserver(self) -> str:
        """host:port to reach it from this machine."""
        if self._nameserver is None:
            raise KappaError("the name server is not running: call start() first")
        return reachable(self._nameserver.address)

    @property
    def broker(self) -> str:
        """host:port to reach it from this machine."""
        host, port = self.settings.broker.listen_host, self.running_broker.port
        return reachable(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def running_broker(self) -> Broker:
        """The broker itself, for code on its loop."""
        if self._broker is None:
            raise KappaError("the broker is not running: call start() first")
        return self._broker


class LocalThread:
    """A `Local` on an event loop in a thread of its own, for blocking code."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="kappamq-local", daemon=True)

    def __enter__(self) -> Local:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self.local

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S_MAX)
        if self._thread.is_alive():
            raise KappaError(f"the broker did not stop within {STOP_S_MAX:.0f} s")
        if self._failure is not None and error is None:
            raise self._failure

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run a coroutine on the loop of the servers."""
        if self._loop is None:
            work.close()
            raise KappaError("the servers are not running: enter the context first")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        try:
            run(self._main())
        except BaseException as error:  # re-raised in the thread that waits in __enter__ or __exit__
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.local:
            self._started.set()
            await self._stop.wait()

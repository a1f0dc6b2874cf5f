"""What is measured: our name server and broker as processes of their own, and a bare echo to compare with."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process import BROKER_CORE, LOAD_CORE, Child, ProcessFailed

READY_S_MAX = 120.0
START_TRIES = 3
NAME = "broker-a"


class Broker:
    """`kappamq broker` on a folder; it can be killed and started again there; each start has a port of its own."""

    def __init__(
        self,
        home: Path,
        nameserver: str,
        *,
        kernel: str = "auto",
        properties: Mapping[str, object] | None = None,
        data: Path | None = None,
        env: Mapping[str, str] | None = None,
        cores: set[int] | None = None,
    ) -> None:
        self.home, self.data = home, data or home / "store"
        self.nameserver, self.kernel = nameserver, kernel
        self.properties = {"brokerName": NAME, "brokerIP1": "127.0.0.1", **(properties or {})}
        self.env = {"KAPPAMQ_KERNEL": kernel, **(env or {})}
        self.cores = BROKER_CORE if cores is None else cores
        self.port = 0
        self.ready_s = 0.0
        self._starts = 0
        self.process: Child

    def start(self) -> Broker:
        """Start it and wait until it is ready."""
        for attempt in range(START_TRIES):
            self.launch()
            try:
                ready, self.ready_s = self.process.wait_for_json(READY_S_MAX)
                break
            except ProcessFailed as error:
                # Somebody's outgoing connection may take a port between the moment it is found free and that it is bound.
                if "is in use" not in str(error) or attempt == START_TRIES - 1:
                    raise
        self.port = int(ready["broker"].rpartition(":")[2])
        return self

    def launch(self) -> Child:
        """Start it and do not wait."""
        self._starts += 1
        command = [sys.executable, "-m", "kappamq", "broker", "--json", "--listen", "127.0.0.1"]
        command += ["--data", str(self.data)]
        command += ["--nameserver", self.nameserver, "--port", "0"]
        for name, value in self.properties.items():
            command += ["--set", f"{name}={value}"]
        self.process = Child(command, self.home / f"run-{self._starts}", cores=self.cores, env=self.env)
        return self.process

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def nameserver(home: Path) -> Iterator[str]:
    """A name server beside the load; its address."""
    command = [sys.executable, "-m", "kappamq", "nameserver", "--json", "--listen", "127.0.0.1", "--port", "0"]
    with Child([*command, "--data", str(home)], home, cores=LOAD_CORE) as process:
        ready, _seconds = process.wait_for_json(READY_S_MAX)
        yield ready["nameserver"]


@contextmanager
def broker(home: Path, nameserver: str, **options: object) -> Iterator[Broker]:
    """A fresh broker, killed at the end; what it stored is the caller's to remove."""
    server = Broker(home, nameserver, **options)  # type: ignore[arg-type]
    try:
        yield server.start()
    finally:
        if hasattr(server, "process"):
            server.kill()


@contextmanager
def echo(home: Path, reply_bytes: int) -> Iterator[tuple[Child, int]]:
    """An event loop that answers each frame with a frame of `reply_bytes`, and does nothing else: (process, port)."""
    command = [sys.executable, "-m", "benchmarks.echo_server", str(reply_bytes)]
    with Child(command, home, cores=BROKER_CORE) as process:
        ready, _seconds = process.wait_for_json(READY_S_MAX)
        yield process, ready["port"]


def settle(process: Child, seconds_max: float = 20.0, busy_max: float = 0.05) -> None:
    """Wait until a process is at rest: what it does after its start must not fall into a measurement."""
    deadline = time.monotonic() + seconds_max
    before = process.cpu()
    while time.monotonic() < deadline:
        time.sleep(0.25)
        after = process.cpu()
        if (after - before).run_ns < busy_max * 0.25e9:
            return
        before = after

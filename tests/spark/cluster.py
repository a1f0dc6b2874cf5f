"""A name server and brokers in processes of their own: each can be killed with -9, and comes back on its port with its store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.process import Process

READY_S_MAX = 60.0


class Server:
    """`kappamq nameserver` or `kappamq broker`."""

    def __init__(self, home: Path, command: str, *options: str) -> None:
        home.mkdir()
        self._home, self._port, self._starts = home, "0", 0
        self._command = [sys.executable, "-m", "kappamq", command, "--json", "--listen", "127.0.0.1", *options]
        self._what = command
        self.process: Process
        self.address = ""

    def start(self) -> None:
        self._starts += 1
        out = self._home / f"out-{self._starts}.txt"
        command = [*self._command, "--port", self._port, "--data", str(self._home / "store")]
        self.process = Process(command, out, errors=self._home / f"errors-{self._starts}.txt")
        self.process.wait_until(lambda: "\n" in out.read_text(), f"kappamq {self._what} --json", READY_S_MAX)
        self.address = json.loads(out.read_text().splitlines()[0])[self._what]
        self._port = self.address.rpartition(":")[2]

    def kill(self) -> None:
        self.process.kill()


def broker(home: Path, nameserver: str, name: str) -> Server:
    return Server(home, "broker", "-n", nameserver, "--name", name)


@contextmanager
def cluster(home: Path, names: tuple[str, ...] = ("broker-a", "broker-b")) -> Iterator[tuple[str, dict[str, Server]]]:
    """The name server's address, and the brokers by name."""
    home.mkdir(parents=True, exist_ok=True)
    started: list[Server] = []
    try:
        nameserver = Server(home / "names", "nameserver")
        nameserver.start()
        started.append(nameserver)
        brokers = {name: broker(home / name, nameserver.address, name) for name in names}
        for one in brokers.values():
            one.start()
            started.append(one)
        yield nameserver.address, brokers
    finally:
        for one in reversed(started):
            one.kill()

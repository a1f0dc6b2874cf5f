"""A child process whose output goes to a file and which never outlives the test run."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """Started at once; `stop` ends it politely, `kill` as a power cut would end it (but for the page cache)."""

    def __init__(
        self, command: Iterable[str], out: Path, env: dict[str, str] | None = None, errors: Path | None = None
    ) -> None:
        self.logs = [out] if errors is None else [out, errors]
        with out.open("ab") as stdout, (errors or out).open("ab") as stderr:
            self.popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the parent runs no other threads while it forks
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def tail(self, characters: int = 3000) -> str:
        return "".join(log.read_text(errors="replace")[-characters:] for log in self.logs)

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise RuntimeError(f"{what}: the process ended with {self.popen.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds} s:\n{self.tail()}")
            time.sleep(0.02)

    def stop(self, seconds: float = 60) -> int:
        """Ask it to end and wait for it; its exit code."""
        if self.running:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"did not stop within {seconds} s:\n{self.tail()}") from None

    def kill(self) -> None:
        if self.running:
            self.popen.kill()
        self.popen.wait()


def free_port(*beside: int) -> int:
    """A port that is free together with its neighbours at the given distances.

    Taken below the range of outgoing connections, so that no client socket grabs it before the server binds it."""
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        if all(_can_bind(port + distance) for distance in (0, *beside)):
            return port
    raise RuntimeError("no free port found between 20000 and 32000")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True

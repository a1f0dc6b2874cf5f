"""A child process on cores of our choice, whose CPU time and memory can be asked for, and which never outlives us."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

CORES = sorted(os.sched_getaffinity(0))
BROKER_CORE = {CORES[0]}
"""The broker has this core for itself."""
LOAD_CORE = {CORES[1 % len(CORES)]}
"""Load, name server and this program share the other one."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Nanoseconds that the threads of a process ran, and waited for a core while they could have run."""

    run_ns: int
    wait_ns: int

    def __sub__(self, earlier: Cpu) -> Cpu:
        return Cpu(self.run_ns - earlier.run_ns, self.wait_ns - earlier.wait_ns)

    @property
    def noise(self) -> float:
        """The part of its time that it waited for a core: somebody else was there."""
        total = self.run_ns + self.wait_ns
        return self.wait_ns / total if total else 0.0


class ProcessFailed(Exception):
    pass


class Child:
    """Started at once. Standard output and error go to files in `home`."""

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        *,
        cores: set[int] | None = None,
        env: Mapping[str, str] | None = None,
        policy: int = os.SCHED_OTHER,  # SCHED_IDLE gives way to whoever shares its core; SCHED_FIFO to nobody, and needs root
        priority: int = 1,  # with SCHED_FIFO: the higher comes first
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._out, self._errors = home / "out.txt", home / "errors.txt"
        self.started = time.monotonic()
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, **(env or {})},
                preexec_fn=lambda: _prepare(cores, policy, priority),  # noqa: PLW1509 - we run no threads while we fork
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def printed(self) -> str:
        return self._out.read_text(errors="replace")

    def complaint(self) -> str:
        return (self.printed + self._errors.read_text(errors="replace"))[-3000:]

    def wait_for(self, text: str, seconds: float = 60) -> float:
        """Wait until `text` has been printed; seconds since the start of the process."""
        while text not in self.printed:
            if not self.running and text not in self.printed:  # in this order: its last words count
                raise ProcessFailed(f"ended with {self._popen.returncode} before it was ready:\n{self.complaint()}")
            if time.monotonic() > self.started + seconds:
                raise ProcessFailed(f"not ready within {seconds} s:\n{self.complaint()}")
            time.sleep(0.002)
        return time.monotonic() - self.started

    def wait_for_json(self, seconds: float = 60) -> tuple[dict[str, Any], float]:
        """The first line printed, and the seconds it took to come."""
        taken = self.wait_for("\n", seconds)
        line: dict[str, Any] = json.loads(self.printed.splitlines()[0])
        return line, taken

    def cpu(self) -> Cpu:
        run = wait = 0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                fields = (thread / "schedstat").read_text().split()
            except OSError:
                continue  # it has just ended
            run, wait = run + int(fields[0]), wait + int(fields[1])
        return Cpu(run, wait)

    def rss_anon(self) -> int:
        """Bytes of memory that are this process's alone: heap and stacks, not mapped files."""
        return rss_anon_of(self.pid)

    def stop(self, seconds: float = 30) -> None:
        """Ask it to end, and wait until it has."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"did not stop within {seconds} s:\n{self.complaint()}") from None

    def pause(self) -> None:
        """It does nothing from now on, until it is killed."""
        self._popen.send_signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        if self.running:
            self._popen.kill()
        self._popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def rss_anon_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise ProcessFailed(f"the system does not tell RssAnon of process {pid}")


def _prepare(cores: set[int] | None, policy: int, priority: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    if policy != os.SCHED_OTHER:
        os.sched_setscheduler(0, policy, os.sched_param(priority if policy == os.SCHED_FIFO else 0))

"""The load generator (load.c) seen from Python: compiled once, run pinned, its one line of JSON read back."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.process import LOAD_CORE, Child, Cpu, ProcessFailed

SOURCE = Path(__file__).with_name("load.c")
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
SEND, BATCH, PULL = 0, 1, 2
RUN_S_MAX = 1800.0


class LoadFailed(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Options of load.c by the same names; `load --help` says what each means."""

    mode: int = SEND
    connections: int = 8
    inflight: int = 1
    body: int = 100
    topics: int = 1
    queues: int = 8
    binary: bool = False
    coalesce: bool = True
    seconds: float = 2.0
    warmup: float = 0.3
    rate: float = 0
    requests: int = 0
    batch: int = 32
    pull: int = 32
    offset: int = 0
    until: int | None = None
    loop: bool = False
    wait: bool = False
    fifo: bool = False
    topic: str = "bench"
    group: str = "bench-group"

    def arguments(self) -> list[str]:
        given: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                given += [f"--{field.name}", str(int(value) if isinstance(value, bool) else value)]
        return given

    @property
    def shape(self) -> str:
        unit = {SEND: "", BATCH: f" batches of {self.batch}", PULL: f" pulls of {self.pull}"}[self.mode]
        return f"{self.connections}x{self.inflight}{unit}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one run did. Figures count the window behind the warm-up, `total_messages` everything."""

    requests: int
    messages: int
    bytes: int
    seconds: float
    total_messages: int
    wrong: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    own_cpu_ns: int
    cpu: dict[int, Cpu]
    errors: dict[int, int]

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.seconds

    def cpu_us_per_message(self, pid: int) -> float:
        return self.cpu[pid].run_ns / 1000 / max(self.messages, 1)

    def requests_per_cpu_s(self, pid: int) -> float:
        return self.requests / (self.cpu[pid].run_ns / 1e9)


def cache() -> Path:
    place = os.environ.get("KAPPAMQ_CACHE")
    return Path(place) if place else Path.home() / ".cache" / "kappamq"


def program() -> Path:
    """The compiled load generator; its name carries its source's hash, so a change is never missed."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = cache() / f"load-{digest}"
    if not path.exists():
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise LoadFailed("no C compiler: install gcc or clang, or set CC")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        done = subprocess.run(
            [compiler, *FLAGS, "-o", str(part), str(SOURCE)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LoadFailed(f"{compiler} cannot compile {SOURCE}:\n{done.stderr}")
        part.rename(path)
    return path


class Running:
    """A load under way; `result` waits for its end, `kill` does not."""

    def __init__(
        self,
        address: str,
        load: Load,
        home: Path,
        pids: tuple[int, ...] = (),
        *,
        policy: int = os.SCHED_OTHER,
        priority: int = 1,
    ) -> None:
        host, _, port = address.rpartition(":")
        command = [str(program()), host, port, *load.arguments()]
        for pid in pids:
            command += ["--pid", str(pid)]
        self._child = Child(command, home / "load", cores=LOAD_CORE, policy=policy, priority=priority)

    def result(self) -> Loaded:
        try:
            line, _seconds = self._child.wait_for_json(RUN_S_MAX)
        except ProcessFailed as error:
            raise LoadFailed(str(error)) from None
        finally:
            self._child.kill()
        return parse(line)

    def kill(self) -> None:
        self._child.kill()


def run(
    address: str,
    load: Load,
    home: Path,
    pids: tuple[int, ...] = (),
    *,
    may_fail: bool = False,
    policy: int = os.SCHED_OTHER,
) -> Loaded:
    """Run a load to its end. Answers that say something is wrong are an error, unless the caller wants to see them."""
    loaded = Running(address, load, home, pids, policy=policy).result()
    if loaded.wrong:
        raise LoadFailed(f"{loaded.wrong} answers to {load.shape} were not what was asked for")
    if loaded.errors and not may_fail:
        raise LoadFailed(f"{load.shape}: refused with {loaded.errors} (response code: times)")
    return loaded


def parse(line: dict[str, Any]) -> Loaded:
    cpu = {int(pid): Cpu(times["run_ns"], times["wait_ns"]) for pid, times in line.pop("cpu").items()}
    errors = {int(code): count for code, count in line.pop("errors").items()}
    return Loaded(**line, cpu=cpu, errors=errors)

"""A Raft group of broker processes of our own, beside a name server: started, killed, paused, and asked who leads."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.process import Child, Cpu, ProcessFailed
from tests.free_ports import free_ports

HOST = "127.0.0.1"
GROUP = "chaos"
READY_S_MAX = 120.0
_LEADS = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .*this broker leads group \S+ in term (\d+)", re.MULTILINE
)
_COMPARE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Reign:
    term: int
    since: float  # wall-clock seconds
    member: str


class Member:
    def __init__(self, name: str, home: Path, port: int, nameserver: str, properties: Mapping[str, object]) -> None:
        self.name, self.home, self.port = name, home, port
        self.data = home / "store"
        self._nameserver, self._properties = nameserver, properties
        self._starts = 0
        self.process: Child | None = None
        self.paused = False
        self._errors: Path | None = None
        self._read = 0
        self.reigns: list[Reign] = []
        self.complaints: list[str] = []

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    def launch(self) -> None:
        self._starts += 1
        command = [sys.executable, "-m", "kappamq", "broker", "--json", "--verbose", "--listen", HOST]
        command += ["--data", str(self.data), "--nameserver", self._nameserver, "--port", str(self.port)]
        for name, value in self._properties.items():
            command += ["--set", f"{name}={value}"]
        home = self.home / f"run-{self._starts}"
        self.process, self.paused = Child(command, home), False
        self._errors, self._read = home / "errors.txt", 0

    def kill(self) -> None:
        assert self.process is not None
        self.hear()
        self.process.kill()
        self.paused = False

    def pause(self) -> None:
        assert self.process is not None
        self.process.pause()
        self.paused = True

    def go_on(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGCONT)
        self.paused = False

    def cpu(self) -> Cpu:
        assert self.process is not None
        return self.process.cpu()

    def hear(self) -> None:
        """Read what it has logged since."""
        if self._errors is None:
            return
        with self._errors.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        words = text.decode(errors="replace")
        for when, term in _LEADS.findall(words):
            since = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
            self.reigns.append(Reign(int(term), since, self.name))
        # Nothing that we do to a member may end in an exception, or make it give up.
        self.complaints += [
            line for line in words.splitlines()
            if "Traceback" in line or "Error" in line.split(":")[0] or "does not take part" in line or "Task exception" in line
        ]  # fmt: skip


class Group:
    """`routes`: where `a` reaches the copies port of `b`, given (a, b, b's own address); proxies stand there."""

    def __init__(
        self,
        home: Path,
        nameserver: str,
        properties: Mapping[str, object],
        route: Callable[[str, str, int], int] = lambda _source, _target, port: port,
        count: int = 3,
    ) -> None:
        names = [f"n{number}" for number in range(count)]
        ports = dict(zip(names, free_ports(count), strict=True))
        self.members: dict[str, Member] = {}
        for name in names:
            peers = {
                other: port + 1 if other == name else route(name, other, port + 1) for other, port in ports.items()
            }
            own = {
                **properties,
                "brokerName": GROUP,
                "brokerIP1": HOST,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": GROUP,
                "dLegerPeers": ";".join(f"{other}-{HOST}:{port}" for other, port in peers.items()),
                "dLegerSelfId": name,
            }
            self.members[name] = Member(name, home / name, ports[name], nameserver, own)

    async def start(self, *names: str) -> None:
        """Start members (all of them), and wait until they serve."""
        chosen = [self.members[name] for name in names or self.members]
        for member in chosen:
            member.launch()  # by this thread: a child dies with the thread that has started it
        for member in chosen:
            assert member.process is not None
            await asyncio.to_thread(member.process.wait_for_json, READY_S_MAX)

    def kill_all(self) -> None:
        for member in self.members.values():
            if member.process is not None:
                member.kill()

    def reign(self) -> Reign | None:
        """The latest of a member that runs."""
        for member in self.members.values():
            member.hear()
        found = [reign for member in self.members.values() for reign in member.reigns]
        latest = max(found, default=None)
        return latest if latest is not None and self.members[latest.member].running else None

    def leader(self) -> Member | None:
        reign = self.reign()
        return self.members[reign.member] if reign is not None else None

    def ended(self) -> list[str]:
        """Members that nobody has killed, and that do not run."""
        return [
            f"{member.name} ended by itself:\n{member.process.complaint()}"
            for member in self.members.values()
            if member.process is not None and not member.process.running
        ]

    def check_alive(self) -> None:
        ended = self.ended()
        if ended:
            raise ProcessFailed("\n".join(ended))

    def complaints(self) -> list[str]:
        for member in self.members.values():
            member.hear()
        return [f"{member.name}: {line}" for member in self.members.values() for line in member.complaints]

    def differing_logs(self) -> str:
        """Where the logs of the members differ, while nobody writes; empty if they do not."""
        first, *others = [member.data / "commitlog" for member in self.members.values()]
        for other in others:
            for name in sorted({path.name for path in first.iterdir()} & {path.name for path in other.iterdir()}):
                at = _difference(first / name, other / name)
                if at is not None:
                    return f"{first / name} and {other / name} differ at {at}"
        return ""

    def bytes_compared(self) -> int:
        first, *_ = self.members.values()
        return sum(path.stat().st_size for path in (first.data / "commitlog").iterdir())


def _difference(one: Path, other: Path) -> int | None:
    at = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            a, b = left.read(_COMPARE_BYTES), right.read(_COMPARE_BYTES)
            if a != b:
                return at + next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            if not a:
                return None
            at += len(a)


class Machine:
    """Whether others took this machine's processors away from us between two moments."""

    def __init__(self, processes: list[Member]) -> None:
        self._members = [member for member in processes if member.running]
        self._began = time.monotonic()
        self._stolen = _steal()
        self._cpu = {member.name: member.cpu() for member in self._members}

    def starved(self) -> float:
        """The larger of the parts that were stolen by the host, and that a member of ours waited for a core."""
        total, stolen = (now - before for now, before in zip(_steal(), self._stolen, strict=True))
        wall_ns = (time.monotonic() - self._began) * 1e9
        waited = [
            (member.cpu() - self._cpu[member.name]).wait_ns / wall_ns for member in self._members if member.running
        ]
        return max([stolen / total if total else 0.0, *waited])


def _steal() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[:8]), fields[7]

"""RocketMQ's own benchmark programs as the load, measured from the broker's side.

Messages are counted by asking the broker for its queues' ends (or for what it has given to consumers), CPU time is
what the system says of the broker's process: neither depends on what the load says of itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer.brokers import Peer
from benchmarks.process import LOAD_CORE, Child, Cpu, ProcessFailed
from benchmarks.wire import Wire
from kappamq.protocol import fastjson
from tests.interop import jars
from tests.interop.apache import java_command
from tests.interop.raw import ask

# The programs are published for some versions only; as clients they work with all.
EXAMPLE = jars.Bundle(name="example", version="5.5.0", artifacts=("rocketmq-example",))
PROGRAMS = "org.apache.rocketmq.example.benchmark"
UPDATE_TOPIC, RUNTIME_INFO = 17, 28
QUEUES = 8
FLOW_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What went through a broker in a window of time, and what it cost."""

    messages: int
    seconds: float
    cpu: Cpu

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """Of the broker's process, per message."""
        return self.cpu.run_ns / 1000 / self.messages

    @property
    def busy(self) -> float:
        """The part of its core that the broker used. Below about 0.9 the load was the bottleneck."""
        return self.cpu.run_ns / 1e9 / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    name: str
    program: str
    body_bytes: int
    arguments: tuple[str, ...] = ()
    consumes: int = 0  # messages of backlog to read; 0: it sends

    @property
    def topic(self) -> str:
        return f"Peer{self.body_bytes}" + ("Backlog" if self.consumes else "")


def loads(backlog: int) -> list[Load]:
    """The producer with its default of 64 threads, the batch producer, and the consumer, for two sizes of bodies."""
    chosen = []
    for size in (128, 1024):
        chosen += [
            Load(name=f"send {size} B", program="Producer", body_bytes=size, arguments=("-w", "64")),
            Load(
                name=f"send batches of 32 x {size} B",
                program="BatchProducer",
                body_bytes=size,
                arguments=("-w", "8", "-b", "32"),
            ),
            Load(name=f"consume {size} B", program="Consumer", body_bytes=size, consumes=backlog * 128 // size),
        ]
    return chosen


def create_topic(peer: Peer, topic: str) -> None:
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    counts = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "topicSysFlag": "0"}
    code, body = ask(peer.address, UPDATE_TOPIC, b"", **fields, **counts)
    if code != 0:
        raise ProcessFailed(f"{peer.kind} did not make the topic {topic}: {code} {body!r}")


def stored(peer: Peer, topic: str) -> int:
    with Wire(peer.address) as wire:
        return sum(wire.max_offset(topic, queue) for queue in range(QUEUES))


def delivered(peer: Peer) -> int:
    """How many messages the broker has given to consumers today."""
    code, body = ask(peer.address, RUNTIME_INFO)
    table = _table(body)
    if code != 0 or "msgGetTotalTodayNow" not in table:
        raise ProcessFailed(f"{peer.kind} does not tell msgGetTotalTodayNow: {code} {body[:200]!r}")
    return int(table["msgGetTotalTodayNow"])


def _table(body: bytes) -> dict[str, str]:
    decoded = fastjson.loads(body.decode())
    return dict(decoded["table"]) if isinstance(decoded, dict) else {}


class Program(AbstractContextManager["Program"]):
    """One of the benchmark programs, on the core of the load, until the block ends."""

    def __init__(self, peer: Peer, load: Load, home: Path, group: str) -> None:
        main = f"{PROGRAMS}.{load.program}"
        command = java_command(EXAMPLE, home, main, heap_mb=512, options=("-XX:+UseSerialGC",))
        command += ["-n", peer.nameserver, "-t", load.topic, *load.arguments]
        command += ["-g", group] if load.consumes else ["-s", str(load.body_bytes)]
        self.child = Child(command, home, cores=LOAD_CORE)

    def wait_until(self, reached: Callable[[], bool], what: str, seconds: float = FLOW_S_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if not self.child.running or time.monotonic() > deadline:
                raise ProcessFailed(f"{what}: not within {seconds} s:\n{self.child.complaint()}")
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.child.kill()


def measure(peer: Peer, load: Load, home: Path, *, warmup_s: float, seconds: float, group: str) -> Measured:
    """Run the program against the broker; count from when it has warmed up."""
    if load.consumes:
        return _measure_reading(peer, load, home, group)
    begin = stored(peer, load.topic)
    with Program(peer, load, home, group) as program:
        program.wait_until(lambda: stored(peer, load.topic) > begin, f"{load.program} sends to {peer.kind}")
        time.sleep(warmup_s)
        first, cpu, start = stored(peer, load.topic), peer.broker.cpu(), time.monotonic()
        time.sleep(seconds)
        used, elapsed = peer.broker.cpu() - cpu, time.monotonic() - start
        return Measured(stored(peer, load.topic) - first, elapsed, used)


def _measure_reading(peer: Peer, load: Load, home: Path, group: str) -> Measured:
    """From a third of the backlog, when the consumer's program has warmed up, to nearly its end."""
    begin = delivered(peer)
    with Program(peer, load, home, group) as program:

        def reach(part: float) -> tuple[int, Cpu, float]:
            goal = begin + int(load.consumes * part)
            program.wait_until(lambda: delivered(peer) >= goal, f"{part:.0%} of the backlog read from {peer.kind}", 120)
            return delivered(peer), peer.broker.cpu(), time.monotonic()

        count, cpu, start = reach(0.33)
        last, end_cpu, end = reach(0.95)
        return Measured(last - count, end - start, end_cpu - cpu)


def fill(peer: Peer, load: Load, home: Path) -> None:
    """Bring the backlog that `load` consumes into being."""
    create_topic(peer, load.topic)
    sender = Load(
        name="fill", program="BatchProducer", body_bytes=load.body_bytes, arguments=("-w", "8", "-b", "32"), consumes=0
    )
    command = java_command(EXAMPLE, home, f"{PROGRAMS}.{sender.program}", heap_mb=512, options=("-XX:+UseSerialGC",))
    command += ["-n", peer.nameserver, "-t", load.topic, *sender.arguments, "-s", str(load.body_bytes)]
    with Child(command, home, cores=LOAD_CORE) as child:
        deadline = time.monotonic() + 300
        while stored(peer, load.topic) < load.consumes:
            if not child.running or time.monotonic() > deadline:
                raise ProcessFailed(f"the backlog of {load.consumes} messages did not come:\n{child.complaint()}")
            time.sleep(0.05)

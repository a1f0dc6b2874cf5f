"""One measured run of a load against a fresh broker, with the broker's own count to check it by."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.loader import PULL, Load, Loaded, LoadFailed, run
from benchmarks.servers import Broker, settle
from benchmarks.wire import frames, stored_messages

WINDOWS_MAX = 3


@dataclass(frozen=True, slots=True)
class Measured:
    loaded: Loaded
    cpu_us: float  # of the broker, per message
    noise: float
    fast_share: float = 1.0  # of the frames, dealt with by the kernel alone

    @property
    def requests_per_cpu_s(self) -> float:
        """As if a core did nothing else."""
        return self.loaded.requests / (self.cpu_us * self.loaded.messages / 1e6)


def measure(server: Broker, load: Load, *, policy: int = os.SCHED_OTHER) -> Measured:
    """Run `load`; what was acknowledged must be what the broker says it holds."""
    for _ in range(WINDOWS_MAX):
        measured = _measure(server, load, policy)
        if measured.loaded.messages:
            return measured
    raise LoadFailed(
        f"{load.shape}: not one answer in {load.seconds:g} s, {WINDOWS_MAX} times: the machine is too busy"
    )


def _measure(server: Broker, load: Load, policy: int) -> Measured:
    pid = server.process.pid
    before = 0 if load.mode == PULL else count(server, load)
    fast_before, slow_before = frames(server.address)
    loaded = run(server.address, load, server.home, (pid,), policy=policy)
    fast_after, slow_after = frames(server.address)
    fast, slow = fast_after - fast_before, slow_after - slow_before - 1  # one of them asked how many there were
    if load.mode != PULL:
        stored = count(server, load) - before
        if stored != loaded.total_messages:
            raise LoadFailed(f"{loaded.total_messages} messages were acknowledged, but the broker holds {stored}")
    return Measured(loaded, loaded.cpu_us_per_message(pid), loaded.cpu[pid].noise, fast / max(1, fast + slow))


def count(server: Broker, load: Load) -> int:
    names = [load.topic] if load.topics == 1 else [f"{load.topic}-{n:05d}" for n in range(load.topics)]
    return sum(stored_messages(server.address, name, load.queues) for name in names)


def on_fresh_broker(
    bench: Bench, names: str, load: Load, *, kernel: str | None = None, on_disk: bool = False, **properties: object
) -> Measured:
    """Start a broker on an empty folder, bring the topic into being, measure."""
    given = {"mappedFileSizeCommitLog": bench.size.segment_bytes, **properties}
    with bench.broker(names, kernel=kernel, on_disk=on_disk, properties=given) as server:
        create_topic(server, load)
        settle(server.process)
        return measure(server, load)


def create_topic(server: Broker, load: Load) -> None:
    """A topic comes into being with the first message to it; that one is the slow path, and not what we measure."""
    topics = load.topics
    first = Load(
        topic=load.topic,
        topics=topics,
        queues=load.queues,
        connections=1,
        requests=topics * load.queues,
        seconds=0,
        warmup=0,
    )
    run(server.address, first, server.home)

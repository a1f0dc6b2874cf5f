"""A master whose slave has each message before it is acknowledged: what a message costs both brokers together.

The master has one core, its slave shares the other with the load, which is ours (load.c). Both pairs stay where they are while the other
one is measured: to pause a slave would be to lose it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import loader
from benchmarks.bench import Figure
from benchmarks.peer.brokers import APACHE, KAPPAMQ, KINDS, Peer
from benchmarks.peer.loads import create_topic, stored
from benchmarks.process import ProcessFailed

COPIES: Final = "a synchronous slave"
CPU_GOAL: Final = 0.5
TOPIC: Final = "Copied"
_FOLLOWS_S_MAX: Final = 60.0


def compare_copies(work: Path, runs: int, seconds: float, warmup: float, say: Callable[[str], None]) -> list[Figure]:
    home = work / "copies"
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        peers = {kind: stack.enter_context(Peer(kind, home / kind.split()[0], copied=True).running()) for kind in KINDS}
        for kind, peer in peers.items():
            create_topic(peer, TOPIC)
            wait_for_slave(peer, home / "first")
            _measure(
                peer, home / f"first-{kind.split()[0]}", seconds, warmup
            )  # the virtual machine compiles; not counted
        for number in range(runs):
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                cost, rate = _measure(peers[kind], home / f"run{number}-{kind.split()[0]}", seconds, warmup)
                costs[kind].append(cost)
                rates[kind].append(rate)
            say(
                f"{COPIES}: "
                + "; ".join(f"{kind} {costs[kind][-1]:.3g} us, {rates[kind][-1]:,.0f}/s" for kind in KINDS)
            )
    shutil.rmtree(home, ignore_errors=True)
    name = f"peer: {COPIES}"
    ratios = [ours / theirs for ours, theirs in zip(costs[KAPPAMQ], costs[APACHE], strict=True)]
    return [
        *(Figure.median(name, f"{kind}, CPU of both brokers", costs[kind], "us/message") for kind in KINDS),
        *(Figure.median(name, f"{kind}, rate", rates[kind], "messages/s") for kind in KINDS),
        Figure.median(name, "CPU of both brokers, ratio", ratios, "x", at_most=CPU_GOAL),
    ]


def wait_for_slave(peer: Peer, home: Path) -> None:
    """Until sends are acknowledged as copied."""
    deadline = time.monotonic() + _FOLLOWS_S_MAX
    one = loader.Load(connections=1, requests=8, seconds=0, warmup=0, topic=TOPIC)
    while (loaded := loader.run(peer.address, one, home, may_fail=True)).errors:
        if time.monotonic() > deadline:
            raise ProcessFailed(
                f"{peer.kind}: no slave within {_FOLLOWS_S_MAX:g} s, sends are refused with {loaded.errors}"
            )
        time.sleep(0.2)


def _measure(peer: Peer, home: Path, seconds: float, warmup: float) -> tuple[float, float]:
    """(CPU of master and slave in us, messages a second)"""
    assert peer.slave is not None
    pids = (peer.broker.pid, peer.slave.pid)
    load = loader.Load(connections=8, inflight=16, body=128, seconds=seconds, warmup=warmup, topic=TOPIC)
    before = stored(peer, TOPIC)
    loaded = loader.run(peer.address, load, home, pids)
    there = stored(peer, TOPIC) - before
    if there != loaded.total_messages:
        raise ProcessFailed(f"{peer.kind}: {loaded.total_messages} were acknowledged, {there} stored")
    return sum(loaded.cpu_us_per_message(pid) for pid in pids), loaded.messages_per_s

"""A new slave of a master that holds much: how fast it gets the log, and what senders feel of it when that is paced.

The master has one core, load and slave share the other. The load comes before the slave there where that is allowed (root): what is
asked for is what senders wait for the master, and not for their own core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench import COLD, Bench, Figure
from benchmarks.loader import Load, LoadFailed
from benchmarks.loader import run as load_run
from benchmarks.process import LOAD_CORE
from benchmarks.servers import Broker, settle
from benchmarks.wire import Wire
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo

_BODY = 1024
_PACED_BYTES = 20 << 20  # a second
_UNPACED_BYTES_MIN = 64 << 20  # so that it is not over before it is seen
_SENDS = 2000  # a second, while it is paced
_FULL_S_MAX = 300.0
_LOOK_S = 0.02


def run(bench: Bench) -> list[Figure]:
    rates: list[float] = []
    ratios: list[float] = []
    before: list[float] = []
    beside: list[float] = []
    for _ in range(bench.size.runs):
        rates.append(_unpaced(bench))
        alone, filling = _paced(bench)
        before.append(alone)
        beside.append(filling)
        ratios.append(filling / alone)
    return [
        Figure.median("filling", "unpaced", rates, "MB/s", at_least=100, note=COLD),
        Figure.median("filling", "p99 of sends, before", before, "us"),
        Figure.median("filling", f"p99 of sends, slave paced to {_PACED_BYTES >> 20} MiB/s", beside, "us"),
        Figure.median("filling", "p99 of sends, beside / before", ratios, "x", at_most=2),
    ]


def _unpaced(bench: Bench) -> float:
    with bench.nameserver() as names, _master(bench, names) as master:
        end = _filled(bench, master, max(_UNPACED_BYTES_MIN, bench.size.backlog * 200))
        with _slave(bench, names, master) as slave:
            begun = _wait(slave, 1)
            start, began = _log_end(slave), time.monotonic()
            _wait(slave, end)
            seconds = time.monotonic() - began
            bench.say(
                f"filling: ready after {slave.ready_s:.2f} s, first bytes {begun:.2f} s later, the rest in {seconds:.2f} s"
            )
            if start >= end:
                raise LoadFailed("the slave had everything before anybody looked: nothing was measured")
            return (end - start) / max(seconds, _LOOK_S) / 1e6


def _paced(bench: Bench) -> tuple[float, float]:
    """p99 of sends before there is a slave, and while it is being filled."""
    seconds = bench.size.seconds
    load = Load(
        connections=4, inflight=4, body=_BODY, rate=_SENDS, seconds=seconds, warmup=bench.size.warmup, topic="sends"
    )
    with (
        bench.nameserver() as names,
        _master(bench, names, {"copies.rate_bytes_max": _PACED_BYTES}) as master,
        bench.folder(on_disk=True) as home,
    ):
        needed = round(_PACED_BYTES * (seconds + load.warmup + 2) * 1.5)
        end = _filled(bench, master, needed)
        policy = os.SCHED_FIFO if os.geteuid() == 0 else os.SCHED_OTHER
        alone = load_run(master.address, load, home / "before", policy=policy).p99_us
        with _slave(bench, names, master) as slave:
            _wait(slave, 1)
            filling = load_run(master.address, load, home / "beside", policy=policy).p99_us
            if _log_end(slave) >= end:
                raise LoadFailed("the slave had everything before the load ended: nothing was measured")
        return alone, filling


@contextmanager
def _master(bench: Bench, names: str, properties: dict[str, object] | None = None) -> Iterator[Broker]:
    segment: dict[str, object] = {"mappedFileSizeCommitLog": min(bench.size.segment_bytes, 256 << 20)}
    with bench.broker(names, on_disk=True, properties={**segment, **(properties or {})}) as master:
        yield master


@contextmanager
def _slave(bench: Bench, names: str, master: Broker) -> Iterator[Broker]:
    with bench.folder(on_disk=True) as home:
        slave = Broker(
            home,
            names,
            kernel=bench.kernel,
            cores=LOAD_CORE,
            properties={
                "brokerRole": "SLAVE",
                "brokerId": 1,
                "haMasterAddress": f"127.0.0.1:{master.port + 1}",
                "mappedFileSizeCommitLog": master.properties["mappedFileSizeCommitLog"],
            },
        )
        try:
            yield slave.start()
        finally:
            slave.kill()


def _filled(bench: Bench, master: Broker, size: int) -> int:
    """Store so many bytes; where the log ends then."""
    with bench.folder(on_disk=True) as home:
        requests = max(size // (_BODY + 200), 8)
        load = Load(connections=8, inflight=16, body=_BODY, requests=requests, seconds=0, warmup=0)
        load_run(master.address, load, home)
    settle(master.process)
    return _log_end(master)


def _log_end(broker: Broker) -> int:
    with Wire(broker.address) as wire:
        table = KVTable.decode(wire.ask(GetBrokerRuntimeInfo()).body).table
    return int(table["commitLogMaxOffset"])


def _wait(slave: Broker, end: int) -> float:
    began = time.monotonic()
    while _log_end(slave) < end:
        if time.monotonic() > began + _FULL_S_MAX:
            raise LoadFailed(f"after {_FULL_S_MAX:g} s the slave's log ends at {_log_end(slave)} and not at {end}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began

"""Queues and key index rebuilt from a log of messages of 100 bytes, on Spark: messages a second per core.

    python -m benchmarks.rebuild [--messages 4000000] [--runs 3] [--folder DIR] [--master 'local[*]']

Two figures: by processor time of driver and tasks, and by the clock, where one core is all that is counted of each (Spark's start,
which is before the job begins, is not). The goal of 0.8 million is about the first; the second also has Spark's own part, the disk,
and whatever else the machine does.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kappamq.config.store import StoreConfig
from kappamq.native import load
from kappamq.spark.jobs.rebuild import Rebuilt
from kappamq.store.message_store import MessageStore
from tests.store.stores import make_room

QUEUES = 8
NOW = 1_700_000_000_000
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
_WRITE_EVERY = 20_000


@dataclass(frozen=True)
class Measured:
    messages: int
    cores: int
    seconds: float
    cpu_seconds: float

    @property
    def per_cpu_second(self) -> float:
        return self.messages / self.cpu_seconds

    @property
    def per_core_and_second(self) -> float:
        return self.messages / self.seconds / self.cores


def make_log(root: Path, messages: int, body_bytes: int = 100, config: StoreConfig | None = None) -> None:
    """A stopped store with so many messages, each with an id of its own as producers give them, and without queues and index."""
    config = config or StoreConfig(root=root)
    module = load()
    kernel = module.Kernel(
        segment_bytes=config.segment_bytes, store_host=HOST, region="r", cluster="c", trace_on=True, tail_crc=True,
        message_bytes_max=config.message_bytes_max, frame_bytes_max=16 << 20, header_bytes_max=256 << 10,
        pending_bytes_max=32 << 20, transfer_bytes_max=256 << 10, transfer_count_max=32,
    )  # fmt: skip
    store = MessageStore(config, module, kernel)
    store.open("benchmark")
    ms = NOW
    for number in range(messages):
        ms = NOW + number // 100
        properties = b"UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02TAGS\x01tag%d\x02WAIT\x01true\x02" % (
            number,
            number % 4,
        )
        body = (b"%012d" % number).ljust(body_bytes, b"x")
        while True:
            try:
                kernel.append("orders", number % QUEUES, 0, 0, ms, HOST, 0, 0, body, properties, ms)
                break
            except module.SegmentFull:
                make_room(store, ms)
        if number % _WRITE_EVERY == 0:
            store.write(ms)
            store.write_derived(store.collect())
    store.write(ms)
    store.close()
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)


def measure(root: Path, rebuild: Callable[[Path], Rebuilt], messages: int, cores: int) -> Measured:
    """One run; it must have found every message."""
    done = rebuild(root)
    assert (done.records, done.queue_entries, done.index_entries) == (messages, messages, messages), done
    return Measured(messages, cores, done.seconds, done.cpu_seconds)


def line(measured: Measured) -> str:
    return (
        f"{measured.messages} messages in {measured.seconds:.2f} s on {measured.cores} cores: "
        f"{measured.per_cpu_second / 1e6:.2f} million/s per core by processor time, "
        f"{measured.per_core_and_second / 1e6:.2f} by the clock"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the log is made; default: the system's temporary folder")
    parser.add_argument("--master", default="local[*]")
    options = parser.parse_args()
    from kappamq.spark.engine import session
    from kappamq.spark.jobs import rebuild

    with tempfile.TemporaryDirectory(prefix="kappamq-rebuild-", dir=options.folder) as folder:
        root = Path(folder) / "store"
        make_log(root, options.messages)
        spark = session(options.master, "benchmark of rebuild")
        try:
            cores = spark.sparkContext.defaultParallelism
            for _ in range(options.runs):
                print(line(measure(root, lambda root: rebuild(spark, root), options.messages, cores)), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()

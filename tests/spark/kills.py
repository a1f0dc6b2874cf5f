"""`python -m tests.spark.kills --rounds 20 --seed 1`: kill -9 a streaming query again and again, and count.

A broker, a producer that never pauses, and a driver in a process of its own, which streams a topic to Parquet files that Spark commits. In
each round the driver and its JVM are killed at a random moment: one time in five while they start, else while batches run. The
checkpoint shows whether a batch was open. At last a driver runs to the end: every message that was acknowledged must be in the table once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kappamq import Message, Producer
from kappamq.testing import BrokerKit
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

TOPIC, GROUP = "orders", "kills"
BATCH_ROWS = 400
SENT_AT_ONCE = 10
STARTING_S, RUNNING_S = 8.0, 3.0
DRIVER_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Counts:
    produced: int
    consumed: int
    distinct: int
    rounds: int
    in_batch: int
    lag: int

    @property
    def right(self) -> bool:
        return self.produced == self.consumed == self.distinct and self.lag == 0

    def __str__(self) -> str:
        return (
            f"produced {self.produced}, consumed {self.consumed}, distinct {self.distinct}, lag {self.lag}; "
            f"{self.rounds} kills, {self.in_batch} of them inside a batch"
        )


# --- the driver: a process of its own ---


def drive(nameserver: str, folder: Path, to_the_end: bool) -> None:
    """Stream the topic to Parquet until killed; or read what is there, then print what the table holds."""
    from kappamq.spark.engine import session

    spark = session("local[2]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
    if to_the_end:
        print(json.dumps(finish(spark, nameserver, folder)), flush=True)
        spark.stop()
        return
    limits = {"maxMessagesPerTrigger": str(BATCH_ROWS), "minPartitions": "4"}
    _query(spark, nameserver, folder, limits).start(str(folder / "table")).awaitTermination()


def finish(spark: SparkSession, nameserver: str, folder: Path) -> dict[str, int]:
    """Read what is left, and count what the table holds."""
    query = _query(spark, nameserver, folder, {}).trigger(availableNow=True).start(str(folder / "table"))
    assert query.awaitTermination(DRIVER_S_MAX), "reading what is left did not end"
    table = spark.read.parquet(str(folder / "table"))
    places = table.select("brokerName", "queueId", "queueOffset").distinct().count()
    return {"rows": table.count(), "places": places, "bodies": table.select("body").distinct().count()}


def _query(spark: SparkSession, nameserver: str, folder: Path, limits: dict[str, str]) -> DataStreamWriter:
    columns = "brokerName,queueId,queueOffset,body"
    given = {"nameservers": nameserver, "topic": TOPIC, "group": GROUP, "columns": columns, **limits}
    rows = spark.readStream.format("kappamq").options(**given).load()
    return rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))


def _driver(nameserver: str, folder: Path, to_the_end: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.kills", "--driver", nameserver, "--folder", str(folder)]
    with (folder / "driver.log").open("ab") as errors:
        return subprocess.Popen(
            [*command, "--to-the-end"] if to_the_end else command,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


# --- the one who kills ---


class Sender(threading.Thread):
    """Sends numbered messages, a few at a time, and counts those that were acknowledged."""

    def __init__(self, nameserver: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._nameserver, self._topic = nameserver, topic
        self._end = threading.Event()
        self.produced = 0

    def run(self) -> None:
        # A machine that is busy must not end the run: the drivers are what is killed here.
        with Producer(self._nameserver, group="kills-sender", send_timeout_ms=60_000) as producer:
            while not self._end.wait(0.05):
                numbers = range(self.produced, self.produced + SENT_AT_ONCE)
                producer.send_batch([Message(self._topic, b"order %d" % number) for number in numbers])
                self.produced += SENT_AT_ONCE

    def stop(self) -> None:
        self._end.set()
        self.join()


def batches(folder: Path, kind: str) -> int:
    """The number of the last batch that the checkpoint has in `offsets` or `commits`; -1 for none."""
    found = [path.name for path in (folder / "checkpoint" / kind).glob("*") if path.name.isdigit()]
    return max(map(int, found), default=-1)


def in_batch(folder: Path) -> bool:
    """Whether a batch is planned and not committed: Spark writes its offsets first, and its commit last."""
    return batches(folder, "offsets") > batches(folder, "commits")


@contextlib.contextmanager
def killed_at_last(driver: subprocess.Popen[bytes]) -> Iterator[None]:
    """The driver and its JVM. Python workers are groups of their own and end when the JVM is gone."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(30)


def kill_one(broker: BrokerKit, folder: Path, dice: random.Random, starting: bool) -> bool:
    """Start a driver and kill it; returns whether that was inside a batch."""
    before = batches(folder, "offsets")
    driver = _driver(broker.nameserver, folder, to_the_end=False)
    with killed_at_last(driver):
        if starting:
            alive_for(driver, dice.uniform(0, STARTING_S), folder)
        else:
            # The first batch of its own: one that was open when the last driver died is done by then.
            eventually(lambda: batches(folder, "offsets") > before or driver.poll() is not None, timeout=DRIVER_S_MAX)
            alive_for(driver, dice.uniform(0, RUNNING_S), folder)
    # A batch that another driver left open is not this one's.
    return in_batch(folder) and batches(folder, "offsets") > before


def alive_for(driver: subprocess.Popen[bytes], seconds: float, folder: Path) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = driver.wait(seconds)
        raise AssertionError(f"the driver ended by itself ({code}):\n{(folder / 'driver.log').read_text()[-3000:]}")


Finish = Callable[[str, Path], dict[str, int]]


def run(
    rounds: int, seed: int, folder: Path, tell: Callable[[str], object] = print, at_last: Finish | None = None
) -> Counts:
    """Kill `rounds` drivers, then count; `at_last` reads what is left, by default a driver of its own. Queues are added half-way."""
    dice = random.Random(seed)
    hits = 0
    with BrokerKit(data=folder / "broker") as broker, broker.admin() as admin:
        admin.create_topic(TOPIC, queues=3)
        sender = Sender(broker.nameserver, TOPIC)
        sender.start()
        try:
            for number in range(rounds):
                if number == rounds // 2:
                    admin.update_topic(TOPIC, queues=5)
                began = time.monotonic()
                starting = dice.random() < 0.2
                hit = kill_one(broker, folder, dice, starting)
                hits += hit
                tell(
                    f"kill {number + 1}: after {time.monotonic() - began:.1f} s, {'while it starts' if starting else 'running'}, "
                    f"{'inside batch' if hit else 'not inside a batch of its own; last'} {batches(folder, 'offsets')}"
                )
        finally:
            sender.stop()
        found = (at_last or _finish)(broker.nameserver, folder)
        ends = sum(at.max_offset for at in admin.topic_stats(TOPIC).values())
        assert ends == sender.produced, f"the broker has {ends} messages, {sender.produced} were acknowledged"
        lag = sum(at.broker_offset - at.consumer_offset for at in admin.consumer_progress(GROUP).values())
    return Counts(sender.produced, found["rows"], min(found["places"], found["bodies"]), rounds, hits, lag)


def _finish(nameserver: str, folder: Path) -> dict[str, int]:
    driver = _driver(nameserver, folder, to_the_end=True)
    with killed_at_last(driver):
        said, _ = driver.communicate(timeout=DRIVER_S_MAX)
    assert driver.returncode == 0, (folder / "driver.log").read_text()[-3000:]
    found: dict[str, int] = json.loads(said.splitlines()[-1])
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep everything there")
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.driver is not None:
        drive(options.driver, options.folder, options.to_the_end)
        return 0
    with tempfile.TemporaryDirectory(prefix="kappamq-kills-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        counts = run(options.rounds, options.seed, folder, lambda text: print(text, flush=True))
    print(counts)
    return 0 if counts.right and counts.in_batch >= options.rounds // 2 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

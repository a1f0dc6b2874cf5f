"""`python -m tests.spark.kills_exactly_once --rounds 20 --seed 1`: kill -9 a query from topic to topic again and again, and count.

Two brokers, a sender that never pauses, and a driver in a process of its own, which streams a topic of both into another one of both,
exactly once. In each round the driver and its JVM are killed: at a random moment, when the brokers have so many chunks of it, or when
the coordinator has decided a batch that Spark has not committed. Then the brokers are asked what is staged and what is decided. At
last a driver runs to the end: every message that was acknowledged must be in the topic once, and nothing may be left staged.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kappamq import Admin
from tests.spark.cluster import cluster
from tests.spark.kills import DRIVER_S_MAX, STARTING_S, Sender, alive_for, batches, killed_at_last
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

FROM, TO, SCOPE = "orders", "copies", "kills"
BATCH_ROWS, TASKS = 600, 24
"""Tasks that run one after the other: most of a batch lies between the first stage and the commit."""
RUNNING_S = 4.0
FORGOTTEN_S_MAX = 60.0
"""What a worker staged that outlived its driver is dropped when its broker has asked the coordinator."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a kill left behind."""

    staged: int = 0  # chunks, on all brokers
    own: int = 0  # those of them that were staged for the batch that is open: nothing older lies on their broker
    begun_ms: int = 0  # when that batch was begun; 0: none is open
    decided: int = -1  # the last batch that the coordinator has decided
    committed: int = -1  # the last one that Spark has

    def behind_decision(self, before: Found) -> bool:
        return self.committed < self.decided != before.decided

    def inside(self, before: Found) -> bool:
        """Whether it fell between the first stage of a batch and Spark's commit, unless that was so before this driver began."""
        return (self.own > 0 and self.begun_ms != before.begun_ms) or self.behind_decision(before)


@dataclass(frozen=True, slots=True)
class Counts:
    produced: int
    consumed: int
    distinct: int
    left_over: int
    kills: tuple[Found, ...]

    @property
    def inside(self) -> int:
        return sum(kill.inside(before) for before, kill in itertools.pairwise((Found(), *self.kills)))

    @property
    def behind_decision(self) -> int:
        return sum(kill.behind_decision(before) for before, kill in itertools.pairwise((Found(), *self.kills)))

    @property
    def right(self) -> bool:
        return self.produced == self.consumed == self.distinct and self.left_over == 0

    def __str__(self) -> str:
        return (
            f"produced {self.produced}, consumed {self.consumed}, distinct {self.distinct}, {self.left_over} chunks left staged; "
            f"{len(self.kills)} kills, {self.inside} of them between the first stage and Spark's commit, "
            f"of these {self.behind_decision} behind the decision"
        )


# --- the driver: a process of its own ---


def drive(nameserver: str, folder: Path, to_the_end: bool) -> None:
    """Stream one topic into the other until killed; or write what is there, then print what the other topic holds."""
    from kappamq.spark.engine import session

    spark = session("local[2]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
    if to_the_end:
        print(json.dumps(finish(spark, nameserver, folder)), flush=True)
        spark.stop()
        return
    limits = {"maxMessagesPerTrigger": str(BATCH_ROWS), "minPartitions": str(TASKS)}
    _query(spark, nameserver, folder, limits).start().awaitTermination()


def finish(spark: SparkSession, nameserver: str, folder: Path) -> dict[str, int]:
    """Write what is left, and count what the topic holds."""
    query = _query(spark, nameserver, folder, {}).trigger(availableNow=True).start()
    assert query.awaitTermination(DRIVER_S_MAX), "writing what is left did not end"
    table = spark.read.format("kappamq").options(nameservers=nameserver, topic=TO, columns="body").load()
    return {"rows": table.count(), "bodies": table.distinct().count()}


def _query(spark: SparkSession, nameserver: str, folder: Path, limits: dict[str, str]) -> DataStreamWriter:
    given = {"nameservers": nameserver, "topic": FROM, "columns": "body", **limits}
    rows = spark.readStream.format("kappamq").options(**given).load()
    sink = {"nameservers": nameserver, "topic": TO, "delivery": "exactly-once", "transactionScope": SCOPE}
    writer = rows.writeStream.format("kappamq").options(**sink)
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def _driver(nameserver: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.kills_exactly_once", "--driver", nameserver, "--folder", str(folder)]
    with (folder / "driver.log").open("ab") as errors:
        return subprocess.Popen(
            [*command, *more],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


# --- the one who kills ---


def found(admin: Admin, folder: Path) -> Found:
    committed = batches(folder, "commits")  # first: Spark commits what is decided within some milliseconds
    states = admin.scopes().get(SCOPE, {}).values()
    begun_ms = max((state.open_since for state in states), default=0)
    return Found(
        staged=sum(state.staged_chunks for state in states),
        own=sum(state.staged_chunks for state in states if begun_ms and state.staged_since >= begun_ms),
        begun_ms=begun_ms,
        decided=max((state.last for state in states), default=-1),
        committed=committed,
    )


STARTING, RUNNING, STAGING, DECIDED = "while it starts", "running", "while it stages", "when it is decided"
MOMENTS = {STARTING: 1, RUNNING: 3, STAGING: 5, DECIDED: 2}
"""And how often each is chosen."""
PAUSE_S = 0.002
"""Between two looks at what the brokers have."""


def kill_one(nameserver: str, admin: Admin, folder: Path, dice: random.Random) -> str:
    """Start a driver and kill it at a moment that is chosen, too. Returns which."""
    moment = dice.choices([*MOMENTS], [*MOMENTS.values()])[0]
    chunks = dice.randint(1, TASKS)  # a task stages at least one
    before = found(admin, folder)
    driver = _driver(nameserver, folder)
    with killed_at_last(driver):
        if moment == STARTING:
            alive_for(driver, dice.uniform(0, STARTING_S), folder)
            return moment

        def reached() -> bool:
            if moment == RUNNING:
                return batches(folder, "commits") > before.committed
            now = found(admin, folder)
            if moment == DECIDED:
                return now.behind_decision(before)
            return now.begun_ms > before.begun_ms and now.own >= chunks

        eventually(lambda: reached() or driver.poll() is not None, timeout=DRIVER_S_MAX, pause=PAUSE_S)
        alive_for(driver, dice.uniform(0, RUNNING_S) if moment == RUNNING else 0, folder)
    return f"{moment} {chunks} chunks" if moment == STAGING else moment


Finish = Callable[[str, Path], dict[str, int]]


def run(
    rounds: int, seed: int, folder: Path, tell: Callable[[str], object] = print, at_last: Finish | None = None
) -> Counts:
    """Kill `rounds` drivers, then count; `at_last` writes what is left, by default a driver of its own. Queues are added half-way."""
    dice = random.Random(seed)
    kills: list[Found] = []
    with cluster(folder / "cluster") as (nameserver, _brokers), Admin(nameserver, request_timeout_ms=60_000) as admin:
        for topic in (FROM, TO):
            admin.create_topic(topic, queues=3)
        sender = Sender(nameserver, FROM)
        sender.start()
        try:
            for number in range(rounds):
                if number == rounds // 2:
                    admin.update_topic(TO, queues=5)
                began = time.monotonic()
                moment = kill_one(nameserver, admin, folder, dice)
                kills.append(found(admin, folder))
                tell(f"kill {number + 1}: after {time.monotonic() - began:.1f} s, {moment}: {kills[-1]}")
        finally:
            sender.stop()
        read = (at_last or _finish)(nameserver, folder)
        ends = sum(at.max_offset for at in admin.topic_stats(FROM).values())
        assert ends == sender.produced, f"the brokers have {ends} messages, {sender.produced} were acknowledged"
        with contextlib.suppress(AssertionError):
            eventually(lambda: not found(admin, folder).staged, timeout=FORGOTTEN_S_MAX)
        left_over = found(admin, folder).staged
    return Counts(sender.produced, read["rows"], read["bodies"], left_over, tuple(kills))


def _finish(nameserver: str, folder: Path) -> dict[str, int]:
    driver = _driver(nameserver, folder, "--to-the-end")
    with killed_at_last(driver):
        said, _ = driver.communicate(timeout=DRIVER_S_MAX)
    assert driver.returncode == 0, (folder / "driver.log").read_text()[-3000:]
    counted: dict[str, int] = json.loads(said.splitlines()[-1])
    return counted


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.kills_exactly_once", description=__doc__.partition("\n")[0]
    )
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
    return 0 if counts.right and counts.inside >= options.rounds // 2 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

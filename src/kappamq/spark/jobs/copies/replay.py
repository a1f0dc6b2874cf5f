"""Copies an archive, or a range of topics, into a topic: each message once, in the order of its queue, at a chosen speed.

A round is a batch of the job's scope. The plan of all rounds is stored before the first one is written; a run asks the scope which
round was the last, and goes on after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue
from kappamq.protocol.names import check_topic
from kappamq.spark import connection
from kappamq.spark.engine import check_installed, told
from kappamq.spark.jobs.archive_folder import ArchiveFolder
from kappamq.spark.jobs.copies import rows
from kappamq.spark.jobs.copies.replay_plan import Plan, round_rows
from kappamq.spark.jobs.copies.state import JobState
from kappamq.spark.topic.options import ReadOptions, checked_name
from kappamq.spark.topic.pinned import pinned
from kappamq.spark.topic.planning import QueueRange, ranges_between, refuse_gaps, resolve
from kappamq.spark.topic.topics import Topics, check_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUND_ROWS: Final = 100_000
_TASK_ROWS: Final = 50_000
_RANGE: Final = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "keys",
    "filter",
    "onDataLoss",
)

Progress = Callable[[int, int], None]
"""Called with the number of messages read, and the total."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a run."""

    name: str
    rounds: int  # of this run
    rounds_before: int
    read: int  # messages of the rounds of this run
    written: int  # those of them that the filter let through
    planned: int  # messages of all rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What to copy. Checked, and planned, without Spark."""

    name: str
    target: str
    nameservers: str
    archive: Path | None = None
    topics: tuple[str, ...] = ()
    read: Mapping[str, str] | None = None  # options of the format kappamq that limit a read, see docs/PIPELINE.md
    said: Mapping[str, str] | None = None  # limits as given that are relative to the present, such as "2h" ago
    where: str | None = None
    per_second: float | None = None
    round_rows: int = ROUND_ROWS
    state: Path | None = None
    tls: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raises ConfigError (NoSuchTopic), NoRoute."""
        checked_name("the target", self.target, check_topic)
        JobState(self.state, self.name)
        if self.per_second is not None and not 0 < self.per_second <= 1e9:
            raise ConfigError(f"per_second={self.per_second} must be more than 0")
        if self.round_rows < 1:
            raise ConfigError(f"round_rows={self.round_rows} must be at least 1")
        if self.archive is None and not self.topics:
            raise ConfigError("nothing to replay is named: give an archive, or topics")
        if self.archive is None and self.target in self.topics:
            raise ConfigError(f"{self.target} cannot be replayed into itself: choose another target")
        limits = self.read or {}
        if wrong := [name for name in limits if name not in _RANGE]:
            raise ConfigError(f"{wrong[0]} is no limit of a replay; there are {', '.join(_RANGE)}")
        if self.archive is not None and limits:
            raise ConfigError(
                f"{next(iter(limits))} is for topics, not for an archive: use a condition on columns (where)"
            )
        options = self.options()
        check_exists(options.nameservers, self.target, options.tls)
        if self.archive is None:
            Topics(options).bounds()
        else:
            _ranges_of_archive(self.archive, self.topics)

    def options(self) -> ReadOptions:
        return ReadOptions.parse(self.read_options())

    def read_options(self) -> dict[str, str]:
        given = {"nameservers": self.nameservers, **(self.tls or {}), **(self.read or {})}
        return given | {"topic": ",".join(self.topics) or self.target, "columns": ",".join(rows.READ)}

    def asked(self) -> dict[str, Any]:
        """The settings that must be the same in every run of this name. Speed, addresses, and the handling of losses may change."""
        limits = {
            name: text for name, text in {**(self.read or {}), **(self.said or {})}.items() if name != "onDataLoss"
        }
        return {
            "target": self.target,
            "archive": None if self.archive is None else str(self.archive.expanduser().absolute()),
            "topics": sorted(self.topics),
            "read": dict(sorted(limits.items())),
            "where": self.where,
        }

    def plan(self) -> Plan:
        """Ask the brokers which messages there are now."""
        options = self.options()
        if self.archive is not None:
            ranges = _ranges_of_archive(self.archive, self.topics)
        else:
            topics = Topics(options)
            bounds = topics.bounds()
            start = resolve(options.start, bounds, topics.search)
            ranges, gaps = ranges_between(start, resolve(options.end, bounds, topics.search), bounds)
            refuse_gaps(gaps, options.on_data_loss)
        writable = connection.producer(options.nameservers, tls=options.tls).queues(self.target)
        lanes = rows.lanes((one.queue for one in ranges), list(writable))
        return Plan(tuple(sorted(ranges)), lanes, round_rows(self.round_rows, self.per_second))


def replay(
    spark: SparkSession,
    wanted: Replay,
    progress: Progress = lambda _done, _total: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Copy what is not copied yet. Raises ConfigError, StoreError, DataLoss, IllegalOperation (the scope has another owner),
    SparkFailed."""
    check_installed()
    wanted.check()
    state = JobState(wanted.state, wanted.name)
    with state.opened():
        stored = state.agreed(wanted.asked(), "replay")
        if stored is None:
            stored = state.begin(wanted.asked(), "replay", plan=wanted.plan().encode())
        plan = Plan.decode(stored["plan"])
        options = wanted.options()
        producer = connection.producer(options.nameservers, tls=options.tls)
        first = producer.open_scope(wanted.name, stored["owner"]).last + 1
        run = _Run(spark, wanted, plan, stored["owner"])
        before = _rows_of(plan, first)
        progress(before, plan.count)
        began, read, written = clock(), 0, 0
        for number in range(first, plan.number_of_rounds):
            if wanted.per_second is not None:
                sleep(max(0.0, began + read / wanted.per_second - clock()))
            with told():
                written += run.round(number)
            read = _rows_of(plan, number + 1) - before
            progress(before + read, plan.count)
        return Replayed(wanted.name, max(0, plan.number_of_rounds - first), first, read, written, plan.count)


def _rows_of(plan: Plan, rounds: int) -> int:
    return sum(one.count for number in range(min(rounds, plan.number_of_rounds)) for one in plan.round(number))


class _Run:
    def __init__(self, spark: SparkSession, wanted: Replay, plan: Plan, owner: str) -> None:
        self._spark = spark
        self._wanted = wanted
        self._plan = plan
        self._owner = owner
        self._files = _files_of_archive(wanted.archive, wanted.topics) if wanted.archive is not None else []

    def round(self, number: int) -> int:
        """Write a round as one batch; returns its messages."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        ranges = self._plan.round(number)
        found = self._archived(ranges) if self._wanted.archive is not None else self._stored(ranges)
        if self._wanted.where:
            found = found.where(self._wanted.where)
        seen = Observation()
        tasks = max(1, min(len(set(self._plan.lanes.values())), -(-sum(one.count for one in ranges) // _TASK_ROWS)))
        placed = rows.in_order(rows.by_lane(found, self._plan.lanes), tasks)
        messages = rows.as_messages(placed, self._wanted.target).observe(seen, sql.count(sql.lit(1)).alias("rows"))
        wanted = self._wanted
        options = {
            "nameservers": wanted.nameservers, **(wanted.tls or {}), "delivery": "exactly-once", "transactionScope": wanted.name,
            "transactionNumber": str(number), "transactionOwner": self._owner,
        }  # fmt: skip
        messages.write.format("kappamq").options(**options).mode("append").save()
        return int(seen.get["rows"])

    def _stored(self, ranges: Sequence[QueueRange]) -> DataFrame:
        options = {
            name: value
            for name, value in self._wanted.read_options().items()
            if not name.startswith(("starting", "ending"))
        }
        options |= pinned(Topics(self._wanted.options()), ranges)
        return self._spark.read.format("kappamq").options(**options).load()

    def _archived(self, ranges: Sequence[QueueRange]) -> DataFrame:
        from pyspark.sql import functions as sql

        archive = self._wanted.archive
        assert archive is not None
        root = str(archive.expanduser().absolute())
        found = self._spark.read.option("basePath", root).parquet(*self._files)
        inside = sql.lit(False)
        for one in ranges:
            inside = inside | (
                (sql.col("topic") == one.queue.topic)
                & (sql.col("brokerName") == one.queue.broker)
                & (sql.col("queueId") == one.queue.queue_id)
                & sql.col("queueOffset").between(one.start, one.stop - 1)
            )
        return found.select(sql.col("topic").cast("string").alias("topic"), *rows.READ[1:]).where(inside)


def _manifests(archive: Path) -> list[Any]:
    folder = ArchiveFolder(archive.expanduser())
    found = list(folder.manifests()) if folder.root.is_dir() else []
    if not found:
        raise ConfigError(f"{folder.root} is not an archive of `kappamq pipeline archive`, or an empty one")
    return found


def _ranges_of_archive(archive: Path, topics: Sequence[str]) -> list[QueueRange]:
    """Return the range from the first to the last message of every queue in the archive."""
    found: dict[MessageQueue, QueueRange] = {}
    for manifest in _manifests(archive):
        for part in manifest.queues:
            queue = MessageQueue(part.topic, part.broker, part.queue)
            before = found.get(queue, QueueRange(queue, part.start, part.stop))
            found[queue] = QueueRange(queue, min(before.start, part.start), max(before.stop, part.stop))
    names = {queue.topic for queue in found}
    if missing := [topic for topic in topics if topic not in names]:
        raise ConfigError(
            f"the archive {archive} has nothing of {missing[0]}; it has {', '.join(sorted(names)) or 'nothing'}"
        )
    return [one for queue, one in found.items() if not topics or queue.topic in topics]


def _files_of_archive(archive: Path, topics: Sequence[str]) -> list[str]:
    """Return the committed files. Raises ConfigError if one is not in its place."""
    root = archive.expanduser().absolute()
    files = [root / file.path for manifest in _manifests(archive) for file in manifest.files]
    for file in files:
        if not file.is_file():
            raise ConfigError(
                f"{file} is missing in the archive: if a run of it was killed, `kappamq pipeline archive` puts it there"
            )
    return [str(file) for file in files]

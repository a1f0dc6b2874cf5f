"""Archives topics as Parquet, partitioned by day and topic: incremental, verified, safe to kill.

Before a round is committed its files are read back, and every offset of every queue must be there exactly once; after that
retention may delete these messages. A record with a bad checksum is never written: the reader treats it as lost. See
`archive_folder` for how rounds become visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from kappamq.errors import ConfigError, KappaError
from kappamq.message import MessageQueue
from kappamq.spark.engine import check_installed, told
from kappamq.spark.jobs.archive_folder import ArchiveFile, ArchiveFolder, Manifest, QueueRows
from kappamq.spark.topic.checkpoints import Checkpoint
from kappamq.spark.topic.known_topics import KnownTopics
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.pinned import pinned
from kappamq.spark.topic.planning import Gap, QueueRange

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import SparkSession

    from kappamq.spark.topic.streaming import StreamReader

    Offsets: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

ROUND_ROWS: Final = 2_000_000
"""Messages per round: the work lost when a run is killed, and what verification holds in memory (8 bytes each)."""
FILE_ROWS: Final = 100_000
"""The number of tasks is limited so that a file has this many rows: small files make archives slow."""
_MICROSECONDS_A_DAY: Final = 86_400_000_000
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"

Progress = Callable[[int, int], None]
"""Called with the number of messages archived, and the total."""


class ArchiveFailed(KappaError):
    """The written files differ from the queues; nothing of the round was kept."""


@dataclass(slots=True)
class Archived:
    """The result of a run."""

    rounds: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    queues: dict[MessageQueue, QueueRows] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    away: list[MessageQueue] = field(default_factory=list)
    """Queues of unavailable brokers: their messages since the last run are not in the archive."""

    def add(self, manifest: Manifest) -> None:
        self.rounds += 1
        self.rows += manifest.rows
        self.files += len(manifest.files)
        self.bytes += sum(file.bytes for file in manifest.files)
        self.gaps += manifest.gaps
        for queue in manifest.queues:
            key = MessageQueue(queue.topic, queue.broker, queue.queue)
            before = self.queues.get(key)
            if before is not None:
                queue = QueueRows(
                    queue.topic, queue.broker, queue.queue, before.start, queue.stop, before.rows + queue.rows
                )
            self.queues[key] = queue


def archive(
    spark: SparkSession,
    target: str | Path,
    *,
    nameservers: str,
    topics: Sequence[str] = (),
    topic_pattern: str | None = None,
    on_data_loss: str = "fail",
    group: str | None = None,
    bytes_per_second: int | None = None,
    round_rows: int = ROUND_ROWS,
    compression: str = "zstd",
    staging: Path | None = None,
    tls: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Archived:
    """Archive the messages of the topics that the archive does not have yet.

    `target` is a directory that the driver and all executors see. With `group` the progress shows as that consumer group's lag.
    `tls` are the options for TLS of the format `kappamq`: {"tlsCa": "/etc/ca.pem"}.
    Raises ConfigError, DataLoss, StoreError (the directory), ArchiveFailed (verification), SparkFailed."""
    check_installed()
    if round_rows < 1:
        raise ConfigError(f"round_rows={round_rows} must be at least 1")
    options = _options(nameservers, topics, topic_pattern, on_data_loss, group, bytes_per_second, tls)
    with ArchiveFolder(_directory(target), staging) as folder:
        return _Run(spark, folder, options, round_rows, compression).run(progress or (lambda _done, _total: None))


def check_archive(
    target: str | Path,
    *,
    nameservers: str,
    topics: Sequence[str] = (),
    topic_pattern: str | None = None,
    staging: Path | None = None,
    tls: Mapping[str, str] | None = None,
) -> None:
    """Check everything that does not need Spark, which takes seconds to start. Raises ConfigError (NoSuchTopic), StoreError, NoRoute."""
    from kappamq.spark.topic.topics import Topics

    options = ReadOptions.parse(_options(nameservers, topics, topic_pattern, "fail", None, None, tls))
    folder = ArchiveFolder(_directory(target), staging)
    folder.check()
    last = folder.last_manifest()
    known = Checkpoint.decode(dict(last.position)).queues if last is not None else ()
    Topics(options).bounds(KnownTopics(queue.topic for queue in known))


def _options(
    nameservers: str,
    topics: Sequence[str],
    topic_pattern: str | None,
    on_data_loss: str,
    group: str | None,
    bytes_per_second: int | None,
    tls: Mapping[str, str] | None,
) -> dict[str, str]:
    """As options of the format `kappamq`, which validates them."""
    given = {
        "nameservers": nameservers,
        "topic": ",".join(topics) or None,
        "topicPattern": topic_pattern,
        "onDataLoss": on_data_loss,
        "group": group,
        "maxBytesPerSecond": bytes_per_second,
        **(tls or {}),
    }
    found = {name: str(value) for name, value in given.items() if value is not None}
    ReadOptions.parse(found)
    return found


def _directory(target: str | Path) -> Path:
    text = str(target).removeprefix("file://")
    if "://" in text:
        raise ConfigError(f"the archive {target} must be a directory of this machine or of a shared file system")
    return Path(text).expanduser()


class _Run:
    def __init__(
        self, spark: SparkSession, folder: ArchiveFolder, options: Mapping[str, str], round_rows: int, compression: str
    ) -> None:
        from kappamq.spark.columns.schema import COLUMNS
        from kappamq.spark.topic.streaming import StreamReader

        self._spark = spark
        self._folder = folder
        self._options = options
        self._round_rows = round_rows
        self._compression = compression
        # Archiving is a stream of rounds: it goes on, notices losses and finds new queues in the same way.
        self._stream: StreamReader = StreamReader(ReadOptions.parse(options), tuple(COLUMNS), topics_may_change=True)

    def run(self, progress: Progress) -> Archived:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        done = Archived()
        last = self._folder.last
        start: dict[str, Any] = dict(last.position) if last is not None else self._stream.initialOffset()
        if last is None:
            done.gaps += map(str, Checkpoint.decode(start).gaps)
        self._stream.prepareForTriggerAvailableNow()
        away = self._away(start)
        everything = self._stream.latestOffset(start, ReadAllAvailable())
        total = sum(one.count for one in _ranges(Checkpoint.decode(start), Checkpoint.decode(everything)))
        progress(0, total)
        while True:
            end = self._stream.latestOffset(start, ReadMaxRows(self._round_rows))
            if end == start:
                break
            manifest = self._round(start, end)
            done.add(manifest)
            start = end
            progress(done.rows, total)
        self._stream.commit(start)
        # A broker that came or went meanwhile was not read to its end either.
        done.away = sorted({*away, *self._away(start)})
        return done

    def _away(self, position: Mapping[str, Any]) -> list[MessageQueue]:
        from kappamq.spark.topic.topics import Topics

        return Topics(self._stream.options).away(Checkpoint.decode(position).queues)

    def _round(self, start: dict[str, Any], end: dict[str, Any]) -> Manifest:
        after = Checkpoint.decode(end)
        ranges = _ranges(Checkpoint.decode(start), after)
        stage = self._folder.begin()
        if ranges:
            self._write(ranges, stage)
        staged = self._folder.staged(stage)
        found = {path: _rows(stage / path) for path in staged}
        written = _offsets(found)
        missing = check(ranges, written, self._lost)
        queues = tuple(
            QueueRows(
                one.queue.topic, one.queue.broker, one.queue.queue_id, one.start, one.stop,
                sum(map(len, written.get(one.queue, ()))),
            )
            for one in ranges
        )  # fmt: skip
        files = tuple(
            ArchiveFile(str(self._folder.place(path)), sum(map(len, rows.values())), (stage / path).stat().st_size)
            for path, rows in found.items()
        )
        manifest = Manifest(
            round=1 if self._folder.last is None else self._folder.last.round + 1,
            made_ms=int(time.time() * 1000),
            staged=stage.name,
            queues=queues,
            files=files,
            position=end,
            gaps=tuple(map(str, (*after.gaps, *missing))),
        )
        self._folder.commit(manifest)
        return manifest

    def _write(self, ranges: Sequence[QueueRange], stage: Path) -> None:
        from pyspark.sql import functions as sql

        from kappamq.spark.topic.topics import Topics

        total = sum(one.count for one in ranges)
        options = {name: value for name, value in self._options.items() if name not in ("topicPattern", "group")}
        # A tail that was lost just now cannot be requested; verifying the round will detect that it is missing.
        options |= pinned(Topics(self._stream.options), ranges)
        before = self._spark.conf.get(_TIMESTAMPS, None)
        # Spark's own default is a type that no other reader takes for a moment in time.
        self._spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
        try:
            with told():
                options["minPartitions"] = str(max(1, min(self._parallelism(), total // FILE_ROWS)))
                rows = self._spark.read.format("kappamq").options(**options).load()
                day = sql.date_from_unix_date(
                    sql.floor(sql.unix_micros("storeTimestamp") / _MICROSECONDS_A_DAY).cast("int")
                )
                (
                    rows.withColumn("day", day)
                    .sortWithinPartitions("day", "topic", "brokerName", "queueId", "queueOffset")
                    .write.partitionBy("day", "topic")
                    .option("compression", self._compression)
                    .parquet(stage.as_uri())
                )
        finally:
            if before is None:
                self._spark.conf.unset(_TIMESTAMPS)
            else:
                self._spark.conf.set(_TIMESTAMPS, before)

    def _parallelism(self) -> int:
        from pyspark.errors import PySparkException

        try:
            return self._spark.sparkContext.defaultParallelism
        except PySparkException:
            return 1  # not available in a session of Spark Connect

    def _lost(self, missing: Sequence[QueueRange]) -> list[Gap]:
        """Ask the brokers again for these messages and return those they cannot supply. Raises ConfigError unless losses may be skipped."""
        from kappamq.spark.topic.reading import RangeReader

        reader = RangeReader(self._stream.options, ("queueOffset",))
        for _rows in reader.read(missing):
            pass
        return reader.gaps


def _ranges(before: Checkpoint, after: Checkpoint) -> list[QueueRange]:
    """Return the ranges between two positions."""
    found = []
    for queue, progress in sorted(after.queues.items()):
        begin = before.offsets.get(queue, progress.next) if progress.begin is None else progress.begin
        if begin < progress.next:
            found.append(QueueRange(queue, begin, progress.next))
    return found


def _rows(file: Path) -> dict[MessageQueue, Offsets]:
    """Return the offsets in a Parquet file, by queue; read from the disk, not through Spark, which wrote them."""
    import numpy as np
    import pyarrow.parquet as parquet

    topic = unquote(file.parent.name.removeprefix("topic="))
    # Not read_table(path): that would take the folders' names for columns.
    with parquet.ParquetFile(file) as opened:
        table = opened.read(columns=["brokerName", "queueId", "queueOffset"])
    brokers = table["brokerName"].combine_chunks().dictionary_encode()
    names, codes = brokers.dictionary.to_pylist(), brokers.indices.to_numpy()
    queues, offsets = table["queueId"].to_numpy(), table["queueOffset"].to_numpy()
    found: dict[MessageQueue, Offsets] = {}
    for code, number in np.unique(np.stack([codes, queues]), axis=1).T.tolist() if len(offsets) else []:
        found[MessageQueue(topic, names[code], number)] = offsets[(codes == code) & (queues == number)]
    return found


def _offsets(files: Mapping[Path, Mapping[MessageQueue, Offsets]]) -> dict[MessageQueue, list[Offsets]]:
    found: dict[MessageQueue, list[Offsets]] = {}
    for rows in files.values():
        for queue, offsets in rows.items():
            found.setdefault(queue, []).append(offsets)
    return found


def check(
    ranges: Iterable[QueueRange],
    written: Mapping[MessageQueue, Sequence[Offsets]],
    lost: Callable[[Sequence[QueueRange]], Sequence[Gap]],
) -> list[Gap]:
    """Every message of the ranges must have been written exactly once, and no other.

    `lost` returns which of some messages cannot be read: deleted meanwhile, or damaged. Only these may be missing; they are returned.
    Raises ArchiveFailed."""
    import numpy as np

    wanted = {one.queue: one for one in ranges}
    if strange := sorted(written.keys() - wanted.keys()):
        raise ArchiveFailed(f"{strange[0]}: unexpected messages were written; nothing was kept, run it again")
    gaps: list[Gap] = []
    for queue, one in wanted.items():
        parts = written.get(queue, ())
        found = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        if len(found) and (found[0] < one.start or found[-1] >= one.stop or (np.diff(found) == 0).any()):
            raise ArchiveFailed(
                f"{queue}: {len(found)} messages were written for {one.start} to {one.stop - 1}, some of them twice or unexpected; "
                "nothing was kept, run it again"
            )
        if len(found) == one.count:
            continue
        missing = np.setdiff1d(np.arange(one.start, one.stop, dtype=np.int64), found, assume_unique=True)
        told = lost(_runs(queue, missing))
        explained = [np.arange(gap.start, gap.stop) for gap in told if gap.queue == queue]
        wrong = np.setdiff1d(missing, np.concatenate(explained)) if explained else missing
        if len(wrong):
            raise ArchiveFailed(
                f"{queue}: {len(wrong)} of {one.count} messages were not written, though the broker has them, among them "
                f"{int(wrong[-1])}; nothing was kept, run it again"
            )
        gaps += told
    return gaps


def _runs(queue: MessageQueue, offsets: Offsets) -> list[QueueRange]:
    """Sorted offsets as ranges."""
    import numpy as np

    return [
        QueueRange(queue, int(run[0]), int(run[-1]) + 1)
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    ]

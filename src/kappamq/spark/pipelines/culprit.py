"""Finds the row that makes a flow fail: runs its transformation as a batch over fewer and fewer rows, without writing them.

A row is identified by the place of its message: topic, broker, queue and offset, columns of the format `kappamq` that a table
has if its flow selects them. For a streaming flow only the failed batch is searched, as recorded in its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kappamq.errors import ConfigError
from kappamq.spark.pipelines.definitions import SESSION, Definition, wrong_definitions
from kappamq.spark.pipelines.failure import ROW_REFUSED, is_about_data
from kappamq.spark.topic.options import STREAM_ONLY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S: Final = 60.0
PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
_NEEDED: Final = ("queueId", "queueOffset")
_MESSAGE_BYTES_MAX: Final = 4 << 20
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages of one queue, `stop` excluded; None if the table has no such column."""

    topic: str | None
    broker: str | None
    queue: int
    start: int
    stop: int

    def __str__(self) -> str:
        place = ", ".join(
            filter(
                None,
                (
                    f"topic {self.topic}" if self.topic is not None else "",
                    f"broker {self.broker}" if self.broker is not None else "",
                    f"queue {self.queue}",
                ),
            )
        )
        if self.stop - self.start == 1:
            return f"the row of {place}, offset {self.start}"
        return f"a row of {place}, offsets {self.start} to {self.stop - 1}"

    def of(self, frame: DataFrame) -> DataFrame:
        """Return these rows of a table."""
        for name, value in (("topic", self.topic), ("brokerName", self.broker), ("queueId", self.queue)):
            if value is not None:
                frame = frame.where(frame[name] == value)
        return frame.where((frame["queueOffset"] >= self.start) & (frame["queueOffset"] < self.stop))


def find(spark: SparkSession, definition: Definition, checkpoint: Path | None, database: str) -> Rows | None:
    """Return the place of the row that makes this flow fail; several rows if time runs out, None if it cannot be determined."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if definition.module is None:
        return None
    pending = Pending.of(checkpoint)
    session = Replayed(spark, pending)
    try:
        spark.sql(f"USE {database}")
        with _as_session(definition.module, session), _pushed_down(spark), wrong_definitions(definition.name):
            definition.read()  # which inputs there are
            candidates = list(pending.ranges) or session.ranges()
            return narrowed(candidates, lambda rows: _fails(definition, session, rows))
    except (PySparkException, Py4JError, ConfigError):
        return None  # this only improves the error text: the failure itself is reported in any case


def narrowed(
    candidates: Sequence[Rows],
    fails: Callable[[Rows], bool],
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> Rows | None:
    """Halve the first range that fails until one row is left, or time is up; None if no range fails by itself."""
    until = clock() + patience_s
    for rows in candidates:
        if clock() > until:
            return None
        if not fails(rows):
            continue
        while rows.stop - rows.start > 1 and clock() < until:
            middle = (rows.start + rows.stop) // 2
            first = Rows(rows.topic, rows.broker, rows.queue, rows.start, middle)
            rows = first if fails(first) else Rows(rows.topic, rows.broker, rows.queue, middle, rows.stop)
        return rows
    return None


@dataclass(frozen=True, slots=True)
class Pending:
    """The batch of a stream that is planned but not committed: the offsets of a topic, or the files of a table."""

    ranges: tuple[Rows, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, checkpoint: Path | None) -> Pending:
        """Read it from a checkpoint; empty if that is not on this machine's disk, or has another format."""
        if checkpoint is None:
            return cls()
        try:
            number = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
            now = _offsets(checkpoint / "offsets" / str(number))
            earlier = checkpoint / "offsets" / str(number - 1)
            before = _offsets(earlier) if earlier.is_file() else [{} for _ in now]
            ranges: list[Rows] = []
            files: list[str] = []
            for source, (start, stop) in enumerate(zip(before, now, strict=True)):
                if "queues" in stop:
                    ranges += _ranges(start.get("queues", {}), stop["queues"])
                elif "logOffset" in stop:
                    files += _files(checkpoint / "sources" / str(source), start.get("logOffset", -1), stop["logOffset"])
            return cls(tuple(ranges), tuple(files))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()


def _offsets(path: Path) -> list[Any]:
    """Return the offset of each source: Spark writes a version, a line about the batch, and a line for each source."""
    return [json.loads(line) if line != "-" else {} for line in path.read_text(encoding="utf-8").splitlines()[2:]]


def _ranges(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Rows]:
    for name, entry in after.items():
        topic, broker, queue = name.rsplit("/", 2)
        start = entry.get("begin", before.get(name, {}).get("next", 0))
        if start < entry["next"]:
            yield Rows(topic, broker, int(queue), start, entry["next"])


def _files(log: Path, after: int, until: int) -> Iterator[str]:
    """Yield the files that a stream of files has listed for its batches; older lists are combined in N.compact."""
    seen: set[str] = set()
    for path in sorted(log.iterdir()):
        if path.name.startswith(".") or not path.name.partition(".")[0].isdigit():
            continue
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            said = json.loads(line)
            if after < said["batchId"] <= until and said["path"] not in seen:
                seen.add(said["path"])
                yield said["path"]


class Replayed:
    """Stands in for the session in definitions: reading a stream returns a batch, of the rows that are being tested."""

    def __init__(self, spark: SparkSession, pending: Pending) -> None:
        self._spark = spark
        self._pending = pending
        self.rows: Rows | None = None
        self.inputs: list[DataFrame] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    @property
    def readStream(self) -> Reader:
        return Reader(self._spark.read, self, is_stream=True)

    @property
    def read(self) -> Reader:
        return Reader(self._spark.read, self, is_stream=False)

    def given(self, frame: DataFrame) -> DataFrame:
        if not set(_NEEDED) <= set(frame.columns):
            return frame
        self.inputs.append(frame)
        return frame if self.rows is None else self.rows.of(frame)

    def ranges(self) -> list[Rows]:
        """Return the queues of the first input that has the columns for a row's place."""
        from pyspark.sql import functions as sql

        if not self.inputs:
            return []
        frame = self.inputs[0]
        names = [name for name in PLACE[:3] if name in frame.columns]
        ends = frame.groupBy(*names).agg(sql.min("queueOffset").alias("start"), sql.max("queueOffset").alias("last"))
        found = [row.asDict() for row in ends.collect()]
        return [
            Rows(row.get("topic"), row.get("brokerName"), row["queueId"], row["start"], row["last"] + 1)
            for row in sorted(found, key=lambda row: [str(row[name]) for name in names])
            if row["queueId"] is not None and row["start"] is not None
        ]

    def files_of(self, table: str) -> tuple[str, ...]:
        """Return the files of the failed batch, if they are this table's."""
        place = self._spark.sql(f"DESCRIBE FORMATTED {table}").where("col_name = 'Location'").collect()
        if not place:
            return ()
        # file:/a and file:///a are the same folder.
        root = str(place[0]["data_type"]).removeprefix("file:").strip("/") + "/"
        return tuple(path for path in self._pending.files if path.removeprefix("file:").lstrip("/").startswith(root))


class Reader:
    """Stands for `spark.read` and `spark.readStream`."""

    def __init__(self, reader: Any, session: Replayed, *, is_stream: bool) -> None:
        self._reader = reader
        self._session = session
        self._is_stream = is_stream

    def format(self, source: str) -> Reader:
        self._reader = self._reader.format(source)
        return self

    def schema(self, schema: Any) -> Reader:
        self._reader = self._reader.schema(schema)
        return self

    def option(self, key: str, value: Any) -> Reader:
        left_out = {name.lower() for name in (*STREAM_ONLY, "startingOffsets", "startingTimestamp")}
        if not (self._is_stream and key.lower() in left_out):
            self._reader = self._reader.option(key, value)
        return self

    def options(self, **options: Any) -> Reader:
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(self, *arguments: Any, **options: Any) -> DataFrame:
        return self._session.given(self._reader.load(*arguments, **options))

    def table(self, name: str) -> DataFrame:
        files = self._session.files_of(name) if self._is_stream else ()
        table = self._reader.table(name)
        if files:
            table = self._reader.schema(table.schema).parquet(*files)
        return self._session.given(table)


def _fails(definition: Definition, session: Replayed, rows: Rows) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session.rows = rows
    frame = definition.read()
    if definition.is_sink:
        frame = frame.mapInArrow(refuse_rows, "refused int")
    try:
        frame.write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JError) as error:
        if not is_about_data(str(error)):
            raise
        return True
    return False


def refuse_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raise as the sink does for a row that cannot be a message; returns no rows. For `mapInArrow`."""
    from kappamq.native.layout import BadRow
    from kappamq.spark.sink.rows import prepare

    for batch in batches:
        try:
            prepare(batch, _MESSAGE_BYTES_MAX)
        except BadRow as error:
            raise ConfigError(f"row {error.row} {ROW_REFUSED}: {error.why}") from None
    yield from ()


@contextmanager
def _as_session(module: Any, session: Replayed) -> Iterator[None]:
    """Give a definition file another session; if it does not name its session `spark`, this does not work, and no row is found."""
    before = module.__dict__.get(SESSION)
    module.__dict__[SESSION] = session
    try:
        yield
    finally:
        module.__dict__[SESSION] = before


@contextmanager
def _pushed_down(spark: SparkSession) -> Iterator[None]:
    """Read a few rows of a topic without the rest of it."""
    before = spark.conf.get(_PUSHDOWN, "false") or "false"
    spark.conf.set(_PUSHDOWN, "true")
    try:
        yield
    finally:
        spark.conf.set(_PUSHDOWN, before)

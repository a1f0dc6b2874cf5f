"""What goes wrong in Spark itself: tasks that fail, retention, lost checkpoints; and errors that say what to do, soon and first."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kappamq import Message
from kappamq.errors import DataLoss
from kappamq.spark.failures import our_error
from kappamq.testing import BrokerKit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ANSWER_S = 5.0


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=2)
    return kappamq_broker


def send(broker: BrokerKit, first: int, count: int) -> None:
    with broker.producer() as producer:
        for start in range(first, first + count, 10):
            messages = [
                Message("tea", b"%d" % n, tags="even" if n % 2 == 0 else "odd", keys=(f"k{n}",))
                for n in range(start, start + 10)
            ]
            producer.send_batch(messages)


class Stream:
    """A stream to Parquet files that is run until everything is read, again and again."""

    def __init__(self, spark: SparkSession, broker: BrokerKit, folder: Path) -> None:
        self._spark, self._broker = spark, broker
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda rows: rows, **options: str) -> None:
        given = {
            "nameservers": self._broker.nameserver,
            "topic": "tea",
            "columns": "queueId,queueOffset,body",
            **options,
        }
        rows = change(self._spark.readStream.format("kappamq").options(**given).load())
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start(str(self.table))
        assert query.awaitTermination(100)

    def numbers(self) -> list[int]:
        return sorted(int(row.body) for row in self._spark.read.parquet(str(self.table)).collect())

    def offset(self) -> Any:
        """What the last batch has in the checkpoint."""
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return json.loads(last.read_text().splitlines()[-1])


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the first attempt dies when it has rows in its hands."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for batch in batches:
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("this attempt fails")
        yield batch


@pytest.mark.timeout(300)
def test_a_stream_and_all_that_happens_to_it(spark: SparkSession, tea: BrokerKit, tmp_path: Path) -> None:
    """Exactly once over task failures and new queues; the group's lag is 0; lost messages are told, and told again in the checkpoint."""
    stream = Stream(spark, tea, tmp_path)
    send(tea, 0, 100)
    stream.run(lambda rows: rows.mapInArrow(failing_once, rows.schema), group="etl", minPartitions="4")
    assert stream.numbers() == list(range(100)), "every task failed once and was tried again"
    with tea.admin() as admin:
        progress = admin.consumer_progress("etl")
        admin.update_topic("tea", queues=4)
    assert sum(at.consumer_offset for at in progress.values()) == 100
    assert all(at.consumer_offset == at.broker_offset for at in progress.values())
    entries = stream.offset()["queues"].values()
    assert all({"next", "log", "crc", "bytes"} <= entry.keys() for entry in entries if entry["next"])

    send(tea, 100, 100)
    stream.run(maxMessagesPerTrigger="30")
    assert stream.numbers() == list(range(200))
    assert len(stream.offset()["queues"]) == 4

    send(tea, 200, 40)
    behind = {int(name[-1]): entry["next"] for name, entry in stream.offset()["queues"].items()}
    for queue_id, at in behind.items():
        tea.call(lambda broker, queue_id=queue_id, at=at: broker.kernel.set_queue_min("tea", queue_id, at + 3))
    with pytest.raises(Exception, match=r"messages .* are gone") as failure:
        stream.run()
    told = our_error(failure.value)
    assert isinstance(told, DataLoss), "a program can tell it from a wrong option"
    assert "deleted by retention" in str(told)
    stream.run(onDataLoss="skip")
    gaps = stream.offset()["gaps"].values()
    assert len(gaps) == 4
    assert all((gap["topic"], gap["count"], gap["to"] - gap["from"]) == ("tea", 3, 3) for gap in gaps)
    found = stream.numbers()
    assert len(found) == len(set(found)) == 240 - 12

    with pytest.raises(Exception, match="begin with a new checkpoint"):
        stream.run(tags="even")

    # Without its checkpoint it is a new stream, which begins where it is told to; into the same table it would read twice.
    shutil.rmtree(stream.checkpoint)
    shutil.rmtree(stream.table)
    stream.run()
    with tea.admin() as admin:
        there = sum(at.max_offset - at.min_offset for at in admin.topic_stats("tea").values())
    assert len(stream.numbers()) == len(set(stream.numbers())) == there


def test_filters_are_pushed_down(spark: SparkSession, tea: BrokerKit) -> None:
    """The same rows with and without, and fewer tasks, for fewer queues are read."""
    send(tea, 0, 200)
    given = {"nameservers": tea.nameserver, "topic": "tea", "minPartitions": "2"}
    rows = spark.read.format("kappamq").options(**given).load()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("kappamq").options(**given).load()
        for condition, count in {
            "queueId = 0 and queueOffset >= 10 and queueOffset < 15": 5,
            "tags = 'even' and storeTimestamp > timestamp'2020-01-01 00:00:00'": 100,
            "storeTimestamp > timestamp'2100-01-01 00:00:00'": 0,
            "keys in ('k7', 'k8', 'none')": 2,
        }.items():
            assert pushed.where(condition).count() == count, condition
        assert pushed.where("queueId = 0 and queueOffset = 10").rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert rows.where("keys in ('k7', 'k8', 'none')").count() == 2


# --- what is wrong is told: what, and what to do, within 5 seconds, before any Java stack ---


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """Somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a record whose length and body are lies."""
    folder = tmp_path_factory.mktemp("hostile")
    with BrokerKit(data=folder) as broker, broker.producer() as producer:
        for number in range(20):
            producer.send(Message("tea", b"x" * 100 + b"%d" % number))
    path = folder / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 100 + b"10")
    data[at - 4 : at] = b"\x7f\xff\xff\xff"
    data[at : at + 50] = b"\xda\xa3\x20\xa7" * 12 + b"\x00\x01"
    path.write_bytes(data)
    return folder


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "misspelt": ({"topik": "tea"}, "unknown option 'topik' (did you mean topic?)"),
    "unknown topic": ({"topic": "te"}, "topic 'te' does not exist (did you mean tea?)"),
    "nobody": ({"nameservers": "127.0.0.1:1"}, "127.0.0.1:1"),
    "silence": ({"nameservers": "<silent>"}, "<silent>"),
    "schema": ({"schema": "body string"}, "column body is binary, not string"),
    "no column": ({"schema": "bodi binary"}, "unknown column 'bodi' (did you mean body?)"),
    "damage": ({"format": "kappamq.store", "path": "<hostile>"}, "bytes "),
}


CASES = [
    *(("batch", what) for what in WRONG),
    *(("stream", what) for what in ("unknown topic", "silence", "schema")),
    *(("write", what) for what in ("misspelt", "unknown topic", "nobody", "silence")),
    *(("write stream", what) for what in ("unknown topic", "nobody")),
]


@pytest.fixture(scope="module")
def usual(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How many seconds a query takes that is right, on this machine, now."""
    with BrokerKit() as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        return {
            kind: _seconds(lambda kind=kind: _query(spark, kind, broker.nameserver, tmp_path_factory.mktemp(kind)))
            for kind in ("batch", "stream", "batch", "write", "write stream")
        }


def _query(spark: SparkSession, kind: str, nameserver: str, checkpoint: Path, **options: str) -> None:
    if kind.startswith("write"):
        _write(spark, kind, checkpoint, {"nameservers": nameserver, "topic": "tea"} | options)
        return
    name, schema = options.pop("format", "kappamq"), options.pop("schema", None)
    given = {"nameservers": nameserver, "topic": "tea"} | options if name == "kappamq" else options
    reader: Any = (spark.read if kind == "batch" else spark.readStream).format(name).options(**given)
    rows = (reader if schema is None else reader.schema(schema)).load()
    if kind == "batch":
        rows.collect()
    else:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(100)


def _write(spark: SparkSession, kind: str, checkpoint: Path, options: dict[str, str]) -> None:
    if kind == "write":
        rows = spark.range(3).selectExpr("cast(id as string) body")
        rows.write.format("kappamq").options(**options).mode("append").save()
        return
    folder = checkpoint.with_name(f"{checkpoint.name}-lines")
    folder.mkdir()
    (folder / "lines").write_text("one\ntwo\n")
    lines = spark.readStream.text(str(folder)).selectExpr("value body")
    writer = lines.writeStream.format("kappamq").options(**options).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(100)


@pytest.mark.parametrize(("kind", "what"), CASES)
def test_what_is_wrong_is_told_soon(
    spark: SparkSession,
    tea: BrokerKit,
    silent: str,
    hostile: Path,
    usual: dict[str, float],
    tmp_path: Path,
    kind: str,
    what: str,
) -> None:
    given, told = WRONG[what]
    options = {
        name: value.replace("<silent>", silent).replace("<hostile>", str(hostile)) for name, value in given.items()
    }
    sentence = told.replace("<silent>", silent)
    # What Spark itself takes on this machine is not ours, and a busy moment is nobody's fault: the best of three counts.
    for number in range(3):
        with pytest.raises(Exception) as failure:
            _seconds(lambda number=number: _query(spark, kind, tea.nameserver, tmp_path / str(number), **options))
        took: float = failure.value.took  # type: ignore[attr-defined]
        print(f"{kind}, {what}: {took:.1f} s; one that is right: {usual[kind]:.1f} s")
        if took < ANSWER_S + 2 * usual[kind]:
            break
    else:
        pytest.fail(f"it took {took:.1f} s and more, three times")
    text = str(failure.value)
    assert sentence in text
    assert sentence in str(our_error(failure.value))
    java = text.find("\tat org.apache")
    assert java < 0 or text.index(sentence) < java
    assert 'File "' not in text[: text.index(sentence)], "no lines of Python before it"


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    try:
        work()
    except Exception as error:
        error.took = time.monotonic() - began  # type: ignore[attr-defined]
        raise
    return time.monotonic() - began

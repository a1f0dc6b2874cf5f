"""Topics to Parquet: each message once, whatever happens, for every kind of reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kappamq import Message
from kappamq.errors import ConfigError, DataLoss
from kappamq.message import MessageQueue
from kappamq.spark.jobs import archive
from kappamq.spark.jobs.archive import ArchiveFailed, check
from kappamq.spark.jobs.archive_folder import ArchiveFolder, Manifest
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import Gap, QueueRange
from kappamq.spark.topic.streaming import StreamReader
from kappamq.testing import BrokerKit
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q = MessageQueue("tea", "a", 0)


# --- what verification sees ---


def offsets(*numbers: int) -> list[Any]:
    return [np.array(numbers, np.int64)]


def never(missing: Sequence[QueueRange]) -> list[Gap]:
    raise AssertionError("nothing is missing: nobody has to be asked")


def readable(missing: Sequence[QueueRange]) -> list[Gap]:
    return []


def test_exactly_the_range_is_right() -> None:
    assert check([QueueRange(Q, 3, 7)], {Q: [*offsets(5, 6), *offsets(3, 4)]}, never) == []


@pytest.mark.parametrize(
    "written",
    [offsets(3, 4, 5), offsets(3, 4, 5, 5), offsets(3, 4, 5, 7), offsets(2, 3, 4, 5, 6), offsets(3, 4, 5, 6, 6), []],
)
def test_anything_else_is_not(written: list[Any]) -> None:
    with pytest.raises(ArchiveFailed, match="run it again"):
        check([QueueRange(Q, 3, 7)], {Q: written} if written else {}, readable)


def test_a_queue_that_nobody_asked_for() -> None:
    with pytest.raises(ArchiveFailed, match="unexpected messages were written"):
        check([], {Q: offsets(1)}, never)


def test_only_what_cannot_be_read_may_be_missing() -> None:
    """In the middle, too: a queue with one damaged message can be archived."""
    damaged = Gap(Q, 4, 6, "damaged")
    asked: list[QueueRange] = []

    def lost(missing: Sequence[QueueRange]) -> list[Gap]:
        asked.extend(missing)
        return [damaged]

    assert check([QueueRange(Q, 3, 9)], {Q: offsets(3, 6, 7, 8)}, lost) == [damaged]
    assert asked == [QueueRange(Q, 4, 6)]
    with pytest.raises(
        ArchiveFailed, match=r"1 of 6 messages were not written, though the broker has them, among them 7"
    ):
        check([QueueRange(Q, 3, 9)], {Q: offsets(3, 6, 8)}, lost)
    assert asked[1:] == [QueueRange(Q, 4, 6), QueueRange(Q, 7, 8)]


# --- with Spark ---


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=3)
        admin.create_topic("coffee", queues=1)
    return kappamq_broker


def send(broker: BrokerKit, first: int, count: int, topic: str = "tea") -> None:
    with broker.producer() as producer:
        for start in range(first, first + count, 25):
            stop = min(start + 25, first + count)
            producer.send_batch([Message(topic, b"cup %d" % n, keys=(f"k{n}",)) for n in range(start, stop)])


def damage(data: Path, text: bytes, delta: int, bits: int) -> None:
    """Change bits `delta` bytes behind where `text` begins in the log: at 4 in the body, at -84 in the magic number of its record."""
    path = data / "commitlog" / f"{0:020d}"
    at = path.read_bytes().index(text) + delta
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ bits]))


def seen(root: Path) -> Counter[tuple[str, bytes]]:
    """As DuckDB, pandas and pyarrow see it, which agree."""
    import duckdb
    import pandas
    import pyarrow.dataset as datasets

    table = datasets.dataset(root, partitioning="hive").to_table()
    found = Counter(zip(table["topic"].to_pylist(), table["body"].to_pylist(), strict=True))
    rows = duckdb.sql(
        f"select topic, body from read_parquet('{root}/**/*.parquet', hive_partitioning = true)"
    ).fetchall()
    assert Counter((topic, bytes(body)) for topic, body in rows) == found
    frame = pandas.read_parquet(root)
    assert Counter(zip(frame["topic"].astype(str), frame["body"], strict=True)) == found
    return found


def cups(first: int, count: int, topic: str = "tea") -> Counter[tuple[str, bytes]]:
    return Counter((topic, b"cup %d" % n) for n in range(first, first + count))


@pytest.mark.spark
def test_each_message_once(spark: SparkSession, tea: BrokerKit, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    send(tea, 0, 250)
    send(tea, 0, 10, "coffee")
    told: list[tuple[int, int]] = []
    given = {"nameservers": tea.nameserver, "topics": ["tea", "coffee"], "group": "archive"}
    first = archive(spark, root, **given, round_rows=100, progress=lambda *at: told.append(at))
    assert (first.rows, first.rounds) == (260, 3)
    assert told == [(0, 260), (100, 260), (200, 260), (260, 260)]
    assert sum(rows.rows for rows in first.queues.values()) == 260
    assert {rows.start for rows in first.queues.values()} == {0}
    assert seen(root) == cups(0, 250) + cups(0, 10, "coffee")
    (day,) = {path.name for path in root.iterdir() if path.name.startswith("day=")}
    assert sorted(path.name for path in (root / day).iterdir()) == ["topic=coffee", "topic=tea"]
    # Times are moments, not Spark's old 96-bit numbers that nobody else takes for UTC.
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(next(root.rglob("*.parquet")))
    assert str(schema.field("storeTimestamp").type) == "timestamp[us, tz=UTC]"
    with tea.admin() as admin:
        progress = admin.consumer_progress("archive")
    assert sum(at.broker_offset - at.consumer_offset for at in progress.values()) == 0

    # Again: nothing new. Then new messages, and a queue more.
    assert archive(spark, root, **given).rows == 0
    with tea.admin() as admin:
        admin.update_topic("tea", queues=5)
    send(tea, 250, 300)
    again = archive(spark, root, **given)
    assert (again.rows, again.rounds) == (300, 1)
    assert {queue.queue_id for queue in again.queues} == {0, 1, 2, 3, 4}
    assert seen(root) == cups(0, 550) + cups(0, 10, "coffee")


@pytest.mark.spark
def test_a_queue_that_lost_messages_is_told(spark: SparkSession, tea: BrokerKit, tmp_path: Path) -> None:
    send(tea, 0, 50)
    given = {"nameservers": tea.nameserver, "topics": ["tea"]}
    archive(spark, tmp_path / "archive", **given)
    # Other messages at the same offsets, as after a power cut that took the tail.
    (manifest,) = (tmp_path / "archive" / "_kappamq").glob("*.json")
    written = json.loads(manifest.read_text())
    for queue in written["position"]["queues"].values():
        if "crc" in queue:
            queue["crc"] ^= 1
    manifest.write_text(json.dumps(written))
    send(tea, 50, 30)
    with pytest.raises(DataLoss, match="truncated or recreated"):
        archive(spark, tmp_path / "archive", **given)
    skipped = archive(spark, tmp_path / "archive", **given, on_data_loss="skip")
    assert skipped.rows == 30
    assert "truncated or recreated" in skipped.gaps[0]
    assert seen(tmp_path / "archive") == cups(0, 80)


@pytest.mark.spark
def test_a_damaged_message_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing that was damaged is archived and called verified; the rest is, and the archive goes on behind it."""
    with BrokerKit(data=tmp_path / "data") as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        send(broker, 0, 50)
        damage(tmp_path / "data", b"cup 17", 4, 0x01)
        damage(tmp_path / "data", b"cup 31", -84, 0x01)
        given = {"nameservers": broker.nameserver, "topics": ["tea"]}
        with pytest.raises(DataLoss, match="messages 17 to 17 are gone"):
            archive(spark, tmp_path / "archive", **given)
        done = archive(spark, tmp_path / "archive", **given, on_data_loss="skip")
        assert done.rows == 48
        assert [gap.partition(": ")[2].partition(" are gone")[0] for gap in done.gaps] == [
            "messages 17 to 17",
            "messages 31 to 31",
        ]
        assert seen(tmp_path / "archive") == cups(0, 50) - cups(17, 1) - cups(31, 1)


def test_a_run_that_only_finds_a_loss_records_it(tea: BrokerKit, tmp_path: Path) -> None:
    """There is nothing to write, so it needs no Spark."""
    send(tea, 0, 50)
    options = ReadOptions.parse({"nameservers": tea.nameserver, "topic": "tea"})
    stream = StreamReader(options, ("body",))
    position = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    shorter = next(queue for queue in position["queues"].values() if queue["next"])
    shorter["next"] += 1000  # as if the queue had been longer when it was archived
    with ArchiveFolder(tmp_path / "archive") as folder:
        first = Manifest(round=1, made_ms=1, staged=folder.begin().name, queues=(), files=(), position=position)
        folder.commit(first)
    given: dict[str, Any] = {"nameservers": tea.nameserver, "topics": ["tea"], "on_data_loss": "skip"}
    done = archive(None, tmp_path / "archive", **given)  # type: ignore[arg-type]
    assert (done.rounds, done.rows, len(done.gaps)) == (1, 0, 1)
    assert "its tail is lost" in done.gaps[0]
    assert archive(None, tmp_path / "archive", **given).rounds == 0  # type: ignore[arg-type]


def test_queues_of_a_broker_that_is_away_are_told(tea: BrokerKit, tmp_path: Path) -> None:
    send(tea, 0, 50)
    stream = StreamReader(ReadOptions.parse({"nameservers": tea.nameserver, "topic": "tea"}), ("body",))
    position = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for name in ("tea/away/0", "coffee/away/0"):
        position["queues"][name] = {"next": 5}
    with ArchiveFolder(tmp_path / "archive") as folder:
        folder.commit(Manifest(round=1, made_ms=1, staged=folder.begin().name, queues=(), files=(), position=position))
    done = archive(None, tmp_path / "archive", nameservers=tea.nameserver, topics=["tea"])  # type: ignore[arg-type]
    assert (done.rounds, done.away) == (0, [MessageQueue("tea", "away", 0)]), "coffee is not asked for"
    done = archive(None, tmp_path / "archive", nameservers=tea.nameserver, topic_pattern="t.*")  # type: ignore[arg-type]
    assert done.away == [MessageQueue("tea", "away", 0)]


KILLED = """
import sys
from pathlib import Path
from kappamq.spark.engine import session
from kappamq.spark.jobs import archive
spark = session("local[2]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
archive(spark, sys.argv[1], nameservers=sys.argv[2], topics=["tea"], round_rows=100)
print("finished before it was killed")
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_killed_in_the_middle(spark: SparkSession, tea: BrokerKit, tmp_path: Path) -> None:
    """kill -9 of the driver and everything below it while a round is being written or moved: every message is there once."""
    root, staging = tmp_path / "archive", tmp_path / ".archive.staging"
    send(tea, 0, 1000)
    job = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), tea.nameserver],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        # os.walk passes over folders that the job removes meanwhile; rglob fails.
        eventually(
            lambda: (
                list((root / "_kappamq").glob("round-*2.json"))
                and any(name.endswith(".parquet") for _, _, names in os.walk(staging) for name in names)
            ),
            timeout=180,
        )
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        said, _ = job.communicate(timeout=30)
    assert said == b""
    before = seen(root)
    assert 100 <= before.total() < 1000
    assert set(before.values()) == {1}
    rest = archive(spark, root, nameservers=tea.nameserver, topics=["tea"])
    assert 0 < rest.rows <= 800
    assert seen(root) == cups(0, 1000)
    assert not staging.exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topics": ["te a"]}, "topic='te a'"),
        ({"topics": []}, "give either the option topic"),
        ({"topics": ["tea"], "on_data_loss": "ignore"}, "onDataLoss='ignore'"),
        ({"topics": ["tea"], "round_rows": 0}, "round_rows=0"),
        ({"topics": ["tea"], "target": "s3://bucket/x"}, "must be a directory"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    target = given.pop("target", tmp_path / "archive")
    with pytest.raises(ConfigError, match=told):
        archive(None, target, nameservers="127.0.0.1:1", **given)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []

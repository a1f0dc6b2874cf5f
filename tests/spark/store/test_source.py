"""The log as a table: every message once, from a running or stopped store, and damage is never silent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from kappamq import Message
from kappamq.errors import ConfigError, StoreDamaged, StoreError
from kappamq.spark.columns.schema import STORE_COLUMNS
from kappamq.spark.store.options import StoreOptions
from kappamq.spark.store.source import STRETCH_BYTES, KappaMQStore, LogTableReader, stretch_bytes
from kappamq.testing import BrokerKit

COUNT = 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 messages of two topics in 3 queues each, a delayed and an open transaction among them; the broker has stopped."""
    folder = tmp_path_factory.mktemp("store")
    with BrokerKit(
        data=folder, properties={"mappedFileSizeCommitLog": 256 << 10, "maxMessageSize": 64 << 10}
    ) as broker:
        fill(broker)
    return folder


def fill(broker: BrokerKit) -> None:
    with broker.admin() as admin:
        for topic in ("tea", "coffee"):
            admin.create_topic(topic, queues=3)
    with broker.producer() as producer:
        for first in range(0, COUNT, 100):
            for topic in ("tea", "coffee"):
                producer.send_batch([Message(topic, b"%d" % n, tags=topic) for n in range(first, first + 100, 2)])
        producer.send(Message("tea", b"later", delay_level=18))


def rows(store: Path, columns: tuple[str, ...] = tuple(STORE_COLUMNS), **options: str) -> list[dict[str, Any]]:
    reader = LogTableReader(StoreOptions.parse({"path": str(store), **options}), columns)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize("tasks", ["1", "7", "100"])
def test_every_message_once(store: Path, tasks: str) -> None:
    found = rows(store, minPartitions=tasks)
    assert sorted((row["topic"], int(row["body"])) for row in found) == sorted(
        (topic, n) for topic in ("tea", "coffee") for n in range(0, COUNT, 2)
    )
    assert len({(row["topic"], row["queueId"], row["queueOffset"]) for row in found}) == COUNT
    assert [row["logOffset"] for row in found] == sorted(row["logOffset"] for row in found)
    assert all(row["damage"] is None for row in found)


def test_what_is_wanted_of_it(store: Path) -> None:
    assert len(rows(store, ("body",), topic="tea")) == COUNT // 2
    assert len(rows(store, ("body",), topicPattern="co.*", tags="coffee")) == COUNT // 2
    assert rows(store, ("body",), topic="tea", tags="coffee") == []
    assert {"SCHEDULE_TOPIC_XXXX", "rmq_sys_kappamq_metadata"} <= {row["topic"] for row in rows(store, system="true")}
    assert [row["body"] for row in rows(store, topic="SCHEDULE_TOPIC_XXXX")] == [b"later"]


def test_a_running_store_is_read_as_far_as_it_is_visible(tmp_path: Path) -> None:
    with BrokerKit(
        data=tmp_path / "data", properties={"mappedFileSizeCommitLog": 256 << 10, "maxMessageSize": 64 << 10}
    ) as broker:
        fill(broker)
        found = rows(tmp_path / "data")
        assert len(found) <= COUNT
        assert {(row["topic"], int(row["body"])) for row in found} <= {
            (topic, n) for topic in ("tea", "coffee") for n in range(0, COUNT, 2)
        }


def copied(store: Path, folder: Path) -> Path:
    import shutil

    shutil.copytree(store, folder)
    return folder


def test_damage_is_an_error_or_a_row(store: Path, tmp_path: Path) -> None:
    broken = copied(store, tmp_path / "broken")
    victims = [row for row in rows(store) if row["topic"] == "tea"][100:900:400]
    for row, at in zip(victims, (0, 86), strict=True):  # the size of one record, the body length of another
        place = row["logOffset"] + at
        path = broken / "commitlog" / f"{place // (256 << 10) * (256 << 10):020d}"
        data = bytearray(path.read_bytes())
        data[place % (256 << 10)] ^= 0x40
        path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=f"bytes {victims[0]['logOffset']} to .*`kappamq store verify`"):
        rows(broken)
    found = rows(broken, onDamage="rows")
    good = [row for row in found if row["damage"] is None]
    bad = [row for row in found if row["damage"] is not None]
    assert [row["logOffset"] for row in bad] == [row["logOffset"] for row in victims]
    assert [row["size"] for row in bad] == [row["size"] for row in victims], "its neighbours are not lost with it"
    assert len(good) == COUNT - 2
    assert all(row["topic"] is None for row in bad)


def test_a_body_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    with BrokerKit(data=tmp_path / "data") as broker, broker.producer() as producer:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        producer.send(Message("tea", b"first"))
    (first,) = [row for row in rows(tmp_path / "data") if row["body"] == b"first"]
    path = tmp_path / "data" / "commitlog" / f"{0:020d}"
    inner = path.read_bytes()[first["logOffset"] : first["logOffset"] + first["size"]]
    with BrokerKit(data=tmp_path / "data") as broker, broker.producer() as producer:
        producer.send(Message("tea", inner * 50))
        producer.send(Message("tea", b"last"))
    found = rows(tmp_path / "data", minPartitions="50")
    assert [row["body"] for row in found] == [b"first", inner * 50, b"last"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": ""}, "no store is given"),
        ({"tpic": "x"}, "unknown option 'tpic'"),
        ({"onDamage": "ignore"}, "must be fail"),
        ({"system": "yes"}, "must be true or false"),
        ({"columns": "logOfset"}, r"unknown column 'logOfset' \(did you mean logOffset\?\)"),
    ],
)
def test_wrong_options_are_named(store: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        StoreOptions.parse({"path": str(store), **options})


def test_a_folder_that_is_no_store() -> None:
    with pytest.raises(StoreError, match="/nowhere is not a data directory"):
        StoreOptions.parse({"path": "/nowhere"})


def test_a_damaged_queue_entry_is_no_damage_of_the_log(store: Path, tmp_path: Path) -> None:
    """Where a task begins is taken from queue entries: one that names the wrong place must not be believed."""
    broken = copied(store, tmp_path / "broken")
    options = StoreOptions.parse({"path": str(broken), "minPartitions": "7"})
    cuts = {task.stretch.start for task in LogTableReader(options, ("body",)).partitions()}
    good = rows(broken)
    victims = [row for row in good if row["logOffset"] in cuts and row["logOffset"] % (256 << 10)]
    assert victims
    for row in victims:
        path = broken / "consumequeue" / row["topic"] / str(row["queueId"]) / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[row["queueOffset"] * 20 + 7] ^= 32
        path.write_bytes(data)
    assert rows(broken, minPartitions="7") == good


@pytest.mark.parametrize(
    ("stretches", "at_least", "count"),
    [(0.1, 1, 1), (0.3, 1, 2), (1, 1, 2), (2.8, 1, 4), (17, 1, 18), (2.8, 5, 5), (0.1, 5, 5)],
)
def test_stretches_are_equal(stretches: float, at_least: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    total = int(stretches * STRETCH_BYTES)
    size = stretch_bytes(total, at_least)
    assert size <= STRETCH_BYTES
    assert -(-total // size) == count


def test_an_empty_log_has_a_stretch_size() -> None:
    assert stretch_bytes(0, 1) == 1


def test_columns_may_be_declared_as_never_null(store: Path) -> None:
    """Not those that a message may lack; and of a damaged stretch only its place is known."""
    body = StructType().add("body", "binary", nullable=False)
    reader = KappaMQStore({"path": str(store)}).reader(body)
    batch = next(batch for task in reader.partitions() for batch in reader.read(task))
    assert not batch.schema.field("body").nullable
    rows_of_damage = KappaMQStore({"path": str(store), "onDamage": "rows"})
    rows_of_damage.reader(StructType().add("logOffset", "long", nullable=False))
    with pytest.raises(ConfigError, match="column body may be null here: declare it without NOT NULL"):
        rows_of_damage.reader(body)


def test_what_the_format_cannot_do_is_said_in_our_words(store: Path) -> None:
    source = KappaMQStore({"path": str(store)})
    schema = StructType().add("body", "binary")
    with pytest.raises(ConfigError, match=r"for batch reads: use spark\.read"):
        source.streamReader(schema).initialOffset()
    for write in (source.writer, source.streamWriter):
        with pytest.raises(ConfigError, match="only reads: write to the topic with the format kappamq"):
            write(schema, False)

"""Rows become messages: each once if nothing fails, in the queue they ask for, and a row that cannot be one is named."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kappamq.errors import ConfigError, IllegalMessage, NoSuchTopic, NotConnected
from kappamq.spark import connection, patience
from kappamq.spark.sink.options import WriteOptions
from kappamq.spark.sink.sink import LATER_IN_FLIGHT, BatchWriter, StreamWriter, write_rows
from kappamq.spark.topic import topics
from kappamq.testing import BrokerKit
from tests.spark.sink.test_outbox import FakeProducer

KEYS = pa.list_(pa.string())
MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=4)
        admin.create_topic("coffee", queues=2)
    return kappamq_broker


def write(broker: BrokerKit, /, **columns: Any) -> int:
    batch = pa.record_batch(columns)
    half = batch.num_rows // 2
    options = WriteOptions(nameservers=broker.nameserver, topic=None if "topic" in columns else "tea")
    return write_rows(options, iter([batch.slice(0, half), batch.slice(half)])).rows


def test_all_rows_with_everything(tea: BrokerKit) -> None:
    count = 3000
    written = write(
        tea,
        body=[b"cup %d" % n for n in range(count)],
        keys=pa.array([[f"k{n}", "all"] if n % 2 else None for n in range(count)], pa.list_(pa.string())),
        tags=["green" if n % 3 else None for n in range(count)],
        properties=pa.array([[("n", str(n)), ("UNIQ_KEY", "old")] for n in range(count)], MAP),
    )
    assert written == count
    messages = {message.body: message for message in tea.messages("tea")}
    assert len(messages) == len(tea.messages("tea")) == count
    assert len({message.message_id for message in messages.values()}) == count
    for n in range(count):
        message = messages[b"cup %d" % n]
        assert message.keys == ((f"k{n}", "all") if n % 2 else ())
        assert (message.tags, message.properties["n"]) == ("green" if n % 3 else "", str(n))


def test_texts_topics_and_queues(tea: BrokerKit) -> None:
    write(tea, body=["ä", "b", "c"], topic=["tea", "coffee", "tea"], queueId=pa.array([3, 1, 0], pa.int32()))
    found = {(m.topic, m.queue.queue_id, m.text) for topic in ("tea", "coffee") for m in tea.messages(topic)}
    assert found == {("tea", 3, "ä"), ("coffee", 1, "b"), ("tea", 0, "c")}


def test_rows_of_a_sharding_key_keep_their_order(tea: BrokerKit) -> None:
    write(tea, body=[f"{n % 7} {n}" for n in range(4000)], shardingKey=[f"customer {n % 7}" for n in range(4000)])
    queues: dict[str, set[int]] = {}
    for queue_id in range(4):
        seen: dict[str, int] = {}
        for message in sorted(tea.messages("tea"), key=lambda message: message.queue_offset):
            if message.queue.queue_id != queue_id:
                continue
            customer, number = message.text.split()
            queues.setdefault(customer, set()).add(queue_id)
            assert seen.get(customer, -1) < int(number)
            seen[customer] = int(number)
    assert len(queues) == 7
    assert all(len(found) == 1 for found in queues.values())


def test_delayed_rows(tea: BrokerKit) -> None:
    later = datetime.datetime.fromtimestamp(tea.clock.message_ms() / 1000 + 3600, datetime.UTC)
    write(
        tea,
        body=["now", "level", "time"],
        delayLevel=pa.array([None, 5, 0], pa.int32()),
        deliverAt=pa.array([None, None, later], pa.timestamp("us", "UTC")),
        properties=pa.array([None, [("a", "b")], None], MAP),
    )
    assert tea.bodies("tea") == [b"now"]
    tea.clock.advance("1m")
    assert set(tea.bodies("tea")) == {b"now", b"level"}
    tea.clock.advance("1h")
    assert set(tea.bodies("tea")) == {b"now", b"level", b"time"}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"body": [b"a", None]}, "row 1 of this task cannot be a message: its body is null"),
        ({"body": [b"a", b"b", b""]}, "row 2 .* its body is empty"),
        ({"body": ["x" * (4 << 20) + "x"]}, "row 0 .* more than 4194304 bytes"),
        (
            {"body": ["a", "x" * (4 << 20)]},
            "row 1 .* takes 4194378 bytes with its properties, and the limit is 4194304",
        ),
        ({"body": [b"a"], "properties": pa.array([[("x", "")]], MAP)}, "row 0 .* empty name or value"),
        ({"body": [b"a", b"b"], "tags": ["ok", "a\2b"]}, "row 1 .* separator"),
        ({"body": [b"a"], "queueId": pa.array([9], pa.int32())}, "row 0 .* tea has no queue 9"),
        ({"body": [b"a", b"b"], "keys": pa.array([["x"], ["a", None]], KEYS)}, "row 1 .* a null is among its keys"),
        (
            {"body": [b"a"], "keys": pa.array([["a", None]], KEYS), "delayLevel": pa.array([3], pa.int32())},
            "row 0 .* a null is among its keys",
        ),
        (
            {"body": [b"a"], "queueId": pa.array([0], pa.int32()), "brokerName": ["nobody"]},
            "no queue 0 on broker nobody",
        ),
    ],
)
def test_a_bad_row_is_named(tea: BrokerKit, columns: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        write(tea, **columns)


def test_a_topic_that_does_not_exist_is_refused(tea: BrokerKit) -> None:
    """Brokers that create topics by themselves would make one of every misspelt name."""
    options = WriteOptions(nameservers=tea.nameserver, topic="teas")
    told = r"topic 'teas' does not exist \(did you mean tea\?\): create it with `kappamq topic create teas`"
    for columns in ({}, {"delayLevel": pa.array([1], pa.int32())}):
        with pytest.raises(NoSuchTopic, match=told):
            write_rows(options, iter([pa.record_batch({"body": [b"a"], **columns})]))
    with pytest.raises(NoSuchTopic, match="'milk'"):
        write(tea, body=[b"a", b"b"], topic=["milk", "milk"])
    with tea.admin() as admin:
        assert {"teas", "milk"}.isdisjoint(admin.topics())
        admin.create_topic("teas", queues=1)
    assert write_rows(options, iter([pa.record_batch({"body": [b"a"]})])).rows == 1


def test_a_topic_that_was_deleted_is_not_made_again() -> None:
    """Though this process has written to it before."""
    with BrokerKit(properties={"autoCreateTopicEnable": True}) as broker, broker.admin() as admin:
        admin.create_topic("bills", queues=1)
        options = WriteOptions(nameservers=broker.nameserver, topic="bills")
        assert write_rows(options, iter([pa.record_batch({"body": [b"x"]})])).rows == 1
        admin.delete_topic("bills")
        with pytest.raises(NoSuchTopic, match="topic 'bills' does not exist"):
            write_rows(options, iter([pa.record_batch({"body": [b"y"]})]))
        assert "bills" not in admin.topics()


def test_a_task_asks_once_for_each_topic(tea: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(topics, "check_exists", lambda _nameservers, topic, _tls: asked.append(topic))
    batch = pa.record_batch({"body": [b"a"]})
    write_rows(WriteOptions(nameservers=tea.nameserver, topic="tea"), iter([batch] * 3))
    assert asked == ["tea"]


def test_rows_that_name_a_broker_go_to_its_queues(tea: BrokerKit) -> None:
    with tea.producer() as producer:
        queues = producer.queues("tea")
    (name,) = {queue.broker for queue in queues}
    count = 5 * len(queues)
    write(tea, body=[b"%d" % number for number in range(count)], brokerName=[name] * count)
    assert Counter(message.queue.queue_id for message in tea.messages("tea")) == {queue.queue_id: 5 for queue in queues}
    write(tea, body=[b"k"] * 3, brokerName=[name] * 3, shardingKey=["same"] * 3)
    assert len({message.queue.queue_id for message in tea.messages("tea") if message.body == b"k"}) == 1
    for more in ({}, {"shardingKey": ["same"]}, {"delayLevel": pa.array([3], pa.int32())}):
        with pytest.raises(ConfigError, match=f"tea has no queue on broker away that can be written; it has on {name}"):
            write(tea, body=[b"lost"], brokerName=["away"], **more)


def test_a_row_without_a_topic_is_named(tea: BrokerKit) -> None:
    with pytest.raises(ConfigError, match=r"row 1 .* its topic is null"):
        write(tea, body=[b"a", b"b"], topic=["tea", None])


def test_keys_of_an_array_that_cannot_hold_nulls(tea: BrokerKit) -> None:
    """Spark's array(lit('a')) has this type."""
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    write(tea, body=["x"], keys=pa.array([["a", "b"]], kind))
    (message,) = tea.messages("tea")
    assert message.keys == ("a", "b")


class SlowProducer(FakeProducer):
    """Nothing arrives before somebody waits for it."""

    inner = SimpleNamespace(config=SimpleNamespace(message_bytes_max=4 << 20))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowProducer:
    producer = SlowProducer()
    monkeypatch.setattr(connection, "producer", lambda *_, **__: producer)
    monkeypatch.setattr(topics, "check_exists", lambda *_: None)
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=lambda _seconds: None, monotonic=lambda: 0.0))
    return producer


def write_later(count: int) -> int:
    levels = pa.array([3] * count, pa.int32())
    batch = pa.record_batch({"body": [b"%d" % n for n in range(count)], "delayLevel": levels})
    return write_rows(WriteOptions(nameservers="127.0.0.1:1", topic="tea"), iter([batch])).rows


def test_delayed_rows_are_sent_a_few_at_a_time(slow: SlowProducer) -> None:
    assert write_later(1000) == len(slow.sent) == 1000
    assert slow.open_most <= LATER_IN_FLIGHT
    assert slow.under_way() == 0


def test_a_delayed_row_that_fails_for_now_is_sent_again(slow: SlowProducer) -> None:
    slow.failures = [NotConnected("away"), NotConnected("still away")]
    assert write_later(10) == 10
    assert len(slow.sent) == 12


def test_a_task_that_fails_leaves_nothing_on_its_way(slow: SlowProducer) -> None:
    slow.failures = [IllegalMessage("too large")]
    with pytest.raises(IllegalMessage):
        write_later(50)
    assert len(slow.sent) == 50
    assert slow.under_way() == 0


def test_the_largest_row_that_a_batch_can_hold(tea: BrokerKit) -> None:
    largest = (4 << 20) - 22 - len("UNIQ_KEY\1") - 32 - len("\2") - len("WAIT\1true\2")
    write(tea, body=[b"x" * largest, b"small"])
    assert sorted(map(len, tea.bodies("tea"))) == [5, largest]
    with pytest.raises(ConfigError, match="takes 4194305 bytes"):
        write(tea, body=[b"x" * (largest + 1)])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience.time, "sleep", lambda _seconds: pytest.fail("it waited"))


@pytest.mark.parametrize("topic", ["tea", None])
def test_an_address_where_nobody_answers_is_told_before_the_tasks(
    impatient: None, tmp_path: Path, topic: str | None
) -> None:
    """They would wait two minutes for it."""
    options = WriteOptions(nameservers="127.0.0.1:1", topic=topic)
    for start in (lambda: BatchWriter(options), lambda: StreamWriter(options, tmp_path.as_uri())):
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1"):
            start()


def test_a_topic_that_does_not_exist_is_told_before_the_tasks(tea: BrokerKit, tmp_path: Path) -> None:
    options = WriteOptions(nameservers=tea.nameserver, topic="teas")
    for start in (lambda: BatchWriter(options), lambda: StreamWriter(options, str(tmp_path))):
        with pytest.raises(NoSuchTopic, match=r"did you mean tea\?"):
            start()
    BatchWriter(WriteOptions(nameservers=tea.nameserver))


def test_a_stream_that_has_written_waits_in_its_tasks(tmp_path: Path) -> None:
    """Its name server was there, and is restarting. So may be that of a checkpoint that cannot be looked at."""
    options = WriteOptions(nameservers="127.0.0.1:1", topic="tea")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    for checkpoint in (str(tmp_path), tmp_path.as_uri(), str(tmp_path / "elsewhere"), "hdfs://there/checkpoint", None):
        StreamWriter(options, checkpoint)
    (tmp_path / "commits" / "0").rename(tmp_path / "commits" / ".0.crc")
    with pytest.raises(NotConnected):
        StreamWriter(options, str(tmp_path))

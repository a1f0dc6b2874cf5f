"""What a task reads: exactly its ranges, and a gap is an error unless it may be passed over."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kappamq import Message
from kappamq.errors import Busy, DataLoss
from kappamq.message import MessageQueue, PulledBytes, PullStatus
from kappamq.protocol.records import compression
from kappamq.protocol.records.record import Record
from kappamq.spark import patience
from kappamq.spark.topic.options import OnDataLoss, ReadOptions
from kappamq.spark.topic.planning import QueueRange
from kappamq.spark.topic.reading import RangeReader
from kappamq.testing import BrokerKit


@pytest.fixture
def queue(kappamq_broker: BrokerKit) -> MessageQueue:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=1)
    with kappamq_broker.producer() as producer:
        producer.send_batch([Message("tea", b"%d" % n, tags="even" if n % 2 == 0 else "odd") for n in range(50)])
    with kappamq_broker.pull_consumer(group="look") as consumer:
        return consumer.queues("tea")[0]


def read(broker: BrokerKit, wanted: QueueRange, **options: str) -> list[int]:
    parsed = ReadOptions.parse({"nameservers": broker.nameserver, "topic": "tea", **options})
    batches = RangeReader(parsed, ("body",)).read([wanted])
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


def test_exactly_the_range(kappamq_broker: BrokerKit, queue: MessageQueue) -> None:
    assert read(kappamq_broker, QueueRange(queue, 10, 20)) == list(range(10, 20))
    assert read(kappamq_broker, QueueRange(queue, 0, 50), tags="even") == list(range(0, 50, 2))
    assert read(kappamq_broker, QueueRange(queue, 0, 50), filter="TAGS = 'odd'") == list(range(1, 50, 2))


@pytest.mark.parametrize("tags", ["*", "even || odd"])
def test_a_queue_that_ends_too_early_is_data_loss(
    kappamq_broker: BrokerKit, queue: MessageQueue, tags: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut took its tail between planning and reading."""
    with pytest.raises(DataLoss, match=r"messages 50 to 59 are gone .*its tail is lost"):
        read(kappamq_broker, QueueRange(queue, 40, 60), tags=tags)
    assert read(kappamq_broker, QueueRange(queue, 40, 60), tags=tags, onDataLoss="skip") == list(range(40, 50))
    assert "messages 50 to 59 are gone" in caplog.text


def test_a_slave_that_lags_behind_is_no_loss(
    kappamq_broker: BrokerKit, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers in place of its master, which has all 50; once it has caught up the read goes on."""
    records = [Record(topic="tea", body=b"%d" % n, queue_offset=n).encode() for n in range(50)]
    slave = RawClient(records[:30])
    pauses: list[float] = []

    def catch_up(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            slave.records = records

    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=catch_up, monotonic=lambda: sum(pauses)))
    reader = RangeReader(ReadOptions.parse({"nameservers": kappamq_broker.nameserver, "topic": "tea"}), ("body",))
    reader._client = slave  # type: ignore[assignment]
    batches = reader.read([QueueRange(queue, 0, 50)])
    assert [int(body) for batch in batches for body in batch.column("body").to_pylist()] == list(range(50))
    slave.records = records[:30]
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    with pytest.raises(Busy, match=r"has tea@.*/0 up to 30, its master has more"):
        list(reader.read([QueueRange(queue, 0, 50)]))


@pytest.mark.parametrize("tags", ["*", "even"])
def test_an_answer_that_leads_on_without_messages_is_a_gap(tags: str) -> None:
    """RocketMQ's OFFSET_FOUND_NULL: a file of the consume queue is missing, and the answer names the next one's first entry."""
    options = ReadOptions.parse({"nameservers": "127.0.0.1:1", "topic": "tea", "tags": tags})
    queue = MessageQueue("tea", "a", 0)

    class Client:
        def read_bytes(self, queue: MessageQueue, start: int, stop: int, **_: object) -> Iterator[PulledBytes]:
            yield PulledBytes(status=PullStatus.NO_NEW, next_offset=300, min_offset=0, max_offset=900, data=b"")

    for policy in OnDataLoss:
        reader = RangeReader(replace(options, on_data_loss=policy), ("body",))
        reader._client = Client()  # type: ignore[assignment]
        if policy is OnDataLoss.FAIL:
            with pytest.raises(DataLoss, match=r"messages 100 to 199 are gone \(the broker's queue has no entries"):
                list(reader.read([QueueRange(queue, 100, 200)]))
        else:
            assert list(reader.read([QueueRange(queue, 100, 200)])) == []
            assert [(gap.start, gap.stop) for gap in reader.gaps] == [(100, 200)]


def test_deleted_messages_are_an_error_or_a_line(
    kappamq_broker: BrokerKit, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    kappamq_broker.call(lambda broker: broker.kernel.set_queue_min("tea", 0, 30))
    with pytest.raises(DataLoss, match="messages 20 to 29 are gone"):
        read(kappamq_broker, QueueRange(queue, 20, 40))
    with caplog.at_level(logging.WARNING):
        assert read(kappamq_broker, QueueRange(queue, 20, 40), onDataLoss="skip") == list(range(30, 40))
    assert "messages 20 to 29 are gone" in caplog.text


@pytest.fixture
def cups(tmp_path: Path) -> Iterator[tuple[BrokerKit, MessageQueue]]:
    """A broker on a disk that a test can damage."""
    with BrokerKit(data=tmp_path) as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        with broker.producer() as producer:
            for n in range(20):
                producer.send(Message("tea", b"%012d" % n, tags="even" if n % 2 == 0 else "odd"))
        with broker.pull_consumer(group="look") as consumer:
            yield broker, consumer.queues("tea")[0]


def damage(data: Path, body: bytes, delta: int) -> None:
    path = data / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(body) + delta)
        old = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old ^ 1]))


@pytest.mark.parametrize("delta", [11, -84, -85, 12], ids=["body", "magic", "size", "topic length"])
def test_a_damaged_message_is_a_gap(tmp_path: Path, cups: tuple[BrokerKit, MessageQueue], delta: int) -> None:
    """Whether the broker sends it, or leaves it out because it cannot read it, alone or among others."""
    broker, queue = cups
    damage(tmp_path, b"%012d" % 10, delta)
    for first, last in ((0, 20), (10, 11)):
        with pytest.raises(DataLoss, match="messages 10 to 10 are gone"):
            read(broker, QueueRange(queue, first, last))
        assert read(broker, QueueRange(queue, first, last), onDataLoss="skip") == [
            n for n in range(first, last) if n != 10
        ]
    assert read(broker, QueueRange(queue, 0, 10)) == list(range(10))


def test_messages_with_other_tags_are_no_gap(tmp_path: Path, cups: tuple[BrokerKit, MessageQueue]) -> None:
    broker, queue = cups
    damage(tmp_path, b"%012d" % 10, 11)
    assert read(broker, QueueRange(queue, 0, 20), tags="odd") == list(range(1, 20, 2))
    with pytest.raises(DataLoss, match="messages 10 to 10 are gone"):
        read(broker, QueueRange(queue, 0, 20), tags="even")
    found = read(broker, QueueRange(queue, 0, 20), tags="even", onDataLoss="skip")
    assert found == [n for n in range(0, 20, 2) if n != 10]


class RawClient:
    """Sends stored bytes as they are, without a look at them, as RocketMQ's broker does."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self.records = records

    def read_bytes(
        self, queue: MessageQueue, start: int, stop: int, *, stripe: int = 4096, **_: object
    ) -> Iterator[PulledBytes]:
        stop = min(stop, len(self.records))
        for first in range(start, stop, min(stripe, 32)):
            last = min(first + min(stripe, 32), stop)
            data = b"".join(self.records[first:last])
            yield PulledBytes(status=PullStatus.FOUND, next_offset=last, min_offset=0, max_offset=50, data=data)


def test_records_that_end_nobody_knows_where_cost_only_themselves() -> None:
    records = [Record(topic="tea", body=b"%d" % n, queue_offset=n).encode() for n in range(50)]
    for wrong in (20, 21):
        records[wrong] = b"\x7f" + records[wrong][1:]
    options = ReadOptions.parse({"nameservers": "127.0.0.1:1", "topic": "tea", "onDataLoss": "skip"})
    reader = RangeReader(options, ("body",))
    reader._client = RawClient(records)  # type: ignore[assignment]
    batches = reader.read([QueueRange(MessageQueue("tea", "a", 0), 0, 50)])
    assert [int(body) for batch in batches for body in batch.column("body").to_pylist()] == [*range(20), *range(22, 50)]
    assert [(gap.start, gap.stop) for gap in reader.gaps] == [(20, 22)]


def test_a_body_that_cannot_be_unpacked_is_a_row(
    cups: tuple[BrokerKit, MessageQueue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any producer can send it: it must not stop the reader for ever."""
    broker, queue = cups
    monkeypatch.setattr(compression, "compress", lambda *_: b"7" * 4000)
    with broker.producer() as producer:
        producer.send(Message("tea", bytes(20_000)))
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        assert read(broker, QueueRange(queue, 18, 21)) == [18, 19, int(b"7" * 4000)]
    assert "the body of message 20, log offset" in caplog.text


@pytest.mark.parametrize("tags", ["*", "even"])
def test_reading_keeps_to_its_pace(kappamq_broker: BrokerKit, queue: MessageQueue, tags: str) -> None:
    with kappamq_broker.pull_consumer(group="look") as consumer:
        size = sum(len(answer.data) for answer in consumer.read_bytes(queue, 0, 25, tags=tags))
    options = {
        "nameservers": kappamq_broker.nameserver,
        "topic": "tea",
        "tags": tags,
        "maxBytesPerSecond": str(4 * size),
    }
    reader = RangeReader(ReadOptions.parse(options), ("body",))
    began = time.monotonic()
    for _ in reader.read([QueueRange(queue, 0, 25), QueueRange(queue, 25, 50)]):
        pass
    assert time.monotonic() - began > 0.24, "the second range waits until the first one is paid for"


def test_the_broker_compares_tags_first(kappamq_broker: BrokerKit, queue: MessageQueue) -> None:
    """What has the hash of another tag does not travel."""
    with kappamq_broker.pull_consumer(group="look") as consumer:
        everything = sum(len(answer.data) for answer in consumer.read_bytes(queue, 0, 50))
        some = sum(len(answer.data) for answer in consumer.read_bytes(queue, 0, 50, tags="even"))
        none = list(consumer.read_bytes(queue, 0, 50, tags="neither"))
    assert 0.4 < some / everything < 0.6
    assert not any(answer.data for answer in none)
    assert none[-1].next_offset == 50
    assert read(kappamq_broker, QueueRange(queue, 3, 9), tags="even") == [4, 6, 8]
    assert read(kappamq_broker, QueueRange(queue, 0, 50), tags="neither") == []

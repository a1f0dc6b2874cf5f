"""The stream reader, called as Spark calls it: exactly once, within limits, and losses are told."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from kappamq import Message
from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import Route
from kappamq.errors import ConfigError, DataLoss, NoRoute
from kappamq.message import MessageQueue
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.header import Header
from kappamq.spark import patience
from kappamq.spark.topic import streaming
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.source import BatchReader
from kappamq.spark.topic.streaming import StreamReader
from kappamq.testing import BrokerKit


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=3)
    return kappamq_broker


def reader(broker: BrokerKit, **options: str) -> StreamReader:
    return StreamReader(ReadOptions.parse({"nameservers": broker.nameserver, "topic": "tea", **options}), ["body"])


def send(broker: BrokerKit, first: int, count: int) -> None:
    with broker.producer() as producer:
        for number in range(first, first + count):
            producer.send(Message("tea", b"cup %d" % number), key=number)


def batch(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    # As Spark does it: offsets go through JSON, and a batch may be asked for again.
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    rows: list[bytes] = []
    for task in stream.partitions(start, end):
        for made in stream.read(task):
            rows += made.column("body").to_pylist()
    return rows


def step(
    stream: StreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> tuple[list[bytes], dict[str, Any]]:
    end = stream.latestOffset(start, limit or ReadAllAvailable())
    return batch(stream, start, end), end


def cups(first: int, count: int) -> list[bytes]:
    return sorted(b"cup %d" % number for number in range(first, first + count))


def test_each_message_once(tea: BrokerKit) -> None:
    send(tea, 0, 50)
    stream = reader(tea)
    start = stream.initialOffset()
    rows, end = step(stream, start)
    assert sorted(rows) == cups(0, 50)
    assert sorted(batch(reader(tea), start, end)) == cups(0, 50), "a batch that is run again has the same rows"
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    send(tea, 50, 30)
    again, after = step(reader(tea), end)
    assert sorted(again) == cups(50, 30)
    assert sorted(batch(reader(tea), start, end)) == cups(0, 50)
    assert step(reader(tea), after)[0] == []


def test_limits_are_shared_and_kept(tea: BrokerKit) -> None:
    send(tea, 0, 100)
    stream = reader(tea, maxMessagesPerTrigger="30")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    offset, seen, sizes = stream.initialOffset(), [], []
    for _ in range(10):
        rows, offset = step(stream, offset, limit)
        seen += rows
        sizes.append(len(rows))
    assert sorted(seen) == cups(0, 100)
    assert sizes[:4] == [30, 30, 30, 10]
    in_bytes = reader(tea, maxBytesPerTrigger="4000")
    assert in_bytes.getDefaultReadLimit() == ReadMaxBytes(4000)
    assert 3 <= len(step(in_bytes, in_bytes.initialOffset(), ReadMaxBytes(4000))[0]) <= 30


def test_available_now_ends_at_what_was_there(tea: BrokerKit) -> None:
    send(tea, 0, 10)
    stream = reader(tea)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    send(tea, 10, 10)
    rows, end = step(stream, start)
    assert sorted(rows) == cups(0, 10)
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_new_queues_are_read_from_their_beginning(tea: BrokerKit) -> None:
    send(tea, 0, 10)
    stream = reader(tea, startingOffsets="latest")
    offset = stream.initialOffset()
    with tea.admin() as admin:
        admin.update_topic("tea", queues=8)
    send(tea, 10, 40)
    rows, _ = step(stream, offset)
    assert sorted(rows) == cups(10, 40)


def test_progress_goes_to_the_consumer_group(tea: BrokerKit) -> None:
    send(tea, 0, 10)
    stream = reader(tea, group="spark-tea")
    _, end = step(stream, stream.initialOffset())
    stream.latestOffset(end, ReadAllAvailable())
    with tea.admin() as admin:
        progress = admin.consumer_progress("spark-tea")
    assert (
        sum(at.consumer_offset for at in progress.values()) == sum(at.broker_offset for at in progress.values()) == 10
    )


def test_a_topic_made_anew_is_data_loss_even_after_it_has_grown(tea: BrokerKit) -> None:
    send(tea, 0, 30)
    stream = reader(tea)
    _, end = step(stream, stream.initialOffset())
    # Another broker's queue of the same name, as after a power cut that took the tail: other messages at the same offsets.
    for entry in end["queues"].values():
        entry["crc"] ^= 1
    with pytest.raises(DataLoss, match="truncated or recreated and has grown again"):
        stream.latestOffset(end, ReadAllAvailable())
    send(tea, 30, 9)
    rows, after = step(reader(tea, onDataLoss="skip"), end)
    assert sorted(rows) == cups(30, 9)
    assert {gap["reason"].split(":")[0] for gap in after["gaps"].values()} == {
        "the queue was truncated or recreated and has grown again"
    }


def test_a_shorter_queue_is_data_loss(tea: BrokerKit) -> None:
    send(tea, 0, 30)
    stream = reader(tea)
    _, end = step(stream, stream.initialOffset())
    for entry in end["queues"].values():
        entry["next"] += 1000
    with pytest.raises(DataLoss, match="its tail is lost"):
        stream.latestOffset(end, ReadAllAvailable())
    skipping = reader(tea, onDataLoss="skip")
    offset = skipping.latestOffset(end, ReadAllAvailable())
    send(tea, 30, 10)
    rows, _ = step(skipping, offset)
    assert sorted(rows) == cups(30, 10)


def test_another_filter_is_refused(tea: BrokerKit) -> None:
    end = reader(tea).initialOffset()
    with pytest.raises(ConfigError, match="begin with a new checkpoint"):
        reader(tea, tags="green").latestOffset(end, ReadAllAvailable())


def test_the_latest_offset_is_reported(tea: BrokerKit) -> None:
    send(tea, 0, 5)
    found = reader(tea).reportLatestOffset()
    assert found is not None
    assert sum(entry["next"] for entry in found["queues"].values()) == 5


def test_a_batch_that_is_run_again_must_end_with_the_same_message(tea: BrokerKit) -> None:
    """After a crash Spark asks for the batch of its log, before it asks for anything else."""
    send(tea, 0, 30)
    start = reader(tea).initialOffset()
    end = reader(tea).latestOffset(start, ReadAllAvailable())
    assert sorted(batch(reader(tea), start, end)) == cups(0, 30)
    with pytest.raises(ConfigError, match="begin with a new checkpoint"):
        batch(reader(tea, tags="green"), start, end)
    for entry in end["queues"].values():
        entry["crc"] ^= 1
    with pytest.raises(DataLoss, match="truncated or recreated and has grown again"):
        batch(reader(tea), start, end)
    assert sorted(batch(reader(tea, onDataLoss="skip"), start, end)) == cups(0, 30)


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_broker_that_is_away_has_lost_nothing(
    tea: BrokerKit, monkeypatch: pytest.MonkeyPatch, on_data_loss: str
) -> None:
    """A batch that is run again waits for it, then ends with an error that a restart of the query cures; nothing is passed over."""
    send(tea, 0, 30)
    stream = reader(tea, onDataLoss=on_data_loss)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    start["queues"]["tea/away/0"], end["queues"]["tea/away/0"] = {"next": 5}, {"next": 9}
    pauses: list[float] = []
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    with pytest.raises(NoRoute, match="no available broker has tea@away/0, which this batch needs: restart the query"):
        batch(reader(tea, onDataLoss=on_data_loss), start, end)
    assert 60 < sum(pauses) <= patience.PATIENCE_S
    del start["queues"]["tea/away/0"], end["queues"]["tea/away/0"]
    assert sorted(batch(reader(tea, onDataLoss=on_data_loss), start, end)) == cups(0, 30)


def test_a_gap_that_a_planned_batch_meets_is_recorded_with_the_next(
    tea: BrokerKit, caplog: pytest.LogCaptureFixture
) -> None:
    send(tea, 0, 30)
    stream = reader(tea, onDataLoss="skip")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    tea.call(lambda broker: broker.kernel.set_queue_min("tea", 0, 2))
    for _ in range(2):  # Spark may ask twice
        assert len(batch(stream, start, end)) == 28
    assert caplog.text.count("/0: messages 0 to 1 are gone") == 1
    after = stream.latestOffset(end, ReadAllAvailable())
    assert [(gap["from"], gap["to"], gap["reason"]) for gap in after["gaps"].values()] == [
        (0, 2, "deleted by retention")
    ]
    assert batch(stream, end, after) == []
    assert stream.latestOffset(after, ReadAllAvailable()) == after, "once"


@pytest.mark.parametrize("where", [-84, -80, 0], ids=["magic", "checksum", "body"])
def test_damage_to_a_message_that_was_read_is_no_loss(tmp_path: Path, where: int) -> None:
    """Nobody can say any more whether the queue is the same one; to say that it was cut would be wrong."""
    with BrokerKit(data=tmp_path) as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        send(broker, 0, 20)
        stream = reader(broker)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            at = log.read(1 << 20).index(b"cup 19") + where  # where it lies in the record, whose header has 88 bytes
            log.seek(at)
            old = log.read(1)[0]
            log.seek(at)
            log.write(bytes([old ^ 1]))
        send(broker, 20, 1)
        assert step(stream, end)[0] == cups(20, 1)
        # What `partitions` looks at when the query is started again: it must not tell of a cut either.
        assert len(reader(broker).partitions(start, end)) == 1


@pytest.mark.parametrize("change", [{"crc": 7}, {"next": 1000}], ids=["cut and grown", "shorter"])
def test_a_gap_is_told_once(tea: BrokerKit, change: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """Also where the queue gets nothing new afterwards, while others do."""
    send(tea, 0, 30)
    stream = reader(tea, onDataLoss="skip")
    _, end = step(stream, stream.initialOffset())
    name = next(name for name in end["queues"] if name.endswith("/0"))
    whole = dict(end["queues"][name])
    end["queues"][name] |= change
    broker = name.split("/")[1]
    told: list[int] = []
    for number in range(3):
        if number:
            with tea.producer() as producer:
                producer.send(Message("tea", b"cup"), queue=MessageQueue("tea", broker, 1))
        rows, end = step(stream, end)
        assert len(rows) == min(number, 1)
        told.append(len(end.get("gaps", {})))
    assert told == [1, 0, 0], "at once, though nothing was new, and not again"
    assert caplog.text.count("are gone") == 1
    assert {key: end["queues"][name][key] for key in whole if key != "begin"} == whole, (
        "it is compared with what is there now"
    )


def test_a_topic_whose_brokers_are_away_stops_nobody(tea: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    with tea.admin() as admin:
        admin.create_topic("milk", queues=1)
    with tea.producer() as producer:
        producer.send(Message("milk", b"jug"))
    send(tea, 0, 10)
    stream = reader(tea, topic="tea,milk")
    rows, end = step(stream, stream.initialOffset())
    assert sorted(rows) == sorted([*cups(0, 10), b"jug"])
    with tea.admin() as admin:
        admin.delete_topic("milk")  # to the name server it is the same as a broker that signed off
    send(tea, 10, 5)
    caplog.clear()
    for looked in (stream, reader(tea, topic="tea,milk")):
        rows, after = step(looked, end)
        assert sorted(rows) == cups(10, 5)
        assert after["queues"].keys() == end["queues"].keys()
        for _ in range(3):
            assert looked.latestOffset(after, ReadAllAvailable()) is after
    assert caplog.text.count("topic milk is not available: no broker has it") == 2, "once by each stream"
    again = reader(tea, topic="tea,milk")
    again.prepareForTriggerAvailableNow()
    assert sorted(step(again, end)[0]) == cups(10, 5)
    assert again.reportLatestOffset() is not None
    wrong = reader(tea, topic="tea,salt")
    wrong.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match="topic 'salt' does not exist"):
        wrong.latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_slave_alone_is_a_broker_that_is_away(
    tea: BrokerKit, monkeypatch: pytest.MonkeyPatch, on_data_loss: str
) -> None:
    """It may lag behind its master: by what it says a stream would take messages for lost, or read them twice."""
    send(tea, 0, 30)
    stream = reader(tea, onDataLoss=on_data_loss)
    _, end = step(stream, stream.initialOffset())
    route = AsyncAdmin.route

    async def without_master(self: AsyncAdmin, topic: str) -> Route:
        found = await route(self, topic)
        return replace(found, addresses={name: {1: at[0]} for name, at in found.addresses.items()})

    with monkeypatch.context() as patched:
        patched.setattr(AsyncAdmin, "route", without_master)
        patched.setattr(AsyncAdmin, "topic_stats", lambda *_: pytest.fail("the slave was asked"))
        assert stream.latestOffset(end, ReadAllAvailable()) is end
        pauses: list[float] = []
        patched.setattr(patience, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
        with pytest.raises(NoRoute, match="has no master, so"):
            reader(tea).initialOffset()
        with pytest.raises(NoRoute, match="has no master, so"):
            BatchReader(stream.options, ("body",)).partitions()
    send(tea, 30, 5)
    rows, after = step(stream, end)
    assert sorted(rows) == cups(30, 5)
    assert "gaps" not in after


def test_an_idle_stream_asks_no_queue(tea: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks several times a second: what that costs must not grow with the number of queues."""
    send(tea, 0, 30)
    stream = reader(tea, group="etl")
    _, end = step(stream, stream.initialOffset())
    stream.commit(end)
    asked: Counter[str] = Counter()
    ask = ClientCore.ask

    async def counted(self: ClientCore, address: str, header: Header, *rest: Any, **more: Any) -> Frame:
        asked[type(header).__name__] += 1
        return await ask(self, address, header, *rest, **more)

    monkeypatch.setattr(ClientCore, "ask", counted)
    stream.latestOffset(end, ReadAllAvailable())
    assert asked == {"GetTopicStats": 1, "PullMessage": 3}, "what the last batch read is compared once"
    for _ in range(10):
        assert stream.latestOffset(end, ReadAllAvailable()) is end
    assert asked == {"GetTopicStats": 11, "PullMessage": 3}
    with tea.producer() as producer:
        producer.send(Message("tea", b"cup"), queue=producer.queues("tea")[0])
    asked.clear()
    end = stream.latestOffset(end, ReadAllAvailable())
    assert asked["PullMessage"] == 2, "the old mark and the new one of the queue that has changed"
    stream.commit(end)
    assert asked["UpdateConsumerOffset"] == 1
    now = time.monotonic() + streaming.COMPARE_ALL_S
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: now))
    asked.clear()
    stream.latestOffset(end, ReadAllAvailable())
    assert asked["PullMessage"] == 3


def test_offsets_behind_the_end_are_refused(tea: BrokerKit) -> None:
    """A start was moved without a word, an end was taken for lost messages."""
    with tea.producer() as producer:
        queues = producer.queues("tea")
        for _ in range(5):
            producer.send(Message("tea", b"cup"), queue=queues[0])
    (broker,) = {queue.broker for queue in queues}
    beyond = json.dumps({"tea": {f"{broker}/0": 6, f"{broker}/1": 0, f"{broker}/2": "latest"}})
    told = f"queue tea {broker}/0 ends at 5, and offset 6 is beyond that"
    with pytest.raises(ConfigError, match=told):
        reader(tea, startingOffsets=beyond).initialOffset()
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(ConfigError, match=told):
            BatchReader(reader(tea, **{name: beyond}).options, ("body",)).partitions()
    at_the_end = beyond.replace("6", "5")
    assert step(stream := reader(tea, startingOffsets=at_the_end), stream.initialOffset())[0] == []


def test_the_first_batch_keeps_to_its_bytes(tea: BrokerKit) -> None:
    """Nothing was read yet that tells how large messages are."""
    with tea.producer() as producer:
        for _ in range(30):
            producer.send(Message("tea", os.urandom(100_000)))
    stream = reader(tea, maxBytesPerTrigger="400000")
    offset, sizes = stream.initialOffset(), []
    for _ in range(3):
        rows, offset = step(stream, offset, stream.getDefaultReadLimit())
        sizes.append(sum(map(len, rows)))
    assert sizes == [300_000] * 3, "one message more would be more than the limit"


def test_another_topic_on_the_same_checkpoint_is_told(tea: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    with tea.admin() as admin:
        admin.create_topic("milk", queues=1)
    with tea.producer() as producer:
        producer.send(Message("milk", b"jug"))
    send(tea, 0, 10)
    stream = reader(tea)
    _, end = step(stream, stream.initialOffset())
    stream.latestOffset(end, ReadAllAvailable())
    assert not caplog.records
    other = reader(tea, topic="milk", startingOffsets="latest")
    rows, after = step(other, end)
    assert rows == [b"jug"], "startingOffsets are for streams without a checkpoint"
    other.latestOffset(after, ReadAllAvailable())
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "the checkpoint has topics that this stream no longer reads: tea",
        "the stream reads topics that its checkpoint does not have: milk",
    ]
    send(tea, 10, 5)
    assert sorted(step(reader(tea), after)[0]) == cups(10, 5), "it resumes where it was"

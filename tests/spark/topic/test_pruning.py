"""Pushed filters: what is left of the ranges holds every row that the filters want."""

from __future__ import annotations

import datetime
import operator
import types
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from kappamq import Message
from kappamq.errors import NoRoute
from kappamq.message import MessageQueue
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import QueueRange
from kappamq.spark.topic.pruning import TimeBounds, filters_are_pushed, prune
from kappamq.spark.topic.source import BatchReader, PushingReader
from kappamq.testing import BrokerKit, KitClock
from tests.waiting import eventually

A0, A1, B0 = MessageQueue("tea", "a", 0), MessageQueue("tea", "a", 1), MessageQueue("tea", "b", 0)
RANGES = [QueueRange(A0, 10, 20), QueueRange(A1, 0, 5), QueueRange(B0, 3, 30)]
OPTIONS = ReadOptions(nameservers="x:1", topics=("tea",))


NEVER_SET = {"kappamqClockJumps": "0 since the start, 0 in this store"}


def at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class Broker:
    """Every message was stored at ten seconds times its offset, or when `stamps` say."""

    def __init__(self, info: dict[str, str] | None = None, stamps: list[int | None] | None = None) -> None:
        self.info = NEVER_SET if info is None else info
        self.stamps = stamps if stamps is not None else [10_000 * offset for offset in range(100)]
        self.asked = 0

    def search(self, queue: MessageQueue, ms: int) -> int:
        """As brokers do: by halves, and what cannot be read counts as early."""
        low, high = 0, len(self.stamps)
        while low < high:
            middle = (low + high) // 2
            stamp = self.stamps[middle]
            low, high = (middle + 1, high) if stamp is None or stamp < ms else (low, middle)
        return low

    def stored_ms(self, queue: MessageQueue, offset: int) -> int | None:
        return self.stamps[offset]

    def runtime_info(self, broker: str) -> dict[str, str]:
        self.asked += 1
        if self.info.get("refuses"):
            raise NoRoute("nobody is there")
        return self.info

    @property
    def times(self) -> TimeBounds:
        return TimeBounds(self.search, self.stored_ms, self.runtime_info)


def left(*filters: Filter, broker: Broker | None = None) -> list[tuple[str, int, int]]:
    ranges = prune(filters).ranges(RANGES, (broker or Broker()).times)
    return [(f"{one.queue.broker}{one.queue.queue_id}", one.start, one.stop) for one in ranges]


ALL = [("a0", 10, 20), ("a1", 0, 5), ("b0", 3, 30)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ALL),
        ([EqualTo(("queueId",), 0)], [ALL[0], ALL[2]]),
        ([EqualTo(("brokerName",), "a"), In(("queueId",), (1, 7))], [ALL[1]]),
        ([EqualTo(("queueId",), 0), EqualTo(("queueId",), 1)], []),
        ([EqualTo(("topic",), "coffee")], []),
        ([EqualNullSafe(("topic",), None)], []),
        ([GreaterThan(("queueOffset",), 4)], [ALL[0], ("b0", 5, 30)]),
        ([GreaterThanOrEqual(("queueOffset",), 4), LessThan(("queueOffset",), 12)],
         [("a0", 10, 12), ("a1", 4, 5), ("b0", 4, 12)]),
        ([LessThanOrEqual(("queueOffset",), 12)], [("a0", 10, 13), ALL[1], ("b0", 3, 13)]),
        ([EqualTo(("queueOffset",), 11)], [("a0", 11, 12), ("b0", 11, 12)]),
        ([In(("queueOffset",), (4, 11, None))], [("a0", 10, 12), ("a1", 4, 5), ("b0", 4, 12)]),
        ([GreaterThanOrEqual(("storeTimestamp",), at(125))], [("a0", 13, 20), ("b0", 13, 30)]),
        ([LessThan(("storeTimestamp",), at(120))], [("a0", 10, 13), ALL[1], ("b0", 3, 13)]),
        ([EqualTo(("storeTimestamp",), at(120))], [("a0", 12, 13), ("b0", 12, 13)]),
        ([GreaterThan(("storeTimestamp",), datetime.datetime(2026, 1, 1))], ALL),
        ([Not(EqualTo(("queueId",), 0)), IsNotNull(("keys",)), StringContains(("tags",), "x")], ALL),
        ([EqualTo(("properties", "x"), "y"), GreaterThan(("queueOffset",), None)], ALL),
    ],
)  # fmt: skip
def test_what_is_left(filters: list[Filter], expected: list[tuple[str, int, int]]) -> None:
    assert left(*filters) == expected


TIMES = [GreaterThanOrEqual(("storeTimestamp",), at(125)), LessThan(("storeTimestamp",), at(160))]


@pytest.mark.parametrize(
    "info",
    [
        {"kappamqClockJumps": "1 since the start, 1 in this store"},
        {"kappamqClockJumps": "0 since the start, 10 in this store"},
        {"kappamqClockJumps": "unknown"},
        {"brokerVersionDesc": "V5_3_2"},
        {"refuses": "yes"},
    ],
    ids=["now", "before", "strange", "Apache", "away"],
)
def test_times_narrow_nothing_where_the_clock_may_have_been_set(info: dict[str, str]) -> None:
    broker = Broker(info)
    assert left(*TIMES, broker=broker) == ALL
    assert broker.asked == 2, "each broker once"


def test_a_broker_is_asked_about_its_clock_only_for_times() -> None:
    broker = Broker()
    assert left(EqualTo(("queueId",), 0), broker=broker) == [ALL[0], ALL[2]]
    assert broker.asked == 0
    assert left(*TIMES, broker=broker) == [("a0", 13, 17), ("b0", 13, 17)]


def test_stamps_may_be_out_of_order_by_what_a_broker_does_not_call_a_jump() -> None:
    stamps: list[int | None] = [offset * 400 - 1000 * (offset >= 15) for offset in range(30)]
    for seconds in range(12):
        for filters, wanted in (
            ([GreaterThanOrEqual(("storeTimestamp",), at(seconds))], lambda ms, limit: ms >= limit),
            ([LessThanOrEqual(("storeTimestamp",), at(seconds))], lambda ms, limit: ms <= limit),
        ):
            found = {name: range(start, stop) for name, start, stop in left(*filters, broker=Broker(stamps=stamps))}
            lost = [n for n in range(3, 30) if wanted(stamps[n], seconds * 1000) and n not in found.get("b0", ())]
            assert not lost, (filters, lost)


@pytest.mark.parametrize("unreadable", range(100))
def test_a_message_that_cannot_be_read_hides_no_others(unreadable: int) -> None:
    stamps: list[int | None] = [10_000 * offset for offset in range(100)]
    stamps[unreadable] = None
    for name, start, stop in left(*TIMES, broker=Broker(stamps=stamps)):
        first, last = {name: (low, high) for name, low, high in ALL}[name]
        assert start <= max(first, 13)
        assert stop >= min(last, 16)


def test_tags_go_to_the_broker_unless_the_user_named_some() -> None:
    assert prune([EqualTo(("tags",), "paid")]).options(OPTIONS).tags == "paid"
    assert prune([In(("tags",), ("paid", "new"))]).options(OPTIONS).tags == "new || paid"
    for strange in ("*", " a", "a || b", ""):
        assert prune([EqualTo(("tags",), strange)]).options(OPTIONS).tags is None
    mine = ReadOptions(nameservers="x:1", tags="old")
    assert prune([EqualTo(("tags",), "paid")]).options(mine).tags == "old"


def test_one_key_of_each_text_is_looked_up() -> None:
    assert prune([In(("keys",), ("a b", "c"))]).keys == {"a", "c"}
    assert prune([In(("keys",), ("a", " "))]).keys is None


def test_filters_are_pushed_only_where_spark_says_so() -> None:
    assert not filters_are_pushed()
    pushing = types.ModuleType("pushing")
    pushing.__spec__ = types.SimpleNamespace(name="pyspark.sql.worker.data_source_pushdown_filters")  # type: ignore[assignment]
    pushing.filters_are_pushed = filters_are_pushed  # type: ignore[attr-defined]
    there = types.FunctionType((lambda: filters_are_pushed()).__code__, pushing.__dict__)
    assert there()


def test_no_row_is_lost_after_the_wall_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's clock was six hours ahead, and is put right: it searches in corrected time, the rows show the stamps as they are."""
    hour, ahead, right_ms = datetime.timedelta(hours=1), [6 * 3_600_000], KitClock.message_ms
    monkeypatch.setattr(KitClock, "message_ms", lambda self: right_ms(self) + ahead[0])
    with BrokerKit(data=tmp_path / "data") as broker, broker.admin() as admin, broker.producer() as producer:
        admin.create_topic("tea", queues=1)
        (queue,) = admin.topic_stats("tea")
        for number in range(5):
            producer.send(Message("tea", b"ahead %d" % number))
        ahead[0] = 0
        eventually(lambda: admin.runtime_info(queue.broker)["kappamqClockJumps"].startswith("1 since"))
        for number in range(5):
            producer.send(Message("tea", b"right %d" % number))
        options = ReadOptions.parse({"nameservers": broker.nameserver, "topic": "tea"})

        def rows(reader: BatchReader) -> list[tuple[int, datetime.datetime]]:
            tables = [batch.to_pylist() for task in reader.partitions() for batch in reader.read(task)]
            return [(row["queueOffset"], row["storeTimestamp"]) for table in tables for row in table]

        columns = ("queueOffset", "storeTimestamp")
        everything = rows(BatchReader(options, columns))
        assert len(everything) == 10
        now = datetime.datetime.now(datetime.UTC)
        for border in (now - hour, now + 3 * hour):
            for kind, wanted in ((GreaterThanOrEqual, operator.ge), (LessThanOrEqual, operator.le)):
                reader = PushingReader(options, columns)
                list(reader.pushFilters([kind(("storeTimestamp",), border)]))
                found = [offset for offset, stored in rows(reader) if wanted(stored, border)]
                assert found == [offset for offset, stored in everything if wanted(stored, border)], (kind, border)

"""What the broker does, in numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.telemetry.stats import COMMITS_MAX, SERIES_MAX, Stats, tally
from kappamq.clock import VirtualClock
from kappamq.native.layout import ENTRY
from kappamq.protocol.bodies.admin import BrokerStatsData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import DeleteTopic, ViewBrokerStats
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.store.derived import DerivedWork
from tests.broker.operating import fill, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker
from tests.waiting import eventually_async as eventually


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def stats_of(clock: VirtualClock, log_end: int = 0) -> tuple[Stats, SimpleNamespace]:
    kernel = SimpleNamespace(put_count=0, put_bytes=0, get_count=0, get_bytes=0)
    worker: Callable[..., Awaitable[Any]] = at_once
    return Stats(kernel, clock, "cluster", log_end, worker), kernel


def entries(topic: str, *places: tuple[int, int]) -> tuple[str, int, int, bytes]:
    return topic, 0, 0, b"".join(ENTRY.pack(log_offset, size, 0) for log_offset, size in places)


def derived(*rows: tuple[str, int, int, bytes]) -> DerivedWork:
    return DerivedWork(entries=list(rows), index=b"", complete=True, dispatched=0, index_at=0, store_ms=0)


def test_rates_over_10_60_and_600_seconds() -> None:
    clock = VirtualClock()
    stats, kernel = stats_of(clock)
    assert stats.rates(lambda sample: sample.put_count) == (0.0, 0.0, 0.0)
    for second in range(700):
        clock.advance(1)
        kernel.put_count += 100 if second >= 680 else 10
        stats.tick()
        stats.tick()  # more often changes nothing
    ten, minute, long = stats.rates(lambda sample: sample.put_count)
    assert ten == pytest.approx(100)
    assert minute == pytest.approx((20 * 100 + 40 * 10) / 60)
    assert long == pytest.approx((20 * 100 + 580 * 10) / 600)


def test_a_young_broker_shows_what_it_has() -> None:
    clock = VirtualClock()
    stats, kernel = stats_of(clock)
    clock.advance(2)
    kernel.get_count = 50
    stats.tick()
    assert stats.rates(lambda sample: sample.get_count) == (25.0, 25.0, 25.0)


def test_totals_of_yesterday_and_today() -> None:
    clock = VirtualClock()
    stats, kernel = stats_of(clock)
    for total in (100, 350):
        kernel.put_count = total
        kernel.get_count = total // 2
        clock.advance(24 * 3600)
        stats.tick()
    assert (stats.put_today.yesterday_morning, stats.put_today.today_morning) == (100, 350)
    assert (stats.get_today.yesterday_morning, stats.get_today.today_morning) == (50, 175)


def test_entries_are_counted_by_topic_and_those_from_before_are_not() -> None:
    rows = [entries("a", (10, 100), (500, 100), (700, 300)), entries("b", (600, 50)), entries("old", (20, 9))]
    assert tally(rows, 500) == {"a": (2, 400), "b": (1, 50)}
    many = [entries("a", *((number, 100) for number in range(1000)))]
    assert tally(many, 0) == {"a": (1000, 100_000)}
    assert tally([], 0) == {}


def test_topics_and_groups_have_rates() -> None:
    clock = VirtualClock()
    stats, _kernel = stats_of(clock)
    clock.advance(20)
    asyncio.run(stats.entered(derived(entries("t", *((number, 200) for number in range(300))))))
    stats.committed({("t", "g"): {0: 1000, 1: 50}})
    assert stats.get_tps("g", "t") == 0.0, "the first commit says where a group is, not what it has read"
    clock.advance(10)
    stats.committed({("t", "g"): {0: 1060, 1: 40}})
    clock.advance(10)
    assert stats.put_tps("t") == pytest.approx(15.0)
    assert stats.get_tps("g", "t") == pytest.approx(6.0)
    assert stats._series["GROUP_GET_SIZE", "t@g"].last(clock.liveness()).sum == 60 * 200
    stats.begin_queried("h", "t", 0, 100)
    stats.committed({("t", "h"): {0: 130}})
    assert stats.get_tps("h", "t") > 0, "it is known where this one began"
    stats.forget("t")
    assert (stats.put_tps("t"), stats.get_tps("g", "t")) == (0.0, 0.0)


def test_memory_is_bounded() -> None:
    clock = VirtualClock()
    stats, _kernel = stats_of(clock)
    for number in range(SERIES_MAX + 50):
        stats._add("TOPIC_PUT_NUMS", f"t{number}", 1, clock.liveness())
    stats._add("TOPIC_PUT_NUMS", "t50", 1, clock.liveness())
    for number in range(COMMITS_MAX + 50):
        stats.begin_queried("g", "t", number, 0)
    assert len(stats._committed) == COMMITS_MAX
    assert len(stats._series) == SERIES_MAX
    assert stats.put_tps("t0") == 0.0
    assert stats.put_tps("t50") > 0.0


@on_broker()
async def test_operators_ask_for_them(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [7])
    await client.read("t")
    for offset in (3, 7):
        await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=offset))
        broker.offsets.record_commits()

    async def seen(name: str, key: str) -> BrokerStatsData | None:
        answer = await client.ask(ViewBrokerStats(name=name, key=key))
        return BrokerStatsData.decode(answer.body) if answer.code == 0 else None

    put = await eventually(lambda: seen("TOPIC_PUT_NUMS", "t"))
    assert put is not None
    assert (put.minute.sum, put.hour.sum, put.day.sum) == (7, 7, 7)
    assert put.minute.tps > 0
    size = await seen("TOPIC_PUT_SIZE", "t")
    assert size is not None
    assert size.minute.sum > 7 * 91
    got = await eventually(lambda: seen("GROUP_GET_NUMS", "t@g"))
    assert got is not None
    assert got.minute.sum == 4
    cluster = await eventually(lambda: seen("BROKER_PUT_NUMS", "DefaultCluster"))
    assert cluster is not None
    assert cluster.day.sum >= 7
    assert await eventually(lambda: seen("BROKER_GET_NUMS", "DefaultCluster"))

    error = ResponseCode.SYSTEM_ERROR
    await refused(client, ViewBrokerStats(name="TOPIC_PUT_NUMS", key="nobody"), error, "not exist")
    await refused(client, ViewBrokerStats(name="QUEUE_PUT_NUMS", key="t@0"), error, "TOPIC_PUT_NUMS")
    await ok(client, DeleteTopic(topic="t"))
    await refused(client, ViewBrokerStats(name="TOPIC_PUT_NUMS", key="t"), error, "not exist")

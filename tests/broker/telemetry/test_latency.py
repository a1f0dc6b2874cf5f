"""How long messages take, once per turn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.telemetry.latency import GENERATION_S, PutLatency
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from tests.broker.operating import make_topic, ok
from tests.broker.running import run, running, speaking


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def turn(latency: PutLatency, time: Time, seconds: float, end: int, put_count: int) -> None:
    latency.began()
    time.now += seconds
    latency.written(end, put_count)
    latency.reached(end)


def counts(latency: PutLatency) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"(\[.*?\]):(\d+) ", latency.distribution())}


def test_all_messages_of_a_turn_count_with_its_time() -> None:
    time = Time()
    latency = PutLatency(time)
    assert (latency.percentile_ms(0.99), latency.max_ms) == (0.0, 0)
    turn(latency, time, 0.0005, 100, 990)
    turn(latency, time, 0.030, 200, 999)
    turn(latency, time, 7.0, 300, 1000)
    assert latency.percentile_ms(0.5) == pytest.approx(0.5, rel=0.25)
    assert latency.percentile_ms(0.999) == pytest.approx(30, rel=0.25)
    assert latency.percentile_ms(1.0) == pytest.approx(7000, rel=0.25)
    assert latency.max_ms == 7000
    found = counts(latency)
    assert len(found) == 13
    assert (found["[<=0ms]"], found["[10~50ms]"], found["[5~10s]"], sum(found.values())) == (990, 9, 1, 1000)


def test_where_answers_wait_for_the_disk_it_is_the_disk_that_counts() -> None:
    time = Time()
    latency = PutLatency(time)
    latency.began()
    latency.written(100, 1)
    time.now += 0.005
    latency.began()
    latency.written(200, 3)
    latency.reached(50)
    assert latency.percentile_ms(1.0) == 0.0, "nothing may be answered yet"
    time.now += 0.095
    latency.reached(100)
    assert latency.percentile_ms(1.0) == pytest.approx(100, rel=0.25)
    latency.reached(250)
    assert sum(counts(latency).values()) == 3


def test_a_turn_without_messages_counts_nothing_and_old_figures_go() -> None:
    time = Time()
    latency = PutLatency(time, put_count=7)
    turn(latency, time, 0.1, 100, 7)
    assert sum(counts(latency).values()) == 0
    turn(latency, time, 0.1, 100, 8)
    time.now += GENERATION_S
    assert sum(counts(latency).values()) == 1
    time.now += GENERATION_S
    assert sum(counts(latency).values()) == 0
    turn(latency, time, 0.1, 100, 9)
    time.now += 5 * GENERATION_S
    assert sum(counts(latency).values()) == 0
    assert latency.max_ms == 100


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_the_broker_tells_how_long_it_took(tmp_path: Path, flush: str) -> None:
    async def main() -> None:
        async with running(tmp_path, store={"flush": flush}) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            for _ in range(20):
                assert (await client.send("t", b"x")).code == 0
            await told(broker, client)

    async def told(broker: Broker, client: object) -> None:
        table = KVTable.decode((await ok(client, GetBrokerRuntimeInfo())).body).table  # type: ignore[arg-type]
        assert 0 < float(table["putLatency99"]) <= float(table["putLatency999"]) < 60_000
        assert int(table["putMessageEntireTimeMax"]) >= 0
        shown = sum(int(count) for count in re.findall(r"\]:(\d+)", table["putMessageDistributeTime"]))
        assert shown == broker.kernel.put_count >= 20

    run(main())

"""Which groups filter by SQL: remembered as RocketMQ writes it down, over restarts, for a day after their last consumer."""

from __future__ import annotations

import json
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.broker.clients.registry import Clients, ConsumerGroup
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import NotAvailable
from kappamq.events import Events
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.state.filters import FILTERS_MAX, ConsumerFilters, FilterData
from tests.broker.pulling.test_filtering import beat, condition
from tests.broker.running import run, running, speaking
from tests.state.committing import committing
from tests.waiting import eventually_async as eventually

DAY_S = 86_400


def filters_of(broker: Broker) -> dict[str, object]:
    return broker.delivery_tables.filters.to_snapshot()["filterDataByTopic"]


def test_over_a_restart_and_a_day(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def test() -> None:
        async with running(tmp_path, clock=clock, net={"idle_s": 0}) as broker:
            async with speaking(broker) as client:
                await beat(client, "g", condition("t", "n > 1", version=3), condition("u", "*", kind="TAG"))
                data = broker.delivery_tables.filters.get("g", "t")
                assert data is not None
                assert (data.expression, data.version, data.dead_ms) == ("n > 1", 3, 0)
                await beat(client, "g", condition("t", "n > 1", version=4))
                await beat(client, "g", condition("t", "n > 2", version=5))
            born = data.born_ms
            clock.advance(2)
            await eventually(lambda: (broker.delivery_tables.filters.get("g", "t") or data).dead_ms > 0)
        stored = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
        entry = stored["filterDataByTopic"]["t"]["groupFilterData"]["g"]
        assert entry.pop("deadTime") >= born
        assert entry == {
            "bloomFilterData": {"bitNum": 112, "bitPos": [22, 87, 58]},
            "bornTime": born,
            "clientVersion": 5,
            "consumerGroup": "g",
            "dead": True,
            "expression": "n > 2",
            "expressionType": "SQL92",
            "topic": "t",
        }
        async with running(tmp_path, clock=clock, net={"idle_s": 0}) as broker:
            assert list(filters_of(broker)) == ["t"]
            async with speaking(broker) as client:
                await beat(client, "g", condition("t", "n > 2", version=6))
                revived = broker.delivery_tables.filters.get("g", "t")
                assert revived is not None
                assert (revived.born_ms, revived.dead_ms) == (born, 0)
            clock.advance(2)
            await eventually(lambda: (broker.delivery_tables.filters.get("g", "t") or revived).dead_ms > 0)
            clock.advance(DAY_S - 10)
            clock.advance(1)
            assert filters_of(broker)
            clock.advance(60)
            await eventually(lambda: not filters_of(broker))
        async with running(tmp_path, clock=clock) as broker:
            assert not filters_of(broker)

    run(test())


def test_found_again_without_the_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await beat(client, "g", condition("t", "n > 1"))
        (tmp_path / "config" / "consumerFilter.json").unlink()
        async with running(tmp_path) as broker:
            data = broker.delivery_tables.filters.get("g", "t")
            assert data is not None
            assert data.expression == "n > 1"

    run(test())


def test_javas_file() -> None:
    """Written by 5.3.3 while a consumer was there."""
    text = (
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},'
        '"bornTime":1794792161000,"clientVersion":1794792160123,"consumerGroup":"g","dead":false,"deadTime":0,'
        '"expression":"a > 1","expressionType":"SQL92","topic":"T"}},"topic":"T"}}}'
    )
    filters = committing(lambda commit: ConsumerFilters(BrokerConfig(), lambda: 1794792999000, commit))
    filters.from_snapshot(json.loads(text))
    assert filters.get("g", "T") == FilterData("T", "g", "a > 1", "SQL92", 1794792160123, 1794792161000, 0)
    clients = Clients(BrokerConfig(), Events())
    filters.tick(clients.live_subscriptions, 1.0)
    assert filters.get("g", "T") == FilterData("T", "g", "a > 1", "SQL92", 1794792160123, 1794792161000, 1794792999000)
    clients.consumers["g"] = ConsumerGroup("g", {None: None}, {"T": condition("T", "a > 1")})  # type: ignore[dict-item]
    filters.tick(clients.live_subscriptions, 1.5)
    assert (filters.get("g", "T") or FilterData).dead_ms, "looked at not that often"
    filters.tick(clients.live_subscriptions, 2.5)
    assert filters.get("g", "T") == FilterData("T", "g", "a > 1", "SQL92", 1794792160123, 1794792161000, 0)


def test_when_the_log_takes_nothing() -> None:
    def full(kind: str, change: object) -> int:
        raise NotAvailable("no room")

    filters = committing(lambda commit: ConsumerFilters(BrokerConfig(), lambda: 5, commit), full)
    filters.subscribed("g", condition("t", "a = 1"))
    assert filters.get("g", "t") is not None
    assert filters.dirty


def test_there_is_an_end_to_it() -> None:
    filters = committing(lambda commit: ConsumerFilters(BrokerConfig(), lambda: 5, commit))
    for number in range(FILTERS_MAX + 5):
        filters.subscribed(f"g{number}", SubscriptionData(topic="t", expression="a = 1", expression_type="SQL92"))
    assert (
        sum(len(entry["groupFilterData"]) for entry in filters.to_snapshot()["filterDataByTopic"].values())
        == FILTERS_MAX
    )

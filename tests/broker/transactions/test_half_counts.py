"""Open transactions by topic, in the file of a RocketMQ broker."""

from __future__ import annotations

import json
from pathlib import Path

from kappamq.broker.transactions.half_counts import HalfCounts
from kappamq.broker.transactions.open_transactions import Half, Halves
from tests.broker.operating import make_topic
from tests.broker.running import run, running, speaking
from tests.broker.transacting import COMMIT, Begun, producing


def test_only_changes_are_written() -> None:
    table = HalfCounts(lambda: 7)
    halves = Halves()
    table.tick(halves.counts)
    assert not table.dirty
    halves.open(Half(1, 1, 0, 10, "g", "t", since_ms=0))
    table.tick(halves.counts)
    assert table.dirty
    table.dirty = False
    table.tick(halves.counts)
    assert not table.dirty
    assert table.to_snapshot()["transactionCount"] == {"t": {"count": 1, "timeStamp": 7}}


def test_the_file_is_there_when_the_broker_stops(tmp_path: Path) -> None:
    async def test() -> None:
        for expected in ({"t": 1}, {}):
            async with running(tmp_path) as broker, speaking(broker) as client:
                await make_topic(client, "t")
                async with producing(broker) as producer:
                    if expected:
                        begun.append(await producer.begin("t", b"x"))
                    else:
                        assert broker.delivery.halves.halves.counts == {"t": 1}, "counted again"
                        assert (await producer.end(begun[0], COMMIT)).code == 0
                broker.delivery_tables.half_counts.tick(broker.delivery.halves.halves.counts)
            table = json.loads((tmp_path / "config" / "transactionMetrics").read_text())["transactionCount"]
            assert {topic: entry["count"] for topic, entry in table.items()} == expected

    begun: list[Begun] = []
    run(test())

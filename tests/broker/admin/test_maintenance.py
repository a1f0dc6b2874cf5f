"""Cleaning up on request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.protocol.headers.admin import CleanExpiredQueues, CleanUnusedTopics, DeleteExpiredLog
from kappamq.protocol.headers.client import GetMinOffset
from tests.broker.operating import fill, make_topic, ok, on_broker
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async as eventually

NEVER_BY_ITSELF = {"retention_hours": 0, "delete_hours": (), "clean_interval_ms": 3_600_000}


@on_broker(store={"segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, **NEVER_BY_ITSELF})
async def test_expired_files_go_when_the_operator_asks(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    for _ in range(30):
        await client.send("t", bytes(10_000))
    assert len(list(broker.store.log.segments())) > 3

    async def deleted() -> bool:
        # Nothing goes that a snapshot or the one before it still needs; with the log these go on, too.
        await client.send("t", bytes(10_000))
        answer = await ok(client, DeleteExpiredLog())
        assert "log files deleted" in (answer.remark or "")
        return broker.store.log.min > 0

    await eventually(deleted, pause=0.1)
    await asyncio.gather(*(ok(client, DeleteExpiredLog()) for _ in range(5)))  # together they do no harm
    low = int((await ok(client, GetMinOffset(topic="t", queue_id=0))).ext["offset"])
    assert low > 0
    assert (await client.read("t", 0, low))[0].queue_offset == low
    await ok(client, CleanExpiredQueues())


def test_files_of_topics_that_exist_no_more_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            await fill(client, "t", [3])
        left = tmp_path / "consumequeue" / "left_over" / "0"
        left.mkdir(parents=True)
        async with running(tmp_path) as broker, speaking(broker) as client:
            answer = await ok(client, CleanUnusedTopics())
            assert answer.remark == "1 topics cleaned"
            await eventually(lambda: not left.exists())
            assert len(await client.read("t")) == 3, "topics in use stay"
            assert (tmp_path / "consumequeue" / "rmq_sys_kappamq_metadata").exists()

    asyncio.run(main())


def test_what_has_not_expired_stays(tmp_path: Path) -> None:
    async def main() -> None:
        small = {"segment_bytes": 64 << 10, "message_bytes_max": 16 << 10}
        async with running(tmp_path, store=small, clock=VirtualClock()) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            for _ in range(12):
                await client.send("t", bytes(10_000))
            answer = await ok(client, DeleteExpiredLog())
            assert answer.remark == "0 log files deleted"
            assert broker.store.log.min == 0

    asyncio.run(main())

"""Messages whose time is over, and topics that are deleted: what goes, what stays, and numbers that never start again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import DeleteExpiredLog, DeleteTopic
from kappamq.protocol.headers.client import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueryMessage,
    UpdateConsumerOffset,
)  # fmt: skip
from kappamq.protocol.records.record import iter_records
from tests.broker.running import Speaker, crash_copy, on_disk, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

KERNELS = kernels()
SEGMENT = 64 << 10
SMALL = {
    "segment_bytes": SEGMENT, "message_bytes_max": 16 << 10, "queue_file_entries": 16, "index_entries": 32, "index_slots": 97,
    "queue_flush_interval_ms": 50, "clean_interval_ms": 50, "retention_hours": 0, "delete_hours": (), "disk_clean_ratio": 1.0,
}  # fmt: skip
AT_ONCE = SMALL | {"delete_hours": tuple(range(24))}


async def fill(client: Speaker, count: int, start: int = 0, topic: str = "t") -> None:
    for number in range(start, start + count):
        text = f"UNIQ_KEY\x01U{topic}{number}\x02KEYS\x01k{number}"
        answer = await client.send(topic, b"%05d" % number + bytes(4000), properties=text)
        assert answer.code == 0, answer.remark


async def bounds(client: Speaker, topic: str = "t", queue_id: int = 0) -> tuple[int, int]:
    low = await client.ask(GetMinOffset(topic=topic, queue_id=queue_id))
    high = await client.ask(GetMaxOffset(topic=topic, queue_id=queue_id))
    return int(low.ext["offset"]), int(high.ext["offset"])


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body[:5]) for body in bodies]


async def read(client: Speaker, start: int, topic: str = "t") -> list[int]:
    return numbers([record.body for record in await client.read(topic, offset=start)])


def kept_files(root: Path, folder: str) -> list[int]:
    return sorted(int(path.name) for path in (root / folder).iterdir())


@pytest.mark.parametrize("mode", KERNELS)
def test_what_has_expired_goes_with_all_that_points_to_it(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, store=AT_ONCE) as broker, speaking(broker) as client:
            await client.subscribe("g", "t")
            await fill(client, 100)
            commit = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=7)
            assert (await client.ask(commit)).code == 0
            # At the hour they go by themselves, all but the last.
            await eventually(lambda: broker.store.log.min == broker.store.log.end // SEGMENT * SEGMENT)

            async def raised() -> bool:
                return (await bounds(client))[0] > 64

            await eventually(raised)
            object.__setattr__(broker.store_config, "delete_hours", ())  # the hour is over
            async with broker.upkeep._cleaning:
                low, high = await bounds(client)
            assert high == 100
            assert await read(client, low) == list(range(low, 100)), "what is left is whole"
            early = await client.pull("t", 0, explicit=True)
            assert (early.code, early.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(low))
            assert early.ext["minOffset"] == str(low)
            asked = await client.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert asked.ext["offset"] == "7", "an offset that points below is the consumer's to correct"
            await eventually(lambda: min(kept_files(tmp_path, "consumequeue/t/0")) == low // 16 * 16 * 20)
            await eventually(lambda: len(kept_files(tmp_path, "index")) < 5)

            async def found(key: str) -> int:
                query = QueryMessage(topic="t", key=key, count_max=10, begin_ms=0, end_ms=1 << 60)
                answer = await client.ask(query)
                return len(list(iter_records(answer.body))) if answer.code == 0 else 0

            assert (await found("k0"), await found("k99")) == (0, 1)
            await fill(client, 10, start=100)
            assert (await read(client, low))[-1] == 109
        for lost in ("nothing", "consumequeue", "kappamq.position"):
            if lost == "consumequeue":
                shutil.rmtree(tmp_path / lost)
            elif lost != "nothing":
                (tmp_path / lost).unlink()
            async with running(tmp_path, mode, store=SMALL) as broker, speaking(broker) as client:
                again, high = await bounds(client)
                assert low <= again, "what is gone stays gone"
                assert high == 110
                assert await read(client, again) == list(range(again, 110))
                asked = await client.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
                assert asked.ext["offset"] == "7", "settings outlive the part of the log they were recorded in"
                assert broker.topics.get("t") is not None

    run(test())


def test_on_request_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            await fill(client, 60)
            await on_disk(broker)
            await broker.upkeep.clean()
            assert (broker.store.log.min, await bounds(client)) == (0, (0, 60)), "it is not the hour"
            both = await asyncio.gather(client.ask(DeleteExpiredLog()), client.ask(DeleteExpiredLog()))
            assert sorted(answer.remark or "" for answer in both)[0] == "0 log files deleted", "one of them was first"
            low, _high = await bounds(client)
            assert low > 0
            assert await read(client, low) == list(range(low, 60))
            again = await client.ask(DeleteExpiredLog())
            assert again.remark == "0 log files deleted"

    run(test())


def test_nothing_goes_that_is_not_on_disk_yet_or_not_expired(tmp_path: Path) -> None:
    async def test() -> None:
        unexpired = SMALL | {"retention_hours": 1, "delete_hours": tuple(range(24))}
        async with running(tmp_path, store=unexpired) as broker, speaking(broker) as client:
            await fill(client, 40)
            assert (await client.ask(DeleteExpiredLog())).remark == "0 log files deleted"
            await broker.upkeep.clean()
            assert await read(client, 0) == list(range(40))

    run(test())


@pytest.mark.parametrize("mode", KERNELS)
def test_readers_in_the_middle_of_what_goes(tmp_path: Path, mode: str) -> None:
    """Everything is cold, so workers read while files are deleted under them: each pull is answered, none is wrong."""

    async def test() -> None:
        async with running(tmp_path, mode, store=SMALL) as broker, speaking(broker) as client:
            await fill(client, 60)
            done = asyncio.Event()

            async def consume() -> int:
                async with speaking(broker) as consumer:
                    answered = offset = 0
                    while not done.is_set():
                        broker.kernel.hot_from = broker.store.log.end
                        answer = await consumer.pull("t", offset, explicit=True, count_max=3, timeout=30)
                        answered += 1
                        if answer.code == 0:
                            found = numbers([record.body for record in iter_records(answer.body)])
                            assert found == list(range(found[0], found[0] + len(found)))
                            assert found[0] >= offset
                        offset = int(answer.ext["nextBeginOffset"]) % 60  # at the end: back to what is long gone
                    return answered

            consumers = [asyncio.ensure_future(consume()) for _ in range(4)]
            await asyncio.sleep(0)
            for _ in range(3):
                await client.ask(DeleteExpiredLog())
                await fill(client, 20, start=(await bounds(client))[1])
            done.set()
            assert all(count > 3 for count in await asyncio.gather(*consumers))

    run(test())


# --- topics that are deleted ---------------------------------------------------------------------------------------------


async def delete_topic(client: Speaker, name: str) -> None:
    answer = await client.ask(DeleteTopic(topic=name))
    assert answer.code == 0, answer.remark


async def only_new(client: Speaker, expected: list[bytes], low: int) -> None:
    assert await bounds(client) == (low, low + len(expected))
    records = await client.read("t", offset=low)
    assert [record.body for record in records] == expected
    assert [record.queue_offset for record in records] == list(range(low, low + len(expected)))
    old = await client.pull("t", 0, explicit=True)
    assert old.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), "goes on where the topic begins now"
    assert [record.body for record in iter_records(old.body)] == expected, "old messages stay gone"


@pytest.mark.parametrize("mode", KERNELS)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_topic_made_again_goes_on_counting(tmp_path: Path, mode: str, flush: str) -> None:
    store: dict[str, Any] = SMALL | {"retention_hours": 72, "flush": flush}
    data, photo = tmp_path / "data", tmp_path / "photo"  # of the moment before a crash

    async def test() -> None:
        async with running(data, mode, store=store) as broker, speaking(broker) as client:
            for number in range(10):
                await client.send("t", b"old %d" % number)
            await client.subscribe("g", "t")
            commit = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=10)
            await client.ask(commit)
            await delete_topic(client, "t")
            assert (await client.pull("t", 0, explicit=True)).code == ResponseCode.TOPIC_NOT_EXIST
            first = await client.send("t", b"new 0")  # at once: what is done in the background must not take it along
            assert (first.code, first.ext["queueOffset"]) == (0, "10")
            await only_new(client, [b"new 0"], 10)
            await eventually(lambda: not broker._base.jobs)
            await crash_copy(broker, photo)
        expected = [b"new 0"]
        ends = [(data, ""), (photo, ""), (data, "consumequeue"), (photo, "consumequeue"), (photo, "config")]
        for root, spoil in ends:
            if spoil:
                shutil.rmtree(root / spoil)
            async with running(root, mode, store=store) as broker, speaking(broker) as client:
                have = [record.body for record in await client.read("t", offset=10)]
                await only_new(client, have, 10)
                assert have[:1] == expected
                answer = await client.send("t", b"new %d" % len(have))
                assert answer.ext["queueOffset"] == str(10 + len(have))

    run(test())


@pytest.mark.parametrize("mode", KERNELS)
def test_deleted_twice_and_left_so(tmp_path: Path, mode: str) -> None:
    store = SMALL | {"retention_hours": 72}

    async def test() -> None:
        async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
            for round_ in range(2):
                for number in range(5):
                    answer = await client.send("t", b"x")
                    assert answer.ext["queueOffset"] == str(round_ * 5 + number)
                await delete_topic(client, "t")
            await eventually(lambda: not (tmp_path / "consumequeue" / "t").exists())
            assert broker.topics.get("t") is None
        for lost in ("nothing", "consumequeue"):
            shutil.rmtree(tmp_path / lost, ignore_errors=True)
            async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
                assert broker.topics.get("t") is None, "a topic that was deleted does not come back with its messages"
                assert (await client.pull("t", 0, explicit=True)).code == ResponseCode.TOPIC_NOT_EXIST
        async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
            assert (await client.send("t", b"back")).ext["queueOffset"] == "10"
            await only_new(client, [b"back"], 10)

    run(test())


def test_who_waits_in_a_topic_that_goes_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client, speaking(broker) as consumer:
            await client.send("t", b"x")
            waiting = asyncio.ensure_future(consumer.pull("t", 1, explicit=True, sys_flag=6, hold_ms=300))
            await eventually(lambda: broker.pulls.waiting.count)
            await delete_topic(client, "t")
            answer = await asyncio.wait_for(waiting, 5)
            assert answer.code in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.TOPIC_NOT_EXIST,
                ResponseCode.PULL_OFFSET_MOVED,
            )

    run(test())

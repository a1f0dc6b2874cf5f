"""What is done from time to time: files behind queues, the next log file, retention, and that nothing of it stops for good."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.events import Tick
from kappamq.broker.sending.gate import DISK_FULL, FAILED
from kappamq.clock import VirtualClock
from kappamq.errors import NotAvailable
from kappamq.native.layout import ENTRY
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import QueryConsumerOffset, QueryMessage, UpdateConsumerOffset
from kappamq.state.metadata import TOPIC
from kappamq.store import retention
from tests.broker.operating import make_groups, make_topic, ok, on_broker
from tests.broker.running import Speaker, on_disk, run, running, speaking
from tests.store.faulty import SlowFlusher
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

SMALL = {"segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "queue_file_entries": 16, "index_entries": 32}
NEVER = {"delete_hours": (), "clean_interval_ms": 3_600_000, "disk_clean_ratio": 1.0}
with_each_kernel = pytest.mark.parametrize("kernel", kernels())


async def send(client: Speaker, count: int, queue_id: int = 0, topic: str = "t", size: int = 4000) -> None:
    for number in range(count):
        text = f"UNIQ_KEY\x01{topic}{queue_id}-{number}\x02KEYS\x01all"
        answer = await client.send(topic, b"%05d" % number + bytes(size), queue_id, text)
        assert answer.code == 0, answer.remark


# -- retention -------------------------------------------------------------------------------------------------------------


@with_each_kernel
def test_after_retention_queues_and_index_begin_where_the_log_does(tmp_path: Path, kernel: str) -> None:
    """Four queues: all of it gone, part of it gone, only new messages, never any."""

    async def check(broker: Broker, client: Speaker) -> None:
        low, end, following, _stored = broker.kernel.queue_state("t", 0)
        assert (low, end, following) == (8, 8, 8), "empty, and its numbers go on"
        low, end = broker.kernel.queue_state("t", 1)[:2]
        assert 0 < low < end == 60
        assert broker.kernel.queue_state("t", 2)[:2] == (0, 3)
        assert broker.kernel.queue_state("t", 3)[:2] == (0, 0)
        records = await client.read("t", 1, offset=low)
        assert [int(record.body[:5]) for record in records] == list(range(low, 60))
        assert records[0].log_offset >= broker.store.log.min
        moved = await client.pull("t", 0, 1, explicit=True)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(low))

    async def test() -> None:
        store = SMALL | NEVER | {"retention_hours": 1, "index_slots": 97}
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await send(client, 8, 0)
            await send(client, 60, 1)
            await send(client, 3, 2)
            await broker.upkeep.write_derived()
            segments = list(broker.store.log.segments())
            assert len(segments) > 4
            keys = len(broker.store.index.infos())
            assert await broker.upkeep.delete_expired(asked=True) == 0, "nothing is old enough"
            for segment in segments[:3]:
                os.utime(segment.path, (1, 1))
            await on_disk(broker)
            assert await broker.upkeep.delete_expired() == 0, "not the hour"
            assert await broker.upkeep.delete_expired(asked=True) == 3
            assert broker.store.log.min == segments[3].start
            assert not segments[0].path.exists()
            await check(broker, client)
            folder = tmp_path / "consumequeue" / "t" / "1"
            assert f"{0:020d}" not in os.listdir(folder)
            assert len(broker.store.index.infos()) < keys
            gone = QueryMessage(topic="t", key="t0-0", count_max=5, begin_ms=0, end_ms=1 << 60)
            assert (await client.ask(gone)).code == ResponseCode.QUERY_NOT_FOUND
            assert await broker.upkeep.delete_expired(asked=True) == 0
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            await check(broker, client)
            assert (await client.send("t", b"next", 0)).ext["queueOffset"] == "8"
            assert [record.body for record in await client.read("t", 0, offset=8)] == [b"next"]

    run(test())


def test_what_the_log_alone_holds_is_saved_before_its_file_goes(tmp_path: Path) -> None:
    """Topics and offsets are records, too: they must be in snapshots when the file that holds them is deleted."""

    async def test() -> None:
        store = SMALL | NEVER | {"retention_hours": 0}
        async with running(tmp_path, store=store, offsets_flush_ms=3_600_000) as broker, speaking(broker) as client:
            await make_topic(client, "t", 3)
            await send(client, 5)
            await make_groups(client, "g")
            await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=5))
            broker.offsets.record_commits()
            await send(client, 60)
            await on_disk(broker)
            assert await broker.upkeep.delete_expired(asked=True) > 2
            assert broker.metadata.needed_from >= broker.store.log.min
            await send(client, 1)
        (tmp_path / "abort").touch()  # as after a crash
        async with running(tmp_path, store=store) as broker, speaking(broker) as client:
            assert broker.topics.table["t"].read_queues == 3
            asked = await ok(client, QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert int(asked.ext["offset"]) == 5

    run(test())


class Keeping:
    """Needs the log from its beginning on until it is asked to copy what it needs."""

    def __init__(self, able: bool) -> None:
        self.able = able
        self.needed_from = 0

    async def renew_below(self, log_min: int) -> None:
        if not self.able:
            raise NotAvailable("no room")
        self.needed_from = log_min


@on_broker(store=SMALL | NEVER | {"retention_hours": 0})
async def test_who_keeps_something_in_the_log_is_asked_to_copy_it_first(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await send(client, 60)
    await on_disk(broker)
    keeper = Keeping(able=False)
    broker.upkeep.keep_for(keeper)
    assert await broker.upkeep.delete_expired(asked=True) == 0, "it could not, so the log stays"
    keeper.able = True
    assert await broker.upkeep.delete_expired(asked=True) > 2
    assert keeper.needed_from == broker.store.log.min


@on_broker(store=NEVER)
async def test_the_guard_of_the_disk(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    broker.upkeep._guard_disk(retention.Usage(total_bytes=100 << 30, free_bytes=1 << 30))
    assert broker.gate.has(DISK_FULL)
    answer = await client.send("t", b"x")
    assert (answer.code, "99.0% full" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    broker.upkeep._guard_disk(retention.Usage(total_bytes=100 << 30, free_bytes=50 << 30))
    assert not broker.gate.has(DISK_FULL)
    assert (await client.send("t", b"x")).code == 0


# -- files -----------------------------------------------------------------------------------------------------------------


@on_broker(store={"queue_flush_interval_ms": 3_600_000})
async def test_entries_get_to_their_files(broker: Broker, client: Speaker) -> None:
    entered: list[int] = []

    async def note(work: object) -> None:
        entered.append(broker.kernel.queue_state("t", 0).end)

    await make_topic(client, "t")
    await send(client, 5)
    assert broker.store.queues.read("t", 0, 0, 5).strip(b"\0") == b"", "not yet"
    broker.upkeep._entered = note
    await broker.upkeep.write_derived()
    await broker.upkeep.write_derived()
    assert entered == [5], "the second time there was nothing new"
    entries = list(ENTRY.iter_unpack(broker.store.queues.read("t", 0, 0, 5)))
    assert [entry[0] for entry in entries] == [record.log_offset for record in await client.read("t")]


@on_broker(store={"queue_flush_interval_ms": 3_600_000, "flush_interval_ms": 3_600_000}, flusher=SlowFlusher)
async def test_queue_files_are_not_made_durable_before_the_log_is(broker: Broker, client: Speaker) -> None:
    """After a power cut the position would name bytes that the log does not have: it would pass for another broker's."""
    await make_topic(client, "t")
    await send(client, 5)
    broker.upkeep._synced_at = float("-inf")
    for _ in range(2):
        await broker.upkeep.write_derived()
    store = broker.store
    assert store.derived.noted.synced <= store.marks.flushed.offset < store.derived.noted.dispatched
    store.request_flush()
    SlowFlusher.made.sync()
    await eventually(lambda: store.marks.flushed.offset == store.log.end, text="the log is on disk")
    await broker.upkeep.write_derived()
    assert store.derived.noted.synced == store.log.end


@on_broker(store=SMALL)
async def test_the_next_log_file_is_made_before_it_is_needed(broker: Broker, client: Speaker) -> None:
    log = broker.store.log
    await make_topic(client, "t")
    await send(client, 4)
    assert len(list(log.segments())) == 1
    await send(client, 5)
    assert log.end > log.segment_bytes // 2
    await eventually(lambda: log.next_is_ready)
    assert log.end < log.segment_bytes
    await send(client, 9)
    assert log.end > log.segment_bytes


@on_broker(store=SMALL)
async def test_the_next_log_file_does_not_queue_behind_readers(broker: Broker, client: Speaker) -> None:
    """The loop itself waits for it when it is needed; cold pulls may keep all readers busy for long."""
    may_go = threading.Event()
    busy = [broker.workers.read(may_go.wait, 30) for _ in range(50)]
    try:
        await make_topic(client, "t")
        await send(client, 9)
        await eventually(lambda: broker.store.log.next_is_ready)
    finally:
        may_go.set()
        await asyncio.gather(*busy)


@on_broker()
async def test_writers_take_turns_and_readers_do_not(broker: Broker, client: Speaker) -> None:
    done: list[int] = []
    loop, first_may_go, meet = asyncio.get_running_loop(), threading.Event(), threading.Barrier(2, timeout=10)

    def first() -> None:
        assert first_may_go.wait(10)
        done.append(0)

    writes = [broker.workers.write(first), *(broker.workers.write(done.append, number) for number in range(1, 20))]
    await asyncio.gather(*(broker.workers.read(meet.wait) for _ in range(2)))  # both at once, while a write is stuck
    assert done == []
    loop.call_soon(first_may_go.set)
    await asyncio.gather(*writes)
    assert done == list(range(20))


# -- again and again -------------------------------------------------------------------------------------------------------


def test_work_that_fails_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            tries: list[int] = []

            async def work() -> None:
                tries.append(1)
                raise RuntimeError("no luck")

            def fail(event: Tick) -> None:
                raise ZeroDivisionError

            broker.upkeep._every(lambda: 0.001, work)
            await eventually(lambda: len(tries) >= 3)
            broker.events.on(Tick, fail)
            await eventually(lambda: "ZeroDivisionError" in caplog.text)
            broker.events.off(Tick, fail)
            assert (await client.send("t", b"x")).code == 0

    with caplog.at_level(logging.ERROR):
        run(test())
    assert "upkeep failed, trying again in 0.001 s" in caplog.text


def test_a_pause_can_be_shortened_while_it_lasts(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            pause = [3600.0]
            done = asyncio.Event()

            async def work() -> None:
                done.set()

            broker.upkeep._every(lambda: pause[0], work)
            await asyncio.sleep(0)
            pause[0] = 0.001
            await asyncio.wait_for(done.wait(), 10)

    run(test())


def test_a_stop_keeps_what_was_committed_last(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, offsets_flush_ms=3_600_000) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await send(client, 9)
            await make_groups(client, "g")
            await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=7))
        async with running(tmp_path) as broker, speaking(broker) as client:
            asked = await ok(client, QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert asked.ext["offset"] == "7"

    run(test())


@with_each_kernel
def test_keys_of_old_messages_are_entered_beside_the_work(tmp_path: Path, kernel: str) -> None:
    """The index was off, or lost: it catches up from the log while new messages come."""

    async def test() -> None:
        async with running(tmp_path, kernel, store={"index_enabled": False}) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await send(client, 50, size=10)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 50, 1, size=10)
            await eventually(lambda: not broker.store.catching_up())
            for key in ("t0-0", "t0-49", "t1-0", "t1-49"):
                query = QueryMessage(topic="t", key=key, count_max=5, begin_ms=0, end_ms=1 << 60)
                assert (await client.ask(query)).code == 0, key

    run(test())


# -- consumer offsets ------------------------------------------------------------------------------------------------------


def test_offsets_are_in_the_log_at_once_and_in_their_file_now_and_then(tmp_path: Path) -> None:
    """They change all the time, and the file holds those of all groups."""

    async def test() -> None:
        clock = VirtualClock()
        path = tmp_path / "config" / "consumerOffset.json"
        async with (
            running(tmp_path, clock=clock, net={"idle_s": 0}, offsets_flush_ms=3_600_000) as broker,
            speaking(broker) as client,
        ):
            await make_topic(client, "t")
            await send(client, 7)
            await make_groups(client, "g")

            async def commit(offset: int) -> None:
                header = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=offset)
                await ok(client, header)
                await broker.upkeep._record_and_save()

            await commit(0)  # at the first opportunity: what was found at the start may be news
            assert '"0":0' in path.read_text()
            before = broker.kernel.queue_state(TOPIC, 0).next
            for offset in range(1, 6):
                await commit(offset)
            assert broker.kernel.queue_state(TOPIC, 0).next >= before + 5
            assert '"0":0' in path.read_text()
            clock.advance(31)
            await commit(6)
            assert '"0":6' in path.read_text()
            await commit(7)
            assert '"0":7' not in path.read_text()
        assert '"0":7' in path.read_text(), "a stop leaves nothing behind"

    run(test())


def test_offsets_that_the_log_does_not_take_go_to_their_file_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, offsets_flush_ms=3_600_000) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await send(client, 5)
            await broker.upkeep._record_and_save()  # the next one would be due in half a minute
            broker.offsets.commit("g", "t", 0, 5)
            broker.gate.close(FAILED, NotAvailable("no disk"), for_all=True)
            await broker.upkeep._record_and_save()
            assert '"0":5' in (tmp_path / "config" / "consumerOffset.json").read_text()

    run(test())


@with_each_kernel
def test_deleted_topics_are_forgotten_with_the_log_that_held_them(tmp_path: Path, kernel: str) -> None:
    async def test() -> None:
        store = SMALL | NEVER | {"retention_hours": 1}
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            for name in ("gone", "again"):
                await send(client, 2, topic=name)
                assert broker.topics.delete(name)
            await send(client, 1, topic="again")
            assert set(broker.topics.deleted) == {"gone", "again"}
            broker.topics.forget_deleted(broker.store.log.min)
            assert set(broker.topics.deleted) == {"gone", "again"}, "their messages are still in the log"
            await send(client, 40)
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            assert set(broker.topics.deleted) == {"gone", "again"}
            for path in (tmp_path / "commitlog").iterdir():
                os.utime(path, (0, 0))
            assert await broker.upkeep.delete_expired(asked=True) > 0
            assert set(broker.topics.deleted) == {"again"}, "its numbering goes on: it was made again"
            await send(client, 1, topic="gone")
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            assert set(broker.topics.deleted) == {"again"}, "it is not in the file any more"
            assert len(await client.read("gone", 0, broker.kernel.queue_state("gone", 0).first)) == 1

    run(test())


def test_no_snapshot_knows_more_than_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        store = {"sync_flush_timeout_ms": 50, "flush_interval_ms": 3_600_000}
        async with running(tmp_path, flusher=SlowFlusher, store=store) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await broker.upkeep._record_and_save(last=True)
            assert broker.topics.dirty, "the disk has not confirmed the record: it comes again"
            saving = asyncio.ensure_future(broker.upkeep._record_and_save(last=True))
            await asyncio.sleep(0)
            SlowFlusher.made.sync()
            await saving
            assert not broker.topics.dirty

    run(test())


@with_each_kernel
def test_many_entries_do_not_wait_in_memory_for_their_time(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappamq.broker.upkeep.upkeep._DERIVED_AT_ONCE", 20)

    async def test() -> None:
        options = {"queue_flush_interval_ms": 3_600_000}
        async with running(tmp_path, kernel, store=options) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await send(client, 15, size=10)
            await broker.upkeep._tick()
            assert broker.upkeep._relief is None, "few of them can wait"
            await send(client, 30, queue_id=1, size=10)
            await broker.upkeep._tick()
            await eventually(lambda: broker.kernel.queue_state("t", 1).stored > 0)

    run(test())

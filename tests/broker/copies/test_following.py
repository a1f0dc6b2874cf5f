"""A slave's side: bytes in pieces of any size, masters that go away, and what else a slave does with what it gets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kappamq.broker.copies.following import Incoming
from kappamq.config.copies import CopiesConfig
from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from kappamq.replication.frames import BadStream
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


def test_what_is_not_whole_waits_for_the_rest() -> None:
    incoming = Incoming(100)
    incoming.add(100, memoryview(b"abcdef"))
    incoming.stored(104)
    assert (incoming.start, bytes(incoming.data)) == (104, b"ef")
    incoming.add(106, memoryview(b"gh"))
    assert bytes(incoming.data) == b"efgh"
    incoming.stored(108)
    assert (incoming.start, bytes(incoming.data)) == (108, b"")


def test_what_lies_behind_an_end_mark_is_passed_over() -> None:
    incoming = Incoming(100)
    incoming.add(100, memoryview(b"the end mark"))
    incoming.stored(120)  # of a file that ends there
    incoming.add(112, memoryview(b"pad"))
    assert bytes(incoming.data) == b""
    incoming.add(115, memoryview(b"dingabc"))
    assert (incoming.start, bytes(incoming.data)) == (120, b"bc")


@pytest.mark.parametrize("offset", [99, 101])
def test_a_gap_is_refused(offset: int) -> None:
    with pytest.raises(BadStream, match="ends at 100"):
        Incoming(100).add(offset, memoryview(b"x"))


def test_a_record_without_end_is_not_buffered_for_ever() -> None:
    incoming = Incoming(0)
    piece = memoryview(bytes(1 << 20))
    with pytest.raises(BadStream, match="no whole record"):
        for number in range(70):
            incoming.add(number << 20, piece)


def test_topics_groups_and_offsets_come_with_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m", offsets_flush_ms=20))
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s"))
            to_master = await stack.enter_async_context(speaking(master))
            to_slave = await stack.enter_async_context(speaking(slave))
            await to_master.subscribe("g", "tea")
            for number in range(4):
                await to_master.send("tea", b"%d" % number)
            await to_master.ask(UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=3))
            query = QueryConsumerOffset(consumer_group="g", topic="tea", queue_id=0)

            async def has_the_offset() -> bool:
                return (await to_slave.ask(query)).ext.get("offset") == "3"

            await eventually_async(has_the_offset, text="the slave knows the offset")
            assert slave.topics.get("tea") == master.topics.get("tea")
            assert slave.groups.table.keys() == master.groups.table.keys()

    run(test())


def test_a_deleted_topic_is_gone_on_the_slave_too_and_can_come_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m"))
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s"))
            to_master = await stack.enter_async_context(speaking(master))
            to_slave = await stack.enter_async_context(speaking(slave))
            await to_master.subscribe("g", "tea")
            for number in range(3):
                await to_master.send("tea", b"old %d" % number)
            await caught_up(master, slave)
            master.topics.delete("tea")
            await caught_up(master, slave)
            await eventually_async(lambda: slave.topics.get("tea") is None, text="the topic is gone")
            await to_master.send("tea", b"new")
            await caught_up(master, slave)
            assert [record.body for record in await to_slave.read("tea", offset=3)] == [b"new"]
            assert slave.kernel.queue_state("tea", 0)[:2] == master.kernel.queue_state("tea", 0)[:2] == (3, 4)

    run(test())


def test_a_master_that_restarts_is_followed_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            slaves = AsyncExitStack()
            stack.push_async_callback(slaves.aclose)
            async with running(tmp_path / "m") as master:
                port = master.port
                slave = await slaves.enter_async_context(slave_of(master, tmp_path / "s"))
                async with speaking(master) as speaker:
                    await speaker.send("tea", b"1")
                await caught_up(master, slave)
            async with running(tmp_path / "m", port=port) as master, speaking(master) as speaker:
                await speaker.send("tea", b"2")
                await caught_up(master, slave)
                same_logs(master, slave)
                await slaves.aclose()

    run(test())


def test_a_slave_deletes_log_files_with_its_master_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m", store={"retention_hours": 0}))
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s"))
            speaker = await stack.enter_async_context(speaking(master))
            for _ in range(30):
                await speaker.send("big", b"x" * 100_000)
            await caught_up(master, slave)
            assert await slave.upkeep.delete_expired() == 0

            async def deleted() -> bool:
                """As soon as files are on disk, and the slave has reported that it has them."""
                return bool(await master.upkeep.delete_expired(asked=True))

            await eventually_async(deleted, text="the master deletes its first files")
            assert master.store.log.min > 0
            await eventually_async(
                lambda: slave.store.log.min == master.store.log.min, text="the slave has deleted them"
            )
            same_logs(master, slave)

    run(test())


def test_a_record_longer_than_the_window_arrives(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(window_bytes=64 << 10)
        async with (
            running(tmp_path / "m", copies=copies) as master,
            slave_of(master, tmp_path / "s") as slave,
            speaking(master) as speaker,
        ):
            assert (await speaker.send("tea", b"x" * (200 << 10))).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)

    run(test())

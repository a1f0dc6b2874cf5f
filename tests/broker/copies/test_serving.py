"""The master's side: several followers, which of them count, and what is kept for them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.protocol.codes import ResponseCode
from kappamq.store.recovery import fingerprint
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


def test_as_many_slaves_as_are_awaited(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            copies = CopiesConfig(role=SYNC_MASTER, in_sync=3)
            master = await stack.enter_async_context(running(tmp_path / "m", copies=copies))
            speaker = await stack.enter_async_context(speaking(master))
            first = await stack.enter_async_context(slave_of(master, tmp_path / "1"))
            await eventually_async(lambda: first.copies.following.is_connected, text="one slave follows")
            answer = await speaker.send("tea", b"two copies")
            assert (answer.code, "1 of 2 slaves" in answer.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, True)
            second = await stack.enter_async_context(slave_of(master, tmp_path / "2", broker_id=2))
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="both follow")
            await caught_up(master, first, second)
            assert (await speaker.send("tea", b"three copies")).code == 0
            await caught_up(master, first, second)
            same_logs(master, first, second)

    run(test())


def test_a_slave_that_comes_back_before_it_was_missed_is_one_copy(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            copies = CopiesConfig(role=SYNC_MASTER, in_sync=3)
            master = await stack.enter_async_context(running(tmp_path / "m", copies=copies))
            speaker = await stack.enter_async_context(speaking(master))
            first = await stack.enter_async_context(slave_of(master, tmp_path / "1"))
            await stack.enter_async_context(slave_of(master, tmp_path / "2", broker_id=2))
            followers = master.copies.followers
            await eventually_async(lambda: followers.held.missing() is None, text="both follow")
            before = followers.held.held()
            await speaker.send("tea", b"1")
            await caught_up(master, first)
            (old,) = [link for link in followers.following if link.broker_id == 1]
            again = replace(first.copies.greeting(), end=before)
            followers.greet(replace(again, crc=fingerprint(master.store, before) if before else 0))
            # No turn of the event loop has passed: what the old connection reported does not count any more.
            assert old not in followers.following
            assert followers.held.missing() == "1 of 2 slaves that are awaited are connected"
            await eventually_async(lambda: followers.held.missing() is None, text="it follows again")
            assert (await speaker.send("tea", b"2")).code == 0

    run(test())


def test_two_slaves_of_one_id_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with (
            running(tmp_path / "m") as master,
            slave_of(master, tmp_path / "1") as first,
        ):
            await eventually_async(lambda: first.copies.following.is_connected, text="the first follows")
            async with slave_of(master, tmp_path / "2") as second:
                await eventually_async(lambda: "each copy needs its own" in caplog.text, text="the second is told")
                assert first.copies.following.is_connected
                assert not second.copies.following.is_connected

    run(test())


def test_log_files_are_kept_for_slaves_up_to_a_limit(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(keep_bytes_max=1000)
        async with running(tmp_path / "m", copies=copies) as master, slave_of(master, tmp_path / "s") as slave:
            await eventually_async(lambda: slave.copies.following.is_connected, text="the slave follows")
            followers = master.copies.followers
            (link,) = followers.following
            assert link.feed is not None
            assert followers.needed_from == link.feed.written
            async with speaking(master) as speaker:
                await speaker.send("tea", b"x" * 10_000)
            await caught_up(master, slave)
            await eventually_async(
                lambda: followers.needed_from >= master.store.log.end - 1000, text="what a slave has need not be kept"
            )

    run(test())


def test_a_role_that_ends_lets_its_followers_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
            await eventually_async(lambda: slave.copies.following.is_connected, text="the slave follows")
            await master.end_role()
            await eventually_async(lambda: not slave.copies.following.is_connected, text="it is let go")
            assert not master.copies.followers.following
            await master.begin_role()
            await eventually_async(lambda: slave.copies.following.is_connected, text="and comes back")

    run(test())

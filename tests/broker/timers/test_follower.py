"""Who may get the role enters timers as they come; the role goes on from there, and nothing of it is done twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.events import Tick
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.follower import TimerFollower
from kappamq.broker.upkeep.jobs import Jobs
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from kappamq.store.timer.entries import ROLL_MS
from tests.broker.timers.test_book import Bench, T, bench


class Following:
    def __init__(self, it: Bench, *, may_lead: bool = True) -> None:
        self.it, self.jobs, self.books, self.is_trusted = it, Jobs(), 0, True
        self.now_ms = T
        self.follower = TimerFollower(
            it.store,
            self._book,
            it.progress,
            lambda: self.now_ms,
            self.jobs.run,
            lambda: self.is_trusted,
            may_lead=may_lead,
        )

    def _book(self) -> TimerBook:
        self.books += 1
        return self.it.book

    async def caught_up(self) -> None:
        self.follower.ticked(Tick())
        await self.jobs.finish(20)


def test_the_role_finds_what_was_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.broker.timers.follower.ENTER_MAX", 2)

    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            offsets = [it.park(due) for due in (5500, 1001, 5400)]
            await following.caught_up()
            offsets += [it.park(due) for due in (700, 900)]
            await following.caught_up()
            assert await following.follower.take()
            following.follower.ticked(Tick())
            assert not len(following.jobs), "the files are the role's now"
            opened = it.book.open(it.progress)
            assert (opened.queue_offset, opened.rebuilt) == (5, False)
            assert [timer.log_offset for timer in it.load()[0]] == [offsets[n] for n in (3, 4, 1, 2, 0)]
            it.book.leave()
            following.follower.give_back()
            it.park(100)
            await following.caught_up()
            assert await following.follower.take()
            assert it.book.open(it.progress).queue_offset == 6
            assert following.books == 2

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_new_store_is_nothing_to_warn_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            await following.caught_up()
            await following.follower.take()

    asyncio.run(asyncio.wait_for(test(), 30))
    assert not caplog.text


def test_what_is_delivered_elsewhere_is_not_read_again(tmp_path: Path) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            first, second = it.park(1000), it.park(2000)
            await following.caught_up()
            it.progress.apply("timer", {"due": [T + 1000, first]})
            await following.follower.take()
            it.book.open(it.progress)
            assert [timer.log_offset for timer in it.load()[0]] == [second]

    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize("known", [True, False], ids=["noticed", "noticed by nobody"])
def test_files_of_another_clock_are_made_anew(tmp_path: Path, known: bool) -> None:
    """Also if the role comes before the step was noticed, and the former leader has made its own files by it already."""

    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            offset = it.park(10_000, TIMER_DELAY_MS="10000")
            await following.caught_up()
            end = it.store.log.end
            it.store.clock_steps = ClockSteps().plus(ClockStep(end, 5000, T + 5000))
            if known:
                await following.caught_up()
            it.progress.apply("timer", {"built": end})
            await following.follower.take()
            opened = it.book.open(it.progress)
            assert opened.rebuilt is not known
            if not known:
                it.book.enter(0, 1, b"", 0, it.progress, T, 1 << 62)
            (timer,) = it.load()[0]
            assert (timer.log_offset, timer.due_ms) == (offset, T + 15_000)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_clock_that_is_behind_does_not_move_a_roll(tmp_path: Path) -> None:
    """The leader's progress says which rolls have happened, so they must be at the same moments here."""

    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            following.now_ms = T - 500
            offset = it.park(5 * 86_400_000)
            await following.caught_up()
            it.progress.apply("timer", {"due": [T + ROLL_MS - 100, offset + 1]})  # the leader is about to roll it
            await following.follower.take()
            it.book.open(it.progress)
            (timer,) = it.load(0, 6 * 86_400_000)[0]
            assert (timer.log_offset, timer.due_ms) == (offset, T + ROLL_MS)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_another_brokers_files_are_left_for_the_role(tmp_path: Path) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            it.book.open(it.progress)
            it.park(1000)
            it.enter()
            it.book.leave()
            path = tmp_path / "config" / "timercheck"
            path.write_bytes(path.read_bytes()[:56])  # what a Java broker writes
            before = path.read_bytes()
            following = Following(it)
            it.park(2000)
            await following.caught_up()
            await following.caught_up()
            assert path.read_bytes() == before
            assert following.books == 1
            assert await following.follower.take()
            assert it.book.open(it.progress).change is not None

    asyncio.run(asyncio.wait_for(test(), 30))


def test_nothing_is_entered_while_the_tables_may_be_wrong(tmp_path: Path) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            it.park(1000)
            following.is_trusted = False
            await following.caught_up()
            assert following.books == 0
            following.is_trusted = True
            await following.caught_up()
            assert following.books == 1

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_node_that_cannot_lead_leaves_the_files_alone(tmp_path: Path) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it, may_lead=False)
            it.park(1000)
            await following.caught_up()
            assert following.books == 0
            assert not await following.follower.take()
            await following.follower.stop()
            following.follower.give_back()
            await following.caught_up()
            assert following.books == 0

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_disk_that_fails_ends_it_until_the_role_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        with bench(tmp_path) as it:
            following = Following(it)
            it.park(1000)

            def fails(*_arguments: object) -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(it.book, "enter", fails)
                await following.caught_up()
            assert "the timer files are not kept up" in caplog.text
            await following.caught_up()
            assert await following.follower.take()
            following.follower.give_back()
            await following.caught_up()
            assert await following.follower.take()
            assert it.book.open(it.progress).queue_offset == 1

    asyncio.run(asyncio.wait_for(test(), 30))

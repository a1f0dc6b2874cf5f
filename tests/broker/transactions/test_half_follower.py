"""Who may get the role reads along; who has it, or never can, does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.events import Tick
from kappamq.broker.transactions.half_follower import HalfFollower
from kappamq.broker.upkeep.jobs import Jobs
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from tests.broker.half_life import HalfLife
from tests.broker.transacting import COMMIT


async def worker(work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(work, *arguments)


def following(life: HalfLife, jobs: Jobs, *, may_lead: bool = True) -> HalfFollower:
    return HalfFollower(life.new_fold, worker, jobs.run, may_lead=may_lead)


async def caught_up(follower: HalfFollower, jobs: Jobs) -> None:
    follower.ticked(Tick())
    await jobs.finish(20)


def test_little_is_left_for_the_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.broker.transactions.half_follower._COUNT", 7)

    async def test() -> None:
        life, jobs = HalfLife(tmp_path), Jobs()
        follower = following(life, jobs)
        begun = [life.begin(b"%d" % number) for number in range(50)]
        life.write()
        await caught_up(follower, jobs)
        assert life.end(begun[3], COMMIT) == 0
        life.write()
        await caught_up(follower, jobs)
        fold = await follower.take()
        assert not fold.is_behind
        assert len(fold.halves) == 49
        follower.ticked(Tick())
        assert not len(jobs), "the role knows it now"
        follower.give_back()
        await caught_up(follower, jobs)
        assert len((await follower.take()).halves) == 49, "read again from the log"
        life.store.close(clean=False)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_what_was_read_by_another_clock_is_read_again(tmp_path: Path) -> None:
    async def test() -> None:
        life, jobs = HalfLife(tmp_path), Jobs()
        follower = following(life, jobs)
        begun = life.begin(b"x")
        life.write()
        await caught_up(follower, jobs)
        life.store.clock_steps = ClockSteps().plus(ClockStep(life.store.log.end, 60_000, 5))
        life.clock.not_before(life.clock.message_ms() + 100_000)
        fold = await follower.take()
        fold.read_all()
        half = fold.halves.get(begun.log_offset)
        assert half is not None
        assert half.since_ms == life.store.last_ms + 60_000
        life.store.close(clean=False)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_node_that_cannot_lead_reads_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        life, jobs = HalfLife(tmp_path), Jobs()
        life.begin(b"x")
        life.write()
        follower = following(life, jobs, may_lead=False)
        follower.ticked(Tick())
        assert not len(jobs)
        fold = await follower.take()
        assert fold.is_behind
        follower.give_back()
        follower.ticked(Tick())
        assert not len(jobs)
        life.store.close(clean=False)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_stop_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.broker.transactions.half_follower._COUNT", 1)

    async def test() -> None:
        life, jobs = HalfLife(tmp_path), Jobs()
        for number in range(50):
            life.begin(b"%d" % number)
        life.write()
        follower = following(life, jobs)
        follower.ticked(Tick())
        follower.stop()
        await jobs.finish(20)
        assert (await follower.take()).is_behind
        life.store.close(clean=False)

    asyncio.run(asyncio.wait_for(test(), 30))

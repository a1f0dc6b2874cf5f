"""Background jobs: failures are told, and whoever stops waits for them, but not for ever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kappamq.broker.upkeep.jobs import Jobs


def test_they_run_and_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        jobs, may_end = Jobs(), asyncio.Event()
        done: list[str] = []

        async def good() -> None:
            await may_end.wait()
            done.append("good")

        async def bad() -> None:
            raise ZeroDivisionError("a bug")

        jobs.run(good())
        jobs.run(bad())
        assert len(jobs) == 2
        await jobs.finish(0.001)
        assert len(jobs) == 1, "one does not end by itself"
        may_end.set()
        await jobs.finish(10)
        assert done == ["good"]
        assert not jobs
        await jobs.finish(10)  # nothing to wait for

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(test(), 30))
    assert "a background job failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_one_that_was_ended_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        jobs = Jobs()
        jobs.run(asyncio.Event().wait())  # type: ignore[arg-type]
        (task,) = jobs._running
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not jobs

    asyncio.run(asyncio.wait_for(test(), 30))
    assert not caplog.text

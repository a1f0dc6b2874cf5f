"""A turn that kept everybody waiting is logged with its longest request, and counted."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from kappamq.net.requests.loop_watch import LONG_TURN_S, LoopWatch, name_of
from tests.waiting import eventually_async


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def asleep(seconds: float) -> None:
    time.sleep(seconds)  # it is about time: the loop is kept, without any CPU


async def noticed(watch: LoopWatch, count: int) -> None:
    await eventually_async(lambda: watch.long_turns >= count)


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the watch of this test logged. Brokers that other tests share watch their own loops, in threads of their own."""
    records: list[logging.LogRecord] = []
    here = threading.get_ident()
    handler = logging.Handler()
    handler.addFilter(lambda record: record.thread == here)
    handler.emit = records.append  # type: ignore[method-assign]
    watch_log = logging.getLogger("kappamq.net.requests.loop_watch")
    level = watch_log.level
    watch_log.addHandler(handler)
    watch_log.setLevel(logging.INFO)
    yield records
    watch_log.removeHandler(handler)
    watch_log.setLevel(level)


def test_a_long_turn_is_told_with_its_request(logged: list[logging.LogRecord]) -> None:
    async def test() -> None:
        watch = LoopWatch()
        watch.start()
        watch.took(34, "10.0.0.9:5000", 0.25)
        watch.took(105, "10.0.0.8:5000", 0.01)
        busy(2 * LONG_TURN_S)
        await noticed(watch, 1)
        assert watch.longest_turn_s > LONG_TURN_S
        before = watch.long_turns
        busy(2 * LONG_TURN_S)
        await noticed(watch, before + 1)
        watch.stop()

    run(test())
    warnings = [record.getMessage() for record in logged if record.levelname == "WARNING"]
    ours = [text for text in warnings if "HEART_BEAT (34) from 10.0.0.9:5000" in text]
    assert len(ours) == 1
    assert "a turn of the event loop took" in ours[0]
    assert "(250 ms)" in ours[0]


@pytest.mark.parametrize("because", ["a server was starting", "the machine is busy"])
def test_what_is_no_fault_of_a_request_is_no_warning(because: str, logged: list[logging.LogRecord]) -> None:
    async def test() -> None:
        watch = LoopWatch()
        if because == "a server was starting":
            watch.server_starts()
            watch.start()
            busy(2 * LONG_TURN_S)
        else:
            watch.start()
            watch.took(34, "10.0.0.9:5000", 0.25)
            busy(0.3 * LONG_TURN_S)
            asleep(2 * LONG_TURN_S)
        await noticed(watch, 1)
        watch.stop()

    run(test())
    assert any(because in record.getMessage() for record in logged)
    named = "HEART_BEAT (34) from 10.0.0.9:5000" in logged[0].getMessage()
    assert named == (because == "the machine is busy"), (
        "a disk that is slow for one request can be told from a busy machine"
    )
    assert {record.levelname for record in logged} == {"INFO"}


def test_a_start_is_over_when_the_server_is_ready(logged: list[logging.LogRecord]) -> None:
    async def test() -> None:
        watch = LoopWatch()
        watch.server_starts()
        watch.server_starts()
        watch.start()
        busy(2 * LONG_TURN_S)
        watch.server_is_ready()
        assert watch.long_turns == 1, "it ended here as far as anybody can have been waiting"
        busy(2 * LONG_TURN_S)
        watch.server_is_ready()
        assert watch.long_turns == 2, "the other server was still starting"
        busy(2 * LONG_TURN_S)
        await noticed(watch, 3)
        watch.stop()

    run(test())
    assert [record.levelname for record in logged[:3]] == ["INFO", "INFO", "WARNING"]
    assert ["while a server was starting" in record.getMessage() for record in logged[:3]] == [True, True, False]
    assert "1 such turn since the last report" in logged[2].getMessage()


def test_it_looks_again_and_again_until_it_is_stopped() -> None:
    async def test() -> None:
        watch = LoopWatch()
        watch.start()
        timer = watch._timer
        await eventually_async(lambda: watch._timer is not timer, text="it looks again")
        watch.stop()
        after = watch.long_turns
        busy(1.5 * LONG_TURN_S)
        for _ in range(5):
            await asyncio.sleep(0)
        assert watch.long_turns == after, "nobody watches any more"

    run(test())


def test_names_of_codes() -> None:
    assert name_of(34) == "HEART_BEAT (34)"
    assert name_of(4711) == "code 4711"

"""It keeps what `concurrent.futures.Future` promises, whoever waits for it and in whatever way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, CancelledError, Future, as_completed, wait

import pytest

from kappamq.client.blocking.send_future import SendFuture
from kappamq.message import MessageQueue, SendResult, SendStatus

RESULT = SendResult(status=SendStatus.OK, message_id="id", queue=MessageQueue("tea", "a", 0), queue_offset=7)
ROUNDS = 300


@pytest.fixture(params=[SendFuture, Future])
def make(request: pytest.FixtureRequest) -> Callable[[], Future[SendResult]]:
    """Ours, and the one whose promises it keeps."""
    found: Callable[[], Future[SendResult]] = request.param
    return found


def test_a_result_and_an_error(make: Callable[[], Future[SendResult]]) -> None:
    future, failed = make(), make()
    assert not future.done()
    assert not future.running()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0)
    future.set_result(RESULT)
    failed.set_exception(ValueError("no"))
    assert future.done()
    assert future.result() is future.result(1) is RESULT
    assert future.exception() is None
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    assert "finished" in repr(future)
    assert not future.cancel()
    assert not future.cancelled()


def test_a_cancelled_one_stays_cancelled(make: Callable[[], Future[SendResult]]) -> None:
    future, told = make(), []
    future.add_done_callback(told.append)
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert told == [future]
    with pytest.raises(CancelledError):
        future.result()


def test_a_result_that_comes_after_it_was_cancelled_is_dropped() -> None:
    future = SendFuture()
    future.cancel()
    future.set_result(RESULT)
    future.set_exception(ValueError())
    assert future.cancelled()


def test_callbacks_are_called_once_before_or_after(make: Callable[[], Future[SendResult]]) -> None:
    future, told = make(), []
    future.add_done_callback(lambda done: told.append(("before", done.result())))
    future.set_result(RESULT)
    future.add_done_callback(lambda done: told.append(("after", done.result())))
    assert told == [("before", RESULT), ("after", RESULT)]


def test_a_coroutine_can_wait_for_it(make: Callable[[], Future[SendResult]]) -> None:
    async def run() -> SendResult:
        future = make()
        threading.Timer(0.01, future.set_result, [RESULT]).start()
        return await asyncio.wait_for(asyncio.wrap_future(future), 10)

    assert asyncio.run(run()) is RESULT


def test_many_are_waited_for_together_while_they_are_settled(make: Callable[[], Future[SendResult]]) -> None:
    for number in range(ROUNDS):
        futures = [make() for _ in range(5)]
        settling = threading.Thread(target=lambda some=futures: [one.set_result(RESULT) for one in some])
        settling.start()
        if number % 3 == 0:
            assert set(as_completed(futures, 10)) == set(futures)
        elif number % 3 == 1:
            assert wait(futures, 10, ALL_COMPLETED).done == set(futures)
        else:
            assert [future.result(10) for future in futures] == [RESULT] * 5
        settling.join(10)


def test_a_race_between_settling_and_cancelling_has_one_winner() -> None:
    for _ in range(ROUNDS):
        future, told = SendFuture(), []
        future.add_done_callback(told.append)
        settling = threading.Thread(target=future.set_result, args=(RESULT,))
        settling.start()
        won = future.cancel()
        settling.join(10)
        assert won == future.cancelled()
        assert told == [future]


def test_nobody_waits_for_ever_in_the_child_of_a_fork() -> None:
    future, done = SendFuture(), SendFuture()
    with pytest.raises(TimeoutError):
        future.result(0)  # it has a condition now, which another thread might have held
    done.set_result(RESULT)
    for one in (future, done):
        one.abandon(ValueError("forked"))
    with pytest.raises(ValueError, match="forked"):
        future.result()
    assert done.result() is RESULT

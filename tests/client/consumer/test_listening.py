"""The workers alone; with a consumer around them they are in test_consumer.py."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kappamq.client.consumer.inbox import Delivery, Inbox
from kappamq.client.consumer.listening import RUN_S, STUCK_PER_WORKER_MAX, Listener, Listening
from kappamq.client.consumer.outcomes import EXPIRED
from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import RETRY, MessageQueue, ReceivedMessage, Redeliver
from tests.client.loop import on_loop
from tests.waiting import eventually_async

QUEUE = MessageQueue("tea", "b", 0)


class Noted:
    """An outcome that only takes notes."""

    def __init__(self, gives_up: bool = True) -> None:
        self.done: list[int] = []
        self.not_done: list[tuple[list[int], Redeliver]] = []
        self._gives_up = gives_up

    def succeeded(self, delivery: Delivery) -> None:
        self.done += [message.queue_offset for message in delivery.messages]

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        self.not_done.append(([message.queue_offset for message in delivery.messages], verdict))

    def gives_up(self, delivery: Delivery) -> bool:
        return self._gives_up

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        return "is noted"


def messages(first: int, end: int) -> list[ReceivedMessage]:
    return [
        ReceivedMessage(
            topic="tea", body=b"%d" % n, queue=QUEUE, queue_offset=n, log_offset=0, message_id=str(n), offset_id=""
        )
        for n in range(first, end)
    ]


class Setup:
    def __init__(
        self,
        listener: Listener,
        count: int,
        workers: int = 2,
        *,
        gives_up: bool = True,
        noted: Noted | None = None,
        inbox: Inbox | None = None,
        **options: Any,
    ) -> None:
        self.inbox = Inbox() if inbox is None else inbox
        self.queue = ProcessQueue(QUEUE, 0, Limits())
        self.noted = noted or Noted(gives_up)
        self.inbox.put(self.queue, self.queue.add(messages(0, count), count))
        self.listening = Listening(self.inbox, listener, self.noted, workers=workers, name="test", **options)
        self.listening.start()

    async def end(self) -> None:
        self.inbox.close()
        assert await self.listening.wait(30)


class Waiter:
    """A listener that is an object with a coroutine as its call."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)


def of_kind(kind: str, listener: Listener) -> Listener:
    async def asynchronous(given: Any) -> Any:
        return listener(given)

    return listener if kind == "thread" else asynchronous


@on_loop
async def test_functions_run_in_threads_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)
    work = Setup(lambda message: both.wait() and None, 2)
    await eventually_async(lambda: sorted(work.noted.done) == [0, 1])
    await work.end()


@on_loop
async def test_coroutines_run_in_tasks_and_objects_count_too() -> None:
    listener = Waiter()
    work = Setup(listener, 3)
    await eventually_async(lambda: len(work.noted.done) == 3)
    await work.end()
    assert sorted(listener.seen) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_what_raises_is_not_done_and_the_worker_goes_on(kind: str) -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.queue_offset == 1:
            raise RuntimeError("spilled")

    work = Setup(of_kind(kind, listen), 3, workers=1)
    await eventually_async(lambda: work.noted.done == [0, 2])
    await work.end()
    assert work.noted.not_done == [([1], RETRY)]


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_lists_come_whole_and_what_is_returned_says_how_much_is_done(kind: str) -> None:
    said = Redeliver(done=2, level=5)
    work = Setup(of_kind(kind, lambda messages: said if messages[0].queue_offset else True), 7, workers=1, batch=4)
    await eventually_async(lambda: work.noted.not_done)
    await work.end()
    assert (work.noted.done, work.noted.not_done) == ([0, 1, 2, 3], [([4, 5, 6], said)])


@on_loop
async def test_a_function_that_returns_a_coroutine_has_not_consumed_anything() -> None:
    async def forgotten() -> None:
        raise AssertionError("nobody waits for this")

    work = Setup(lambda message: forgotten(), 1)
    await eventually_async(lambda: work.noted.not_done == [([0], RETRY)])
    await work.end()


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_a_listener_cannot_end_its_worker(kind: str) -> None:
    def leave(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            if kind == "thread":
                sys.exit("I am leaving")
            raise asyncio.CancelledError

    work = Setup(of_kind(kind, leave), 2, workers=1)
    await eventually_async(lambda: work.noted.done == [1])
    await work.end()
    assert work.noted.not_done == [([0], RETRY)]


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_waiting_for_a_busy_listener_has_an_end(kind: str) -> None:
    busy, release, never = threading.Event(), threading.Event(), asyncio.Event()

    def stuck(message: ReceivedMessage) -> None:
        busy.set()
        release.wait(10)

    async def stuck_async(message: ReceivedMessage) -> None:
        busy.set()
        await never.wait()

    work = Setup(stuck if kind == "thread" else stuck_async, 1, workers=1)
    await eventually_async(busy.is_set)
    work.inbox.close()
    assert not await work.listening.wait(0.05)
    release.set()


@on_loop
async def test_a_task_that_hangs_is_cancelled_and_its_message_given_back() -> None:
    cancelled = []

    async def hang(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(message.queue_offset)

    work = Setup(hang, 3, workers=1, timeout_s=0.5)
    await eventually_async(lambda: work.noted.done == [1, 2])
    await work.end()
    assert (cancelled, work.noted.not_done) == ([0], [([0], EXPIRED)])


@pytest.mark.parametrize("gives_up", [True, False], ids=["given up", "waited for"])
@on_loop
async def test_a_thread_that_hangs_is_replaced_and_the_others_do_not_notice(gives_up: bool) -> None:
    release = threading.Event()

    def hang(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            release.wait(10)

    work = Setup(hang, 5, workers=1, timeout_s=0.5, gives_up=gives_up)
    await eventually_async(lambda: work.noted.done == [1, 2, 3, 4])
    expected = [([0], EXPIRED)] if gives_up else []
    await eventually_async(lambda: work.noted.not_done == expected)
    release.set()  # it comes back after all
    await work.end()
    assert work.noted.done == [1, 2, 3, 4] + ([] if gives_up else [0])
    assert work.noted.not_done == expected


@on_loop
async def test_there_is_an_end_to_replacing_threads() -> None:
    release = threading.Event()
    work = Setup(lambda message: release.wait(10) and None, 20, workers=1, timeout_s=0.02)
    everyone = STUCK_PER_WORKER_MAX + 1
    await eventually_async(lambda: len(work.noted.not_done) == STUCK_PER_WORKER_MAX)
    await eventually_async(lambda: len(work.inbox) == 20 - everyone)
    release.set()
    await eventually_async(lambda: len(work.noted.done) + len(work.noted.not_done) == 20)
    await work.end()


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_what_goes_wrong_after_the_listener_is_told_and_its_worker_goes_on(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.queue_offset == 2:
            raise RuntimeError("spilled")

    def measure(delivery: Delivery, seconds: float, ok: bool) -> None:
        if delivery.message.queue_offset == 0:
            raise RuntimeError("a bug in the statistics")

    class Buggy(Noted):
        def succeeded(self, delivery: Delivery) -> None:
            if delivery.message.queue_offset == 1:
                raise RuntimeError("a bug in success")
            super().succeeded(delivery)

        async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
            raise RuntimeError("a bug in failure")

    work = Setup(of_kind(kind, listen), 4, workers=1, measure=measure, noted=Buggy())
    await eventually_async(lambda: work.noted.done == [0, 3])
    await work.end()
    for text in ("could not record the statistics", "could not acknowledge message", "back for redelivery"):
        assert text in caplog.text


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", ["thread", "task", "task that waits"])
@on_loop
async def test_what_listeners_take_is_measured(kind: str, batch: int) -> None:
    """Not the time of day, and not the time between two messages: only what passes within the listener."""
    time_now = 7000.0
    measured: dict[bool, list[tuple[int, float]]] = {True: [], False: []}

    def take_time(given: Any) -> None:
        nonlocal time_now
        time_now += 0.01
        if (given if batch == 1 else given[0]).queue_offset == 4:
            raise RuntimeError("spilled")

    async def wait(given: Any) -> None:
        await asyncio.sleep(0)
        take_time(given)

    def measure(delivery: Delivery, seconds: float, ok: bool) -> None:
        measured[ok].append((len(delivery.messages), seconds))

    listener = wait if kind == "task that waits" else of_kind(kind, take_time)
    work = Setup(listener, 8, workers=1, batch=batch, measure=measure, now=lambda: time_now)
    await eventually_async(lambda: len(work.noted.done) + sum(len(one) for one, _ in work.noted.not_done) == 8)
    await work.end()
    for ok, calls in ((True, 7 if batch == 1 else 1), (False, 1)):
        assert sum(count for count, _ in measured[ok]) == calls * batch
        assert sum(seconds for _, seconds in measured[ok]) == pytest.approx(calls * 0.01)


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_whoever_waits_for_a_listener_is_told_soon(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def block(_: object) -> None:
        release.wait(10)

    async def wait(_: object) -> None:
        await asyncio.to_thread(release.wait, 10)

    setup = Setup(block if kind == "thread" else wait, 1)
    await eventually_async(lambda: not len(setup.inbox))
    setup.inbox.close()
    waiting = asyncio.ensure_future(setup.listening.wait(10))
    await eventually_async(
        lambda: (
            "closing group test: waiting up to 10 s for 1 listener to finish, first with message 0 of topic tea"
            in caplog.text
        )
    )
    assert not waiting.done()
    release.set()
    assert await waiting


@on_loop
async def test_whoever_does_not_wait_long_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    await Setup(lambda _: None, 3).end()
    assert "waiting" not in caplog.text


@on_loop
async def test_waiting_goes_on_when_the_last_failure_was_handled_just_now() -> None:
    """A task that is done and whose callbacks have not run: Python 3.12 and newer gather it without yielding to them."""
    listener = Waiter()
    work = Setup(listener, 1)
    await eventually_async(lambda: len(work.noted.done) == 1)
    done = asyncio.get_running_loop().create_future()
    handled: asyncio.Task[None] = asyncio.ensure_future(asyncio.wait_for(done, 30))
    failures = work.listening._failures
    failures.add(handled)
    handled.add_done_callback(failures.discard)
    work.inbox.close()
    waiting = asyncio.ensure_future(work.listening.wait(30))
    await eventually_async(lambda: work.listening._ended.is_set() or not work.listening._workers)
    done.set_result(None)
    assert await waiting


@on_loop
async def test_short_calls_make_a_thread_take_several_and_a_stuck_one_gives_the_rest_to_others() -> None:
    stuck, release = threading.Event(), threading.Event()
    count = 2000

    def listen(message: ReceivedMessage) -> None:
        if message.queue_offset == 1500:
            stuck.set()
            release.wait(30)

    work = Setup(listen, count, workers=2)
    await eventually_async(
        lambda: len(work.noted.done) == count - 1
    )  # all but that one, though it has neighbours in its thread's hand
    assert stuck.is_set()
    assert work.inbox.reach > 1
    release.set()
    await work.end()
    assert sorted(work.noted.done) == list(range(count))


@on_loop
async def test_a_thread_stops_in_the_middle_of_what_it_holds_when_the_queue_is_taken_away() -> None:
    seen: list[int] = []
    ready = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        ready.wait(30)
        seen.append(message.queue_offset)
        if message.queue_offset == 700:
            work.inbox.drop(work.queue)

    work = Setup(listen, 2000, workers=1)
    ready.set()
    await eventually_async(lambda: 700 in seen)
    await work.end()
    assert (seen, work.noted.done) == (list(range(701)), list(range(701)))


class Interrupted(Inbox):
    """Something happens to the queue when a thread has taken messages of it and not begun with any."""

    then: Callable[[ProcessQueue], None] | None = None

    def take_blocking(self, timeout: float | None = None, count_max: int | None = None) -> Delivery | None:
        delivery = super().take_blocking(timeout, count_max)
        then, self.then = self.then, None
        if delivery is not None and then is not None:
            then(delivery.queue)
        return delivery


@pytest.mark.parametrize("what", ["paused", "dropped", "closed"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
@on_loop
async def test_what_a_thread_has_just_taken_is_processed_whatever_happens_to_its_queue(
    what: str, ordered: bool, batch: int
) -> None:
    inbox, seen = Interrupted(ordered=ordered), list[Any]()

    def interrupt(queue: ProcessQueue) -> None:
        if what == "paused":
            queue.paused = True
        elif what == "dropped":
            inbox.drop(queue)
        else:
            inbox.close()

    inbox.then = interrupt
    work = Setup(seen.append, 0, workers=1, inbox=inbox, batch=batch)
    work.queue.lease_until = time.monotonic() + 1000
    inbox.put(work.queue, work.queue.add(messages(0, batch), batch))
    await eventually_async(lambda: work.noted.done == list(range(batch)))
    await work.end()
    assert len(seen) == 1, "the thread stops there"


@on_loop
async def test_what_was_processed_is_acknowledged_before_its_queue_goes_though_a_neighbour_is_stuck() -> None:
    stuck, release = threading.Event(), threading.Event()

    def listen(message: ReceivedMessage) -> None:
        if message.queue_offset == 40:
            stuck.set()
            release.wait(30)

    work = Setup(listen, 60, workers=1)
    work.inbox.reach = 64
    work.inbox.put(work.queue, work.queue.add(messages(60, 200), 200))
    await eventually_async(stuck.is_set)
    work.inbox.drop(work.queue)
    assert work.noted.done == list(range(40))
    release.set()
    await work.end()
    assert work.noted.done == list(range(41))


@on_loop
async def test_one_that_waits_for_nothing_needs_no_turn_of_the_loop_and_one_that_waits_delays_no_other() -> None:
    never = asyncio.Event()
    tasks: set[object] = set()

    async def listen(message: ReceivedMessage) -> None:
        tasks.add(asyncio.current_task())
        async with asyncio.timeout(20):
            if message.queue_offset % 100 == 0:
                await never.wait()

    work = Setup(listen, 1000, workers=20)
    await eventually_async(lambda: len(work.noted.done) == 990)
    assert None not in tasks
    never.set()
    await eventually_async(lambda: len(work.noted.done) == 1000)
    await work.end()
    assert sorted(work.noted.done) == list(range(1000))


@on_loop
async def test_a_coroutine_that_has_begun_is_cancelled_as_a_task_is_and_may_go_on() -> None:
    async def listen(message: ReceivedMessage) -> object:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)  # never waited out: cancelled by the limit
        except TimeoutError:
            await asyncio.sleep(0)
            return Redeliver(level=7)
        return None

    work = Setup(listen, 1)
    await eventually_async(lambda: work.noted.not_done)
    await work.end()
    assert work.noted.not_done == [([0], Redeliver(level=7))]


@on_loop
async def test_listeners_that_never_wait_leave_the_loop_to_others() -> None:
    turns = 0
    turns_seen: list[int] = []

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    async def listen(message: ReceivedMessage) -> None:
        turns_seen.append(turns)
        time.sleep(RUN_S)  # noqa: ASYNC251 - it computes

    work = Setup(listen, 20, workers=1)
    work.inbox.reach = 64
    turn()
    await eventually_async(lambda: len(work.noted.done) == 20)
    await work.end()
    assert len(set(turns_seen)) > 5


@on_loop
async def test_many_workers_keep_the_loop_no_longer_than_one() -> None:
    workers, each_s, turns = 20, 0.001, [0.0]
    now = 0.0  # the time that the listeners take, and nothing else does

    def turn() -> None:
        turns.append(now)
        asyncio.get_running_loop().call_soon(turn)

    async def listen(message: ReceivedMessage) -> None:
        nonlocal now
        now += each_s

    work = Setup(listen, 2000, workers=workers, now=lambda: now)
    turn()
    await eventually_async(lambda: len(work.noted.done) == 2000)
    await work.end()
    longest = max(later - earlier for earlier, later in pairwise(turns))
    assert longest <= RUN_S + (workers + 1) * each_s, "each may have a message by then"


@on_loop
async def test_what_fails_among_many_fails_alone() -> None:
    async def listen(message: ReceivedMessage) -> object:
        if message.queue_offset == 600:
            raise RuntimeError("spilled")
        return Redeliver(level=2) if message.queue_offset == 700 else None

    work = Setup(listen, 1000, workers=1)
    await eventually_async(lambda: len(work.noted.done) == 998)
    await work.end()
    assert work.noted.not_done == [([600], RETRY), ([700], Redeliver(level=2))]
    assert work.noted.done == [n for n in range(1000) if n not in (600, 700)]


@on_loop
async def test_nobody_looks_again_and_again_at_a_paused_queue() -> None:
    work = Setup(lambda message: None, 500, workers=2)
    await eventually_async(lambda: len(work.noted.done) == 500)
    assert work.inbox.reach > 1
    work.queue.paused = True
    work.inbox.put(work.queue, work.queue.add(messages(500, 600), 600))
    await eventually_async(lambda: work.listening._evening is None)
    assert len(work.inbox) == 100
    work.queue.paused = False
    work.inbox.look_again(work.queue)
    await eventually_async(lambda: len(work.noted.done) == 600)
    await eventually_async(
        lambda: all(worker.hand is None for worker in work.listening._workers)
    )  # it keeps no messages
    assert len(work.listening._workers) == 2
    await work.end()

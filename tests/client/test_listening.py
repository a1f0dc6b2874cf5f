"""The workers alone; with a consumer around them they are in test_consumer.py."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kappamq.client.inbox import Delivery, Inbox
from kappamq.client.listening import Listener, Listening
from kappamq.client.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage
from tests.client.loop import on_loop
from tests.waiting import eventually_async

QUEUE = MessageQueue("tea", "b", 0)


class Setup:
    def __init__(self, listener: Listener, count: int, workers: int = 2) -> None:
        self.inbox = Inbox()
        self.queue = ProcessQueue(QUEUE, 0, Limits())
        self.failed: list[int] = []
        messages = [
            ReceivedMessage(
                topic="tea", body=b"%d" % n, queue=QUEUE, queue_offset=n, log_offset=0, message_id=str(n), offset_id=""
            )
            for n in range(count)
        ]
        self.inbox.put(self.queue, self.queue.add(messages, count))
        self.listening = Listening(self.inbox, listener, self.on_failure, workers=workers, name="test")
        self.listening.start()

    async def on_failure(self, delivery: Delivery) -> None:
        self.failed.append(delivery[1].queue_offset)


class Waiter:
    """A listener that is an object with a coroutine as its call."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)


@on_loop
async def test_functions_run_in_threads_side_by_side() -> None:
    both = threading.Barrier(2, timeout=5)
    work = Setup(lambda message: both.wait(), 2)
    await eventually_async(lambda: work.queue.count == 0)
    work.inbox.close()
    assert await work.listening.wait(5)
    assert (work.queue.committable, work.queue.reading, work.failed) == (2, 0, [])


@on_loop
async def test_coroutines_run_in_tasks_and_objects_count_too() -> None:
    listener = Waiter()
    work = Setup(listener, 3)
    await eventually_async(lambda: work.queue.count == 0)
    work.inbox.close()
    assert await work.listening.wait(5)
    assert sorted(listener.seen) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_what_raises_is_reported_not_acknowledged_and_the_worker_goes_on(kind: str) -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.queue_offset == 1:
            raise RuntimeError("spilled")

    async def listen_async(message: ReceivedMessage) -> None:
        listen(message)

    work = Setup(listen if kind == "thread" else listen_async, 3, workers=1)
    await eventually_async(lambda: work.failed == [1])
    await eventually_async(lambda: work.queue.reading == 0 and not len(work.inbox))
    assert (work.queue.committable, work.queue.count) == (1, 1)
    work.inbox.close()
    assert await work.listening.wait(5)


@pytest.mark.parametrize("kind", ["thread", "task"])
@on_loop
async def test_waiting_for_a_busy_listener_has_an_end(kind: str) -> None:
    release, never = threading.Event(), asyncio.Event()

    def stuck(message: ReceivedMessage) -> None:
        release.wait(10)

    async def stuck_async(message: ReceivedMessage) -> None:
        await never.wait()

    work = Setup(stuck if kind == "thread" else stuck_async, 1, workers=1)
    await eventually_async(lambda: work.queue.reading == 1)
    work.inbox.close()
    assert not await work.listening.wait(0.05)
    release.set()

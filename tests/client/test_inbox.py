from __future__ import annotations

import asyncio
import threading

from kappamq.client.inbox import Inbox
from kappamq.client.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("tea", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="tea", body=b"", queue=QUEUE, queue_offset=offset, log_offset=0, message_id="", offset_id=""
    )


def process_queue() -> ProcessQueue:
    return ProcessQueue(QUEUE, 0, Limits())


def offset_of(delivery) -> int | None:
    return None if delivery is None else delivery[1].queue_offset


def test_messages_leave_in_the_order_they_came() -> None:
    inbox, queue = Inbox(), process_queue()
    inbox.put(queue, [message(1), message(2)])
    assert [offset_of(inbox.take()) for _ in range(3)] == [1, 2, None]
    assert queue.reading == 2
    inbox.done(queue)
    assert queue.reading == 1


def test_a_queue_that_was_dropped_delivers_no_more() -> None:
    inbox, gone, kept = Inbox(), process_queue(), process_queue()
    inbox.put(gone, [message(1)])
    inbox.put(kept, [message(2)])
    gone.dropped = True
    assert offset_of(inbox.take()) == 2
    assert gone.reading == 0


def test_a_blocked_thread_wakes_for_a_message_and_for_the_end() -> None:
    inbox, seen, all_seen = Inbox(), [], threading.Event()

    def read() -> None:
        while (delivery := inbox.take_blocking(10)) is not None:
            seen.append(offset_of(delivery))
            if len(seen) == 50:
                all_seen.set()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    inbox.put(process_queue(), [message(n) for n in range(50)])
    assert all_seen.wait(5)
    inbox.close()
    for reader in readers:
        reader.join(5)
        assert not reader.is_alive()
    assert sorted(seen) == list(range(50))


def test_waiting_has_an_end() -> None:
    inbox = Inbox()
    assert inbox.take_blocking(0.01) is None
    assert asyncio.run(inbox.take_async(0.01)) is None


def test_a_cancelled_task_passes_its_wake_up_on() -> None:
    async def scenario() -> int | None:
        inbox = Inbox()
        first = asyncio.create_task(inbox.take_async())
        second = asyncio.create_task(inbox.take_async())
        await asyncio.sleep(0)
        inbox.put(process_queue(), [message(7)])
        first.cancel()  # it was the one to be woken
        return offset_of(await asyncio.wait_for(second, 5))

    assert asyncio.run(scenario()) == 7


def test_close_wakes_tasks() -> None:
    async def scenario() -> object:
        inbox = Inbox()
        reader = asyncio.create_task(inbox.take_async())
        await asyncio.sleep(0)
        inbox.close()
        return await asyncio.wait_for(reader, 5)

    assert asyncio.run(scenario()) is None

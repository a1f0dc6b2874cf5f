from __future__ import annotations

import asyncio
import threading

from kappamq.client.consumer.inbox import Delivery, Inbox
from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("tea", "b", 0)


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="tea", body=b"", queue=QUEUE, queue_offset=offset, log_offset=0, message_id="", offset_id=""
    )


def process_queue(queue: MessageQueue = QUEUE) -> ProcessQueue:
    return ProcessQueue(queue, 0, Limits())


def offsets_of(delivery: Delivery | None) -> list[int]:
    return [] if delivery is None else [message.queue_offset for message in delivery.messages]


def offset_of(delivery) -> int | None:
    return None if delivery is None else delivery.message.queue_offset


def test_messages_leave_in_the_order_they_came() -> None:
    inbox, queue = Inbox(), process_queue()
    inbox.put(queue, [message(1), message(2)])
    assert [offset_of(inbox.take()) for _ in range(3)] == [1, 2, None]


def test_a_queue_that_was_dropped_delivers_no_more() -> None:
    inbox, gone, kept = Inbox(), process_queue(), process_queue()
    inbox.put(gone, [message(1)])
    inbox.put(kept, [message(2)])
    gone.dropped = True
    assert offset_of(inbox.take()) == 2


def test_queues_take_turns() -> None:
    inbox, busy, other = Inbox(), process_queue(), process_queue()
    inbox.put(busy, [message(n) for n in range(5)])
    inbox.put(other, [message(100), message(101)])
    assert [offset_of(inbox.take()) for _ in range(7)] == [0, 100, 1, 101, 2, 3, 4]


def test_a_list_holds_messages_of_one_queue() -> None:
    inbox, one, two = Inbox(), process_queue(), process_queue()
    inbox.put(one, [message(n) for n in range(5)])
    inbox.put(two, [message(100)])
    assert [offsets_of(inbox.take(3)) for _ in range(4)] == [[0, 1, 2], [100], [3, 4], []]
    assert len(inbox) == 0


def test_a_paused_queue_waits_until_somebody_looks_again() -> None:
    inbox, queue = Inbox(), process_queue()
    inbox.put(queue, [message(1)])
    queue.paused = True
    inbox.put(queue, [message(2)])
    assert inbox.take() is None
    assert len(inbox) == 2
    queue.paused = False
    assert inbox.take() is None
    inbox.look_again(queue)
    assert [offset_of(inbox.take()) for _ in range(3)] == [1, 2, None]


def test_nothing_comes_in_behind_the_end() -> None:
    inbox, queue = Inbox(), process_queue()
    inbox.close()
    inbox.put(queue, [message(1)])
    assert (inbox.take(), len(inbox)) == (None, 0)


def ordered(now: float = 0.0) -> Inbox:
    return Inbox(ordered=True, now=lambda: now)


def test_in_order_one_delivery_of_a_queue_is_out_at_a_time() -> None:
    inbox, one, two = ordered(), process_queue(), process_queue(MessageQueue("tea", "b", 1))
    inbox.put(one, [message(1), message(2)])
    inbox.put(two, [message(7)])
    first = inbox.take()
    assert (offset_of(first), offset_of(inbox.take()), inbox.take()) == (1, 7, None)
    assert first is not None
    inbox.done(first)
    inbox.done(first)  # twice does no harm
    assert offset_of(inbox.take()) == 2
    assert inbox.take() is None
    inbox.done_with(QUEUE, 1)  # an old one
    assert inbox.is_out(QUEUE)
    inbox.done_with(QUEUE, 2)
    assert not inbox.is_out(QUEUE)


def test_in_order_what_failed_comes_first_and_not_before_the_pause_is_over() -> None:
    inbox, queue = ordered(), process_queue()
    inbox.put(queue, [message(1), message(2), message(3), message(4)])
    delivery = inbox.take(3)
    assert delivery is not None
    queue.suspended = True
    inbox.done(delivery, delivery.messages[1:])
    assert (inbox.take(), len(inbox)) == (None, 3)
    queue.suspended = False
    inbox.look_again(queue)
    assert offsets_of(inbox.take(9)) == [2, 3, 4]


def test_in_order_nothing_leaves_without_the_lock() -> None:
    times = [10.0]
    inbox, queue = Inbox(ordered=True, now=lambda: times[0]), process_queue()
    queue.lease_until = 20.0
    inbox.put(queue, [message(1), message(2)])
    delivery = inbox.take()
    assert delivery is not None
    times[0] = 20.0
    inbox.done(delivery)
    assert inbox.take() is None
    queue.lease_until = 50.0
    inbox.look_again(queue)
    assert offset_of(inbox.take()) == 2


def test_in_order_a_queue_taken_again_waits_for_what_is_still_out() -> None:
    inbox, before = ordered(), process_queue()
    inbox.put(before, [message(1), message(2)])
    delivery = inbox.take()
    assert delivery is not None
    inbox.drop(before)
    after = process_queue()
    inbox.put(after, [message(1), message(2)])
    assert inbox.take() is None
    inbox.done(delivery, delivery.messages)  # put back into a queue that is not ours any more: for nobody
    assert [offset_of(inbox.take()), inbox.take()] == [1, None]


def test_in_order_waiting_for_a_queue_ends_when_its_reader_is_done() -> None:
    async def scenario() -> bool:
        inbox, queue = ordered(), process_queue()
        await inbox.wait_free(QUEUE)
        inbox.put(queue, [message(1)])
        delivery = inbox.take()
        assert delivery is not None
        waiting = asyncio.create_task(inbox.wait_free(QUEUE))
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(inbox.done, delivery)
        await asyncio.wait_for(waiting, 30)
        return inbox.is_out(QUEUE)

    assert asyncio.run(scenario()) is False


def test_in_order_a_task_is_woken_by_a_reader_in_a_thread() -> None:
    async def scenario() -> int | None:
        inbox, queue = ordered(), process_queue()
        inbox.put(queue, [message(1), message(2)])
        delivery = inbox.take()
        assert delivery is not None
        waiting = asyncio.create_task(inbox.take_async())
        await asyncio.sleep(0)
        await asyncio.to_thread(inbox.done, delivery)
        return offset_of(await asyncio.wait_for(waiting, 30))

    assert asyncio.run(scenario()) == 2


def test_a_blocked_thread_wakes_for_a_message_and_for_the_end() -> None:
    inbox, seen, all_seen = Inbox(), [], threading.Event()

    def read() -> None:
        while (delivery := inbox.take_blocking(60)) is not None:
            seen.append(offset_of(delivery))
            if len(seen) == 50:
                all_seen.set()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    inbox.put(process_queue(), [message(n) for n in range(50)])
    assert all_seen.wait(30)
    inbox.close()
    for reader in readers:
        reader.join(30)
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
        return offset_of(await asyncio.wait_for(second, 30))

    assert asyncio.run(scenario()) == 7


def test_close_wakes_tasks() -> None:
    async def scenario() -> object:
        inbox = Inbox()
        reader = asyncio.create_task(inbox.take_async())
        await asyncio.sleep(0)
        inbox.close()
        return await asyncio.wait_for(reader, 30)

    assert asyncio.run(scenario()) is None

"""Pulled messages that wait for a reader: a thread, a task, or the application itself.

Filled on the event loop's thread. Readers take from any thread without going through the loop, which would cost more
than processing most messages. It needs no limit of its own: each process queue stops pulling when it holds enough.
Queues take turns, so that one with a large backlog does not starve the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kappamq.client.consumer.waiting import Delivery, Waiting
from kappamq.client.core import arguments
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.events import Events
from kappamq.message import MessageQueue, ReceivedMessage

__all__ = ["Delivery", "Dropping", "Filled", "Inbox"]


@dataclass(frozen=True, slots=True)
class Filled:
    """There are messages. Published on the loop."""


@dataclass(frozen=True, slots=True)
class Dropping:
    """A queue is about to be given up: its processed messages can be acknowledged now, but not later. Published on the loop."""


_FILLED = Filled()
_DROPPING = Dropping()


class Inbox:
    """Messages of each queue in order. Hands out nothing from a queue that has been dropped.

    `ordered`: each queue has at most one delivery in flight, and the next one leaves only after `done`, even if the
    queue was lost and reassigned in between; and only while this client holds the broker's lock of the queue.
    """

    def __init__(self, *, ordered: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._ordered = ordered
        self._now = now
        self._waiting: dict[ProcessQueue, Waiting] = {}
        self._count = 0
        self._turns: deque[ProcessQueue] = deque()  # queues with something to hand out, each once
        self._listed: set[ProcessQueue] = set()
        # Ordered only: deliveries in flight, and the latest of possibly several assignments of each queue.
        self._out: dict[MessageQueue, Delivery] = {}
        self._latest: dict[MessageQueue, ProcessQueue] = {}
        self._free: dict[MessageQueue, list[asyncio.Future[None]]] = {}
        self._lock = threading.RLock()
        self._threads = threading.Condition(self._lock)
        self._threads_waiting = 0
        self._tasks: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._closed = False
        self.reach = 1
        """How many messages of one queue a reader takes by default; correspondingly fewer readers are woken."""
        self.events = Events()

    def __len__(self) -> int:
        return self._count

    @property
    def ordered(self) -> bool:
        return self._ordered

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_work(self) -> bool:
        """Whether there seems to be something to hand out; approximate, but cheap."""
        return bool(self._turns)

    @property
    def is_wanted(self) -> bool:
        """Return whether a reader is waiting and a message is available, so that it is about to be taken."""
        return bool(self._turns) and bool(self._threads_waiting or self._tasks)

    # --- filling ---

    def put(self, queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Append messages to those of the same queue, and wake as many readers."""
        with self._threads:
            if self._closed or queue.dropped:
                return
            if self._ordered:
                self._latest[queue.queue] = queue
            waiting = self._waiting.get(queue)
            if waiting is None:
                waiting = self._waiting[queue] = Waiting()
            added = waiting.append(messages)
            self._count += added
            wakeable = self._list(queue, added)
        self._wake(wakeable)
        self.events.publish(_FILLED)

    def put_back(self, delivery: Delivery) -> None:
        """Put back messages that a reader has taken but not begun with. From any thread; not for ordered queues."""
        queue = delivery.queue
        with self._threads:
            if self._closed or queue.dropped:
                return
            self._waiting.setdefault(queue, Waiting()).put_first(delivery.messages, delivery.offsets)
            self._count += len(delivery.messages)
            wakeable = self._list(queue, len(delivery.messages))
        self._wake(wakeable)

    def wake_more(self) -> None:
        """Readers take fewer messages than when they were woken: wake as many as there is work for."""
        with self._threads:
            readers = -(-self._count // self.reach)
            if self._threads_waiting and readers:
                self._threads.notify(readers)
        self._wake(readers)

    def look_again(self, queue: ProcessQueue) -> None:
        """Check a queue again that was held back: paused, suspended, or not locked by us."""
        with self._threads:
            waiting = self._waiting.get(queue)
            wakeable = self._list(queue, len(waiting)) if waiting else 0
        self._wake(wakeable)

    def drop(self, queue: ProcessQueue) -> None:
        """Hand out no more messages of this queue; deliveries in flight stay in flight."""
        self.events.publish(_DROPPING)
        queue.dropped = True
        with self._threads:
            waiting = self._waiting.pop(queue, None)
            self._count -= len(waiting) if waiting is not None else 0
            if self._latest.get(queue.queue) is queue:
                del self._latest[queue.queue]

    # --- taking ---

    def take(self, count_max: int | None = None) -> Delivery | None:
        """Return up to `count_max` messages of one queue, by default `reach`; None if there is none. From any thread."""
        with self._threads:
            return self._take(count_max)

    def take_blocking(self, timeout: float | None = None, count_max: int | None = None) -> Delivery | None:
        """Wait for a message. Returns None after `timeout` seconds, or at once if the inbox is closed."""
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        if self._turns:
            with self._lock:
                delivery = self._take(count_max)
            if delivery is not None:
                return delivery
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._threads:
            while (delivery := self._take(count_max)) is None and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._threads_waiting += 1
                try:
                    self._threads.wait(left)
                finally:
                    self._threads_waiting -= 1
            return delivery

    async def take_async(self, timeout: float | None = None, count_max: int | None = None) -> Delivery | None:
        """Like `take_blocking`, for a task on the loop."""
        if timeout is not None:
            arguments.seconds("timeout", timeout)
        if self._turns:
            with self._lock:
                delivery = self._take(count_max)
            if delivery is not None:
                return delivery
        loop = self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            with self._threads:
                delivery = self._take(count_max)
                if delivery is not None or self._closed:
                    return delivery
                self._tasks.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return self.take(count_max)
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # this reader was woken for a message it will not take: wake another
                raise
            finally:
                with self._threads:
                    if waiter in self._tasks:
                        self._tasks.remove(waiter)

    # --- ordered: one delivery at a time ---

    def done(self, delivery: Delivery, again: Iterable[ReceivedMessage] = ()) -> None:
        """Note that the reader has finished, successfully or not. `again`: messages to hand out first at the queue's next turn."""
        if not self._ordered:
            return
        queue = delivery.queue
        wakeable = 0
        with self._threads:
            if self._out.get(queue.queue) is not delivery:
                return
            del self._out[queue.queue]
            if not queue.dropped and not self._closed:
                back = list(again)
                if back:
                    self._waiting.setdefault(queue, Waiting()).put_first(back)
                    self._count += len(back)
            # The queue may have been lost and reassigned meanwhile.
            latest = self._latest.get(queue.queue, queue)
            if self._waiting.get(latest):
                wakeable = self._list(latest, 1)
            free = self._free.pop(queue.queue, [])
        self._wake(wakeable)
        for waiter in free:
            self._on_loop(waiter.get_loop(), _resolve, waiter)

    def done_with(self, queue: MessageQueue, offset: int) -> None:
        """Like `done`, for a reader that only has the message."""
        delivery = self.out(queue, offset)
        if delivery is not None:
            self.done(delivery)

    def out(self, queue: MessageQueue, offset: int) -> Delivery | None:
        """Ordered only: return the delivery in flight that consists of this message."""
        delivery = self._out.get(queue)
        return delivery if delivery is not None and delivery.message.queue_offset == offset else None

    def is_out(self, queue: MessageQueue) -> bool:
        """Ordered only: return whether the queue has a delivery in flight."""
        return queue in self._out

    async def wait_free(self, queue: MessageQueue) -> None:
        """Ordered only: wait until the queue has no delivery in flight."""
        waiter = asyncio.get_running_loop().create_future()
        with self._threads:
            if queue not in self._out:
                return
            self._free.setdefault(queue, []).append(waiter)
        await waiter

    # --- closing ---

    def close(self) -> None:
        """Stop handing out messages and wake every reader."""
        with self._threads:
            self._closed = True
            self._waiting.clear()
            self._turns.clear()
            self._listed.clear()
            self._count = 0
            self._threads.notify_all()
        self._wake(len(self._tasks))

    # --- internals; the first two expect the lock to be held ---

    def _list(self, queue: ProcessQueue, messages: int) -> int:
        """Give the queue a turn if it may have one. Returns how many readers to wake."""
        if self._closed or queue.dropped or not self._is_open(queue):
            return 0
        if queue not in self._listed:
            self._listed.add(queue)
            self._turns.append(queue)
        wakeable = 1 if self._ordered else -(-messages // self.reach)
        if self._threads_waiting:
            self._threads.notify(wakeable)
        return wakeable

    def _take(self, count_max: int | None) -> Delivery | None:
        while self._turns:
            queue = self._turns.popleft()
            self._listed.discard(queue)
            waiting = self._waiting.get(queue)
            # Held back: `look_again` or `done` gives it its next turn.
            if not waiting or queue.dropped or not self._is_open(queue):
                continue
            delivery = waiting.take(queue, count_max or self.reach)
            self._count -= len(delivery.messages)
            if self._ordered:
                self._out[queue.queue] = delivery
            elif waiting:
                self._listed.add(queue)
                self._turns.append(queue)
            if not waiting:  # an idle queue holds nothing
                del self._waiting[queue]
            return delivery
        return None

    def _is_open(self, queue: ProcessQueue) -> bool:
        if queue.paused or queue.suspended:
            return False
        return not self._ordered or (queue.queue not in self._out and queue.lease_until > self._now())

    def _wake(self, count: int) -> None:
        if not count or not self._tasks:
            return
        if threading.get_ident() != self._loop_thread and self._loop is not None:
            self._on_loop(self._loop, self._wake_here, count)
        else:
            self._wake_here(count)

    def _wake_here(self, count: int) -> None:
        with self._threads:
            while count and self._tasks:
                waiter = self._tasks.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    count -= 1

    def _on_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is closed, so no task waits


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""Where pulled messages wait for a reader: a thread, a task, or the loop of the user's program.

Filled on the event loop's thread. Readers take from any thread without a detour over the loop, which would cost more
than most messages' work. It needs no limit of its own: each process queue stops its pulls when it holds enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable

from kappamq.client.process_queue import ProcessQueue
from kappamq.message import ReceivedMessage

Delivery = tuple[ProcessQueue, ReceivedMessage]


class Inbox:
    """First in, first out; messages of a queue that was dropped meanwhile are skipped.

    A message that was taken counts as `reading` of its process queue until `done` is called for it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._threads = threading.Condition()
        self._threads_waiting = 0
        self._tasks: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        """Add messages and wake as many readers. Only on the loop's thread."""
        with self._threads:
            before = len(self._waiting)
            self._waiting.extend((queue, message) for message in messages)
            added = len(self._waiting) - before
            if self._threads_waiting:
                self._threads.notify(added)
        self._wake(added)

    def take(self) -> Delivery | None:
        """Return the next message, or None if there is none. From any thread."""
        with self._threads:
            return self._take()

    def take_blocking(self, timeout: float | None = None) -> Delivery | None:
        """Wait for a message. Returns None after `timeout` seconds, or at once when the inbox is closed."""
        with self._threads:
            self._threads_waiting += 1
            try:
                self._threads.wait_for(lambda: self._waiting or self._closed, timeout)
            finally:
                self._threads_waiting -= 1
            return self._take()

    async def take_async(self, timeout: float | None = None) -> Delivery | None:
        """The same for a task on the loop."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            delivery = self.take()
            if delivery is not None or self._closed:
                return delivery
            waiter: asyncio.Future[None] = loop.create_future()
            self._tasks.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return self.take()
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # this reader was told of a message that it will not take: tell another
                raise
            finally:
                if waiter in self._tasks:
                    self._tasks.remove(waiter)

    def done(self, queue: ProcessQueue) -> None:
        """The reader has finished with a message it took, well or not."""
        with self._threads:
            queue.reading -= 1

    def close(self) -> None:
        """Hand out nothing more and wake every reader. Only on the loop's thread."""
        with self._threads:
            self._closed = True
            self._waiting.clear()
            self._threads.notify_all()
        for waiter in self._tasks:
            if not waiter.done():
                waiter.set_result(None)
        self._tasks.clear()

    def _wake(self, count: int) -> None:
        while count and self._tasks:
            waiter = self._tasks.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _take(self) -> Delivery | None:
        while self._waiting:
            delivery = self._waiting.popleft()
            if not delivery[0].dropped:
                delivery[0].reading += 1
                return delivery
        return None

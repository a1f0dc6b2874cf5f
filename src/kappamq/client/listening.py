"""Calls the application's listener: plain functions in threads, coroutine functions in tasks.

Each worker is a reader of the inbox like any other. A listener that returns has done its message; one that raises gets
it again later: the broker is asked to deliver it again, and if it cannot, it stays here and comes back after a pause.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from kappamq.client.inbox import Delivery, Inbox
from kappamq.message import ReceivedMessage

log = logging.getLogger(__name__)

Listener = Callable[[ReceivedMessage], Awaitable[Any] | Any]
OnFailure = Callable[[Delivery], Awaitable[None]]


class Listening:
    """Workers of one consumer. `failed` is awaited on the loop with each message whose listener raised."""

    def __init__(self, inbox: Inbox, listener: Listener, failed: OnFailure, *, workers: int, name: str) -> None:
        self._inbox = inbox
        self._listener = listener
        self._failed = failed
        self._workers = workers
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._failures: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._running = 0

    def start(self) -> None:
        call = getattr(self._listener, "__call__", None)  # noqa: B004 - an object may have a coroutine as its __call__
        if inspect.iscoroutinefunction(self._listener) or inspect.iscoroutinefunction(call):
            self._tasks = [asyncio.create_task(self._work_in_task()) for _ in range(self._workers)]
            return
        self._running = self._workers
        for number in range(self._workers):
            # Daemons: a listener that never returns must not keep the process alive.
            thread = threading.Thread(target=self._work_in_thread, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    async def wait(self, timeout: float) -> bool:
        """After the inbox was closed: wait for the messages in hand. False if a listener is still busy."""
        try:
            async with asyncio.timeout(timeout):
                if self._threads:
                    await self._ended.wait()
                if self._tasks:
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                while self._failures:
                    await asyncio.gather(*self._failures, return_exceptions=True)
        except TimeoutError:
            for task in [*self._tasks, *self._failures]:
                task.cancel()
            return False
        return True

    def _work_in_thread(self) -> None:
        try:
            while (delivery := self._inbox.take_blocking()) is not None:
                self._call(delivery)
        finally:
            self._on_loop(self._thread_ended)

    def _call(self, delivery: Delivery) -> None:
        queue, message = delivery
        try:
            self._listener(message)
        except Exception:
            log.exception("the listener failed with message %s of %s", message.message_id, message.queue)
            self._on_loop(self._fail, delivery)
        else:
            queue.acknowledge(message.queue_offset)
        finally:
            self._inbox.done(queue)

    async def _work_in_task(self) -> None:
        while (delivery := await self._inbox.take_async()) is not None:
            queue, message = delivery
            try:
                await self._listener(message)
            except Exception:
                log.exception("the listener failed with message %s of %s", message.message_id, message.queue)
                self._fail(delivery)
            else:
                queue.acknowledge(message.queue_offset)
            finally:
                self._inbox.done(queue)

    def _fail(self, delivery: Delivery) -> None:
        task = self._loop.create_task(self._handle(delivery))
        self._failures.add(task)
        task.add_done_callback(self._failures.discard)

    async def _handle(self, delivery: Delivery) -> None:
        await self._failed(delivery)

    def _thread_ended(self) -> None:
        self._running -= 1
        if not self._running:
            self._ended.set()

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is gone, and with it everybody who could care

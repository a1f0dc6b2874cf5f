"""Calls the application's listener: plain functions in threads, coroutine functions in tasks.

Each worker is a reader of the inbox like any other. A listener that returns acknowledges its messages; if it raises or
returns `Redeliver`, `Outcome` decides what happens to them. A listener that exceeds the timeout has failed, too: a task
is cancelled; a thread cannot be, so it is abandoned and replaced.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from kappamq.client.consumer.inbox import Delivery, Inbox
from kappamq.client.consumer.outcomes import EXPIRED, Outcome, named
from kappamq.client.core.calling import is_asynchronous
from kappamq.message import RETRY, Redeliver

log = logging.getLogger(__name__)

Listener = Callable[[Any], Awaitable[Any] | Any]
"""Takes a message, or with `consume_batch` above 1 a list of messages of one queue."""
Measure = Callable[[Delivery, float, bool], None]
"""Called with the delivery, the seconds it took, and whether it succeeded."""

LOOKS_PER_TIMEOUT: Final = 10
"""How late a stuck thread may be noticed, as a fraction of the timeout."""
WONDER_S: Final = 0.2
"""A close that takes longer than this logs what it is waiting for."""
LOOK_S_MAX: Final = 10.0
STUCK_PER_WORKER_MAX: Final = 4
"""How many stuck threads are replaced per configured thread; beyond that more threads would not help."""


@dataclass(slots=True, eq=False)
class Worker:
    """A thread and its current delivery."""

    thread: threading.Thread
    delivery: Delivery | None = None
    since: float = 0.0
    replaced: bool = False
    given_up: bool = False  # its delivery was handed back


class Listening:
    """The workers of one consumer. `batch`: messages per listener call; with 1 the listener gets a message, not a list."""

    def __init__(
        self,
        inbox: Inbox,
        listener: Listener,
        outcome: Outcome,
        *,
        workers: int,
        name: str,
        batch: int = 1,
        timeout_s: float = 900.0,
        measure: Measure | None = None,
    ) -> None:
        self._inbox = inbox
        self._listener = listener
        self._outcome = outcome
        self._count = workers
        self._name = name
        self._who = f"group {name.removeprefix('kappamq-')}"
        self._batch = batch
        self._timeout_s = timeout_s
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        self._workers: set[Worker] = set()
        self._made = 0
        self._stuck = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._in_tasks: set[Delivery] = set()
        self._watching: asyncio.Task[None] | None = None
        self._failures: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        if is_asynchronous(self._listener):
            self._tasks = [asyncio.create_task(self._work_in_task()) for _ in range(self._count)]
            return
        for _ in range(self._count):
            self._add_thread()
        self._watching = asyncio.create_task(self._watch())

    async def wait(self, timeout: float) -> bool:
        """After the inbox was closed, wait for deliveries in flight. Returns False if a listener is still running."""
        # Most listeners finish at once; log only if the caller has to wait noticeably.
        notice = self._loop.call_later(WONDER_S, self._tell_waiting, timeout)
        try:
            async with asyncio.timeout(timeout):
                if self._workers:
                    await self._ended.wait()
                if self._tasks:
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                while self._failures:
                    await asyncio.gather(*self._failures, return_exceptions=True)
                    # Since Python 3.12 that does not yield if all are done, and their callbacks, which empty the set, would never run.
                    await asyncio.sleep(0)
        except TimeoutError:
            for task in [*self._tasks, *self._failures]:
                task.cancel()
            return False
        finally:
            notice.cancel()
            if self._watching is not None:
                self._watching.cancel()
        return True

    def _tell_waiting(self, timeout: float) -> None:
        in_hand = [worker.delivery for worker in self._workers if worker.delivery is not None] + list(self._in_tasks)
        if in_hand:
            listeners = "1 listener" if len(in_hand) == 1 else f"{len(in_hand)} listeners"
            log.warning(
                "closing %s: waiting up to %g s for %s to finish, first with %s",
                self._who,
                timeout,
                listeners,
                named(in_hand[0]),
            )

    # --- threads ---

    def _add_thread(self) -> None:
        # Daemons: a listener that never returns must not keep the process alive.
        thread = threading.Thread(target=lambda: self._work_in_thread(worker), daemon=True)
        thread.name = f"{self._name}-{self._made}"
        worker = Worker(thread)
        self._made += 1
        self._workers.add(worker)
        thread.start()

    def _work_in_thread(self, worker: Worker) -> None:
        try:
            while not worker.replaced and (delivery := self._inbox.take_blocking(count_max=self._batch)) is not None:
                with self._lock:
                    worker.delivery, worker.since, worker.given_up = delivery, time.monotonic(), False
                verdict = self._call(delivery)
                with self._lock:
                    worker.delivery = None
                    given_up = worker.given_up
                self._note(delivery, worker.since, verdict)
                if given_up:
                    log.info("%s: a listener returned after its timeout; its result is ignored", self._who)
                elif verdict is None:
                    self._succeed(delivery)
                else:
                    self._on_loop(self._fail, delivery, verdict)
        finally:
            self._on_loop(self._thread_ended, worker)

    def _call(self, delivery: Delivery) -> Redeliver | None:
        try:
            said = self._listener(delivery.messages if self._batch > 1 else delivery.messages[0])
            if said is not None and inspect.isawaitable(said):
                if inspect.iscoroutine(said):
                    said.close()
                raise TypeError("the listener returned a coroutine: declare it with `async def`")
        except BaseException:  # also sys.exit() in a listener: keep the thread and the message
            self._complain(delivery)
            return RETRY
        return said if isinstance(said, Redeliver) else None

    async def _watch(self) -> None:
        """Replace threads whose listener does not return in time."""
        while True:
            await asyncio.sleep(min(self._timeout_s / LOOKS_PER_TIMEOUT, LOOK_S_MAX))
            for worker in list(self._workers):
                try:
                    self._look_after(worker)
                except Exception:  # perhaps no more threads can be started now; try again later
                    log.exception("%s: could not start a replacement for a stuck listener thread", self._name)

    def _look_after(self, worker: Worker) -> None:
        with self._lock:
            delivery = worker.delivery
            if delivery is None or worker.replaced or time.monotonic() - worker.since < self._timeout_s:
                return
            if self._inbox.closed or self._stuck >= self._count * STUCK_PER_WORKER_MAX:
                return
            worker.replaced = True
            worker.given_up = self._outcome.gives_up(delivery)
        what_next = (
            f"it {self._outcome.forecast(delivery, EXPIRED)}"
            if worker.given_up
            else "its queue is blocked until it returns"
        )
        log.warning(
            "%s: a listener has been processing %s for more than %g s (consume_timeout_ms); another thread takes over, and %s",
            *(self._who, named(delivery), self._timeout_s, what_next),
        )
        self._stuck += 1
        self._add_thread()
        if worker.given_up:
            self._fail(delivery, EXPIRED)

    def _thread_ended(self, worker: Worker) -> None:
        self._workers.discard(worker)
        self._stuck -= worker.replaced
        if not self._workers:
            self._ended.set()

    # --- tasks ---

    async def _work_in_task(self) -> None:
        while (delivery := await self._inbox.take_async(count_max=self._batch)) is not None:
            began = time.monotonic()
            self._in_tasks.add(delivery)
            try:
                verdict = await self._await(delivery)
            finally:
                self._in_tasks.discard(delivery)
            self._note(delivery, began, verdict)
            if verdict is None:
                self._succeed(delivery)
            else:
                self._fail(delivery, verdict)

    async def _await(self, delivery: Delivery) -> Redeliver | None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                said = await self._listener(delivery.messages if self._batch > 1 else delivery.messages[0])
        except (Exception, asyncio.CancelledError):
            if limit.expired():
                log.warning(
                    "%s: cancelled a listener after %g s (consume_timeout_ms) while processing %s; it %s",
                    *(self._who, self._timeout_s, named(delivery), self._outcome.forecast(delivery, EXPIRED)),
                )
                return EXPIRED
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this worker itself is cancelled, not something the listener awaited
            self._complain(delivery)
            return RETRY
        return said if isinstance(said, Redeliver) else None

    # --- both ---

    def _complain(self, delivery: Delivery) -> None:
        what_next = self._outcome.forecast(delivery, RETRY)
        log.exception("%s: the listener failed on %s; it %s", self._who, named(delivery), what_next)

    def _note(self, delivery: Delivery, began: float, verdict: Redeliver | None) -> None:
        if self._measure is not None:
            try:
                self._measure(delivery, time.monotonic() - began, verdict is None)
            except Exception:
                log.exception("%s: could not record the statistics of a delivery", self._name)

    # Whatever fails after the listener returned, the worker must go on: there is no replacement for it.

    def _succeed(self, delivery: Delivery) -> None:
        try:
            self._outcome.succeeded(delivery)
        except Exception:
            log.exception("could not acknowledge message %s of %s", delivery.message.message_id, delivery.queue.queue)

    def _fail(self, delivery: Delivery, verdict: Redeliver) -> None:
        task = self._loop.create_task(self._failing(delivery, verdict))
        self._failures.add(task)
        task.add_done_callback(self._failures.discard)

    async def _failing(self, delivery: Delivery, verdict: Redeliver) -> None:
        try:
            await self._outcome.failed(delivery, verdict)
        except Exception:
            log.exception(
                "could not send message %s of %s back for redelivery", delivery.message.message_id, delivery.queue.queue
            )

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is closed

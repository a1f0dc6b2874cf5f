"""Calls the application's listener: plain functions in threads, coroutine functions in tasks.

Each worker is a reader of the inbox like any other. While listeners take almost no time it takes several messages of a queue at
once; when one takes longer, the messages it has not begun with go to others. A listener that returns acknowledges its messages; if it
raises or
returns `Redeliver`, `Outcome` decides what happens to them. A listener that exceeds the timeout has failed, too: a task
is cancelled; a thread cannot be, so it is abandoned and replaced.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from kappamq.client.consumer.inbox import Delivery, Dropping, Filled, Inbox
from kappamq.client.consumer.outcomes import EXPIRED, Outcome, named
from kappamq.client.consumer.waiting import Hand
from kappamq.client.core.calling import is_asynchronous, resumed
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
REACH_MAX: Final = 64
"""A worker takes up to this many messages at once, if they take almost no time; else one at a time."""
SLOW_S: Final = 0.0002
SLOW_SHARE: Final = 8
"""If more than one of this many messages takes longer than this, workers take fewer at once."""
LATE_S: Final = 0.01
"""Messages that have waited this long behind another one are given to other threads."""
RUN_S: Final = 0.02
"""Listeners that never wait for anything leave the loop to others after this long, all workers together."""
_NEVER: Final = float("inf")
STUCK_PER_WORKER_MAX: Final = 4
"""How many stuck threads are replaced per configured thread; beyond that more threads would not help."""


@dataclass(slots=True, eq=False)
class Worker:
    """A thread and what it processes."""

    thread: threading.Thread
    hand: Hand | None = None
    replaced: bool = False


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
        now: Callable[[], float] = time.monotonic,
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
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._workers: set[Worker] = set()
        self._made = 0
        self._stuck = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._in_tasks: set[Delivery] = set()
        self._watching: asyncio.Task[None] | None = None
        self._failures: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._evening: asyncio.TimerHandle | None = None
        self._turn_until = _NEVER

    def start(self) -> None:
        if self._batch > 1:
            self._inbox.reach = self._batch
        if is_asynchronous(self._listener):
            self._tasks = [asyncio.create_task(self._work_in_task()) for _ in range(self._count)]
            return
        self._inbox.events.on(Dropping, lambda _: self._settle_all())
        if self._batch == 1 and not self._inbox.ordered:
            self._inbox.events.on(Filled, lambda _: self._expect())
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
            self._settle_all()
            if self._evening is not None:
                self._evening.cancel()
            if self._watching is not None:
                self._watching.cancel()
        return True

    def _tell_waiting(self, timeout: float) -> None:
        hands = [worker.hand for worker in self._workers if worker.hand is not None]
        in_hand = [hand.one(begun[0]) for hand in hands if (begun := hand.begun()) is not None] + list(self._in_tasks)
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
            while not worker.replaced and (delivery := self._inbox.take_blocking()) is not None:
                worker.hand = hand = Hand(delivery, whole=self._batch > 1)
                self._process(worker, hand)
                self._settle(hand)
                worker.hand = None  # it would keep the messages of its answer
        finally:
            self._on_loop(self._thread_ended, worker)

    def _process(self, worker: Worker, hand: Hand) -> None:
        """Call the listener for one message after the other, until others take them away."""
        listener, inbox, queue, messages = self._listener, self._inbox, hand.delivery.queue, hand.delivery.messages
        slow = done = failed_s = 0.0
        clock = self._now
        began = now = clock()
        while True:
            try:
                number = hand.left.popleft()
            except IndexError:
                break
            # The first one is always processed, whatever has happened since it was taken, and so is all of an ordered queue: only the
            # others can be put back.
            if number and (queue.paused or queue.dropped or inbox.closed or worker.replaced):
                hand.left.appendleft(number)
                self._hand_on(hand)
                break
            since = now
            hand.current.append((number, since))
            try:
                said = listener(messages if hand.whole else messages[number])
                verdict = None if said is None else self._verdict(said)
            except BaseException:  # also sys.exit() in a listener: keep the thread and the message
                self._complain(hand.one(number))
                verdict = RETRY
            now = clock()
            slow += now - since > SLOW_S
            try:
                hand.current.pop()
            except IndexError:
                log.info("%s: a listener returned after its timeout; its result is ignored", self._who)
                break
            if verdict is None:
                hand.finish(number)
                done += 1
            else:
                failed_s += now - since
                self._note(hand.one(number), now - since, verdict)
                self._on_loop(self._fail, hand.one(number), verdict)
        if done:
            self._note(hand.delivery if hand.whole else hand.delivery.part(0, int(done)), now - began - failed_s, None)
        if hand.whole or inbox.ordered:
            return
        if slow * SLOW_SHARE > done:
            inbox.reach = max(1, inbox.reach // 2)
            inbox.wake_more()
        elif done >= inbox.reach:
            inbox.reach = min(REACH_MAX, inbox.reach * 2)
            if self._evening is None:
                self._on_loop(self._expect)

    def _verdict(self, said: object) -> Redeliver | None:
        if inspect.isawaitable(said):
            if inspect.iscoroutine(said):
                said.close()
            raise TypeError("the listener returned a coroutine: declare it with `async def`")
        return said if isinstance(said, Redeliver) else None

    def _settle(self, hand: Hand) -> None:
        for delivery in hand.take_finished():
            self._succeed(delivery)

    def _hand_on(self, hand: Hand) -> None:
        """Give other threads the messages that this one has not begun with."""
        for left in reversed(hand.take_left()):
            self._inbox.put_back(left)

    def _settle_all(self) -> None:
        for worker in list(self._workers):
            if worker.hand is not None:
                self._settle(worker.hand)

    def _expect(self) -> None:
        if self._inbox.reach > 1 and self._evening is None and not self._inbox.closed:
            self._evening = self._loop.call_later(LATE_S, self._even_out)

    def _even_out(self) -> None:
        """Give others the messages behind one that takes longer than those before it."""
        self._evening = None
        late, working = self._now() - LATE_S, False
        for worker in list(self._workers):
            hand = worker.hand
            if hand is None:
                continue
            begun = hand.begun()
            working |= begun is not None or bool(hand.left)
            if begun is not None and begun[1] < late:
                self._hand_on(hand)
                self._settle(hand)
        if self._inbox.has_work:
            self._inbox.wake_more()
            working = True
        if working:
            self._expect()

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
        hand = worker.hand
        begun = hand.begun() if hand is not None else None
        if hand is None or begun is None or worker.replaced or self._now() - begun[1] < self._timeout_s:
            return
        if self._inbox.closed or self._stuck >= self._count * STUCK_PER_WORKER_MAX:
            return
        delivery = hand.one(begun[0])
        given_up = self._outcome.gives_up(delivery)
        if given_up and not hand.give_up(begun):
            return  # it has come back
        worker.replaced = True
        what_next = (
            f"it {self._outcome.forecast(delivery, EXPIRED)}" if given_up else "its queue is blocked until it returns"
        )
        log.warning(
            "%s: a listener has been processing %s for more than %g s (consume_timeout_ms); another thread takes over, and %s",
            *(self._who, named(delivery), self._timeout_s, what_next),
        )
        self._stuck += 1
        self._hand_on(hand)
        self._settle(hand)
        self._add_thread()
        if given_up:
            self._fail(delivery, EXPIRED)

    def _thread_ended(self, worker: Worker) -> None:
        self._workers.discard(worker)
        self._stuck -= worker.replaced
        if not self._workers:
            self._ended.set()

    # --- tasks ---

    async def _work_in_task(self) -> None:
        while (delivery := await self._inbox.take_async()) is not None:
            suspended = self._run(delivery, self._until())
            if suspended is not None:
                one, began, coroutine, awaited = suspended
                self._in_tasks.add(one)
                try:
                    verdict = await self._await(one, coroutine, awaited)
                finally:
                    self._in_tasks.discard(one)
                self._note(one, self._now() - began, verdict)
                if verdict is None:
                    self._succeed(one)
                else:
                    self._fail(one, verdict)
            while self._now() > self._turn_until:  # noqa: ASYNC110 - until the next turn of the loop
                await asyncio.sleep(0)  # the loop has other work, too

    def _until(self) -> float:
        """How long listeners that never wait may go on: all workers together, in one turn of the loop."""
        if self._turn_until == _NEVER:
            self._turn_until = self._now() + RUN_S
            self._loop.call_soon(self._end_turn)
        return self._turn_until

    def _end_turn(self) -> None:
        self._turn_until = _NEVER

    def _run(self, delivery: Delivery, until: float) -> tuple[Delivery, float, Awaitable[Any], Any] | None:
        """Process messages until a listener has to wait for something. Returns that message, its coroutine and what it awaits.

        Nearly as cheap as a function: it runs in the task of its worker as far as it gets, and needs a time limit only if it waits."""
        queue, inbox = delivery.queue, self._inbox
        given: list[Any] = [delivery.messages] if self._batch > 1 else delivery.messages
        first = number = 0  # those from `first` up to `number` are done and not settled
        began = since = self._now()  # when the first of those was begun, and the one after them

        def settle() -> None:
            if number > first:
                done = delivery if self._batch > 1 else delivery.part(first, number)
                self._note(done, since - began, None)
                self._succeed(done)

        try:
            for number, one in enumerate(given):
                if number:
                    since = self._now()
                    if since > until or queue.paused or queue.dropped or inbox.closed:
                        inbox.put_back(delivery.part(number, len(given)))
                        return None
                try:
                    coroutine = self._listener(one)
                    if type(coroutine) is not types.CoroutineType:
                        waits = coroutine, None  # from an object that claims to be asynchronous
                    else:
                        waits = coroutine, coroutine.send(None)
                except StopIteration as end:
                    if end.value is None or not isinstance(end.value, Redeliver):
                        continue
                    verdict = end.value
                except (Exception, asyncio.CancelledError):
                    self._complain(delivery if self._batch > 1 else delivery.part(number, number + 1))
                    verdict = RETRY
                else:
                    if len(given) > 1:
                        inbox.reach = 1
                        if number + 1 < len(given):
                            inbox.put_back(delivery.part(number + 1, len(given)))
                    return delivery if self._batch > 1 else delivery.part(number, number + 1), since, *waits
                settle()
                failed = delivery if self._batch > 1 else delivery.part(number, number + 1)
                self._note(failed, self._now() - since, verdict)
                self._fail(failed, verdict)
                first, began = number + 1, self._now()
            number, since = len(given), self._now()
        finally:
            settle()
        if self._batch == 1 and not inbox.ordered and len(given) >= inbox.reach:
            inbox.reach = min(REACH_MAX, inbox.reach * 2)
        return None

    async def _await(self, delivery: Delivery, coroutine: Any, awaited: Any) -> Redeliver | None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                said = await (resumed(coroutine, awaited) if type(coroutine) is types.CoroutineType else coroutine)
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

    def _note(self, delivery: Delivery, seconds: float, verdict: Redeliver | None) -> None:
        if self._measure is not None:
            try:
                self._measure(delivery, seconds, verdict is None)
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

"""The queues a consumer reads: takes its share, pulls each queue in a task of its own, hands over what it loses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kappamq.client.consumer.consume_stats import ConsumeStats
from kappamq.client.consumer.inbox import Inbox
from kappamq.client.core.core import ClientCore
from kappamq.client.group.queue_locks import QueueLocks
from kappamq.client.group.shares import Share
from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.client.pulling.pull_loop import PullLoop
from kappamq.client.pulling.pulling import Interest, PullStyle
from kappamq.errors import KappaError
from kappamq.message import MessageQueue

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""After a round that could not be finished the next one comes this soon."""
TOGETHER_S: Final = 0.05
"""Notices that come this close together cause one round."""

HANDOVER_S: Final = 0.2
"""Whoever read a queue until now gets this long to store how far it was, so that less is delivered twice."""
_TAKEN_AT_ONCE: Final = 64


class Store(Protocol):
    """Where it is kept how far a group has come: at the brokers, or in a file."""

    async def start_of(self, queue: MessageQueue) -> int:
        """Where to begin with a queue."""

    async def commit(self, offsets: Mapping[MessageQueue, int], *, strict: bool = False) -> None: ...

    def forget(self, queue: MessageQueue) -> None: ...


class Sharing(Protocol):
    """Says what of a topic is ours."""

    async def of(self, topic: str) -> Share | None:
        """None: that cannot be told now, and all stays as it is."""


@dataclass(slots=True)
class Held:
    """A queue that is ours, and the task that pulls it."""

    queue: ProcessQueue
    task: asyncio.Task[None]


class Assignment:
    """Which queues are ours. `interests` gives the subscriptions of the moment. `locked`: each under a lock of its broker."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        interests: Callable[[], Iterable[Interest]],
        inbox: Inbox,
        store: Store,
        shares: Sharing,
        *,
        style: PullStyle,
        stats: ConsumeStats,
        locked: bool = False,
    ) -> None:
        self._core = core
        self._group = group
        self._interests = interests
        self._inbox = inbox
        self._store = store
        self._shares = shares
        self._style = style
        self._stats = stats
        self.locks = QueueLocks(core, group, self._lock_changed) if locked else None
        config = core.config
        self._limits = Limits(config.cached_messages_max, config.cached_bytes_max, config.consume_span_max)
        self._held: dict[MessageQueue, Held] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._interrupted: set[MessageQueue] = set()  # of those leaving: the lock was not ours all the time
        self._wanted = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._taking = asyncio.Semaphore(_TAKEN_AT_ONCE)
        self._paused: set[MessageQueue] = set()
        self._all_paused = False
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def queues(self) -> list[ProcessQueue]:
        return [held.queue for held in self._held.values()]

    def get(self, queue: MessageQueue) -> ProcessQueue | None:
        held = self._held.get(queue)
        return held.queue if held is not None else None

    def start(self, *, balanced: bool) -> None:
        self._rounds = asyncio.create_task(self._keep_balanced(balanced))
        if self.locks is not None:
            self.locks.start()

    def soon(self) -> None:
        """Something changed: look again."""
        self._wanted.set()

    async def stop_pulling(self) -> None:
        """Take no more; what is held stays acknowledgeable, and locked."""
        tasks = [held.task for held in self._held.values()]
        if self._rounds is not None:
            tasks.append(self._rounds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """The end: what is out stays locked, for as long as the broker remembers; all other locks are given back."""
        queues = {*self._held, *self._leaving}  # now: whoever has handed over, or was cancelled, is not in it any more
        # With nothing out, all that is left to do is to store how far we were, and to unlock.
        ending = [task for queue, task in self._leaving.items() if not self._inbox.is_out(queue)]
        await asyncio.gather(*ending, return_exceptions=True)
        for task in [*self._leaving.values(), *self._errands]:
            task.cancel()
        for held in self._held.values():
            self._inbox.drop(held.queue)
        if self.locks is not None:
            await self.locks.stop()
            await self.locks.release([queue for queue in queues if not self._inbox.is_out(queue)])

    # --- how far we are ---

    def offsets(self) -> dict[MessageQueue, int]:
        """What may be stored: of a queue whose lock may be another's by now, nothing."""
        return {
            queue: held.queue.committable
            for queue, held in self._held.items()
            if not held.queue.dropped and (self.locks is None or self.locks.holds(queue))
        }

    def restart(self, queue: MessageQueue, offset: int, *, store: bool = True) -> None:
        """Go on at `offset`, whatever is held of the queue. `store`: it is the group's offset from now on."""
        held = self._held.pop(queue, None)
        if held is None:
            return
        self._inbox.drop(held.queue)
        if held.task is not asyncio.current_task():
            held.task.cancel()
        self._store.forget(queue)
        self._begin(queue, offset)
        if store:
            self._errand(self._store.commit({queue: offset}))

    # --- pausing ---

    def pause(self, queues: Collection[MessageQueue] | None) -> None:
        """Pull and hand out nothing of these queues, of all if None; also if they come to us only later."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)
        for held in self._held.values():
            held.queue.paused = self._is_paused(held.queue.queue)

    def resume(self, queues: Collection[MessageQueue] | None) -> None:
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        for held in self._held.values():
            if held.queue.paused and not self._is_paused(held.queue.queue):
                held.queue.paused = False
                held.queue.woken()
                self._inbox.look_again(held.queue)

    def _is_paused(self, queue: MessageQueue) -> bool:
        return self._all_paused or queue in self._paused

    # --- balancing ---

    async def balance(self) -> bool:
        """Take what is ours and give up what is not. False if something could not be found out."""
        topics = {interest.topic for interest in self._interests()}
        shares = [await self._shares.of(topic) for topic in sorted(topics)]
        known = [share for share in shares if share is not None]
        kept = {queue for share in known for queue in share.mine}
        told = {share.topic for share in known}
        await self._give_up(
            [queue for queue in self._held if queue.topic not in topics or (queue.topic in told and queue not in kept)]
        )
        new = sorted(kept - self._held.keys())
        # With locks, the one before us gives its lock back when it has stored how far it was.
        if new and self.locks is None and any(share.members > 1 for share in known):
            await asyncio.sleep(HANDOVER_S)
        if self.locks is not None:
            # Locked, but lost again before we could begin.
            for queue in self.locks.queues:
                known_not_ours = queue.topic not in topics or (queue.topic in told and queue not in kept)
                if known_not_ours and queue not in self._leaving:
                    self._leaving[queue] = asyncio.create_task(self._hand_over(queue, None))
        taken = await asyncio.gather(*(self._take(queue) for queue in new))
        self._set_limits()
        return all(taken) and len(known) == len(shares)

    async def _keep_balanced(self, balanced: bool) -> None:
        period = self._core.config.rebalance_ms / 1000
        while True:
            try:
                async with asyncio.timeout(period if balanced else min(period, RETRY_S)):
                    await self._wanted.wait()
                await asyncio.sleep(TOGETHER_S)
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                balanced = await self.balance()
            except Exception:
                log.exception("balancing the queues of group %s failed", self._group)
                balanced = False

    async def _take(self, queue: MessageQueue) -> bool:
        if queue in self._leaving:
            return False  # a listener is still at work from last time
        try:
            async with self._taking:
                # First the lock, then the question where to begin: the answer must not change any more.
                if self.locks is not None and not await self.locks.acquire(queue):
                    log.info("group %s waits for %s: another consumer still has its lock", self._group, queue)
                    return False
                offset = await self._store.start_of(queue)
        except KappaError as error:
            log.warning("group %s cannot start with %s yet: %s", self._group, queue, error)
            return False
        log.info("group %s reads %s from offset %d on", self._group, queue, offset)
        self._begin(queue, offset)
        return True

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        held = ProcessQueue(queue, offset, self._limits)
        held.paused = self._is_paused(queue)
        if self.locks is not None:
            held.lease_until = self.locks.until(queue)
        loop = PullLoop(
            self._core, self._group, held, self._interest, self._inbox, self.restart, self._style, self._stats
        )
        self._held[queue] = Held(held, asyncio.create_task(loop.run()))

    def _interest(self, topic: str) -> Interest | None:
        return next((interest for interest in self._interests() if interest.topic == topic), None)

    def _set_limits(self) -> None:
        """Limits for a whole topic are shared out among our queues of it."""
        config = self._core.config
        if config.topic_messages_max is None and config.topic_bytes_max is None:
            return
        counts: dict[str, int] = {}
        for queue in self._held:
            counts[queue.topic] = counts.get(queue.topic, 0) + 1
        for queue, held in self._held.items():
            messages, size = self._limits.messages_max, self._limits.bytes_max
            if config.topic_messages_max is not None:
                messages = max(1, config.topic_messages_max // counts[queue.topic])
            if config.topic_bytes_max is not None:
                size = max(1, config.topic_bytes_max // counts[queue.topic])
            held.queue.limits = Limits(messages, size, self._limits.span_max)

    async def _give_up(self, queues: list[MessageQueue]) -> None:
        given_up = [(queue, self._held.pop(queue)) for queue in queues]
        for queue, held in given_up:
            log.info("group %s leaves %s to another consumer", self._group, queue)
            self._inbox.drop(held.queue)
            held.task.cancel()
        if self.locks is not None:
            for queue, held in given_up:
                self._leaving[queue] = asyncio.create_task(self._hand_over(queue, held.queue))
        elif given_up:
            # The next owner starts where we say we are, so say it before doing anything else.
            await self._store.commit({queue: held.queue.committable for queue, held in given_up})
            for queue in queues:
                self._store.forget(queue)
        await asyncio.gather(*(held.task for _, held in given_up), return_exceptions=True)

    # --- locks ---

    async def _hand_over(self, queue: MessageQueue, left: ProcessQueue | None) -> None:
        """Let the message in hand be finished, store how far we are, then unlock."""
        assert self.locks is not None
        try:
            # The lock is renewed meanwhile. A listener that hangs must not keep the queue from everybody for ever.
            async with asyncio.timeout(self._core.config.consume_timeout_ms / 1000):
                await self._inbox.wait_free(queue)
            if left is not None and queue not in self._interrupted and self.locks.holds(queue):
                await self._store.commit({queue: left.committable})
            await self.locks.release([queue])
        except TimeoutError:
            log.warning("group %s: a listener hangs with %s, whose lock runs out now", self._group, queue)
            self.locks.forget(queue)
        finally:
            self._store.forget(queue)
            self._interrupted.discard(queue)
            self._leaving.pop(queue, None)

    def _lock_changed(self, queue: MessageQueue, until: float, lapsed: bool) -> None:
        if queue in self._leaving and (lapsed or until <= self._core.clock.liveness()):
            self._interrupted.add(queue)
        held = self._held.get(queue)
        if held is None:
            return
        if lapsed and until > self._core.clock.liveness():
            # Ours again, but somebody else may have had it: begin where the broker says, not with what we hold.
            log.info("group %s has the lock of %s again", self._group, queue)
            self._held.pop(queue)
            self._inbox.drop(held.queue)
            held.task.cancel()
            self._store.forget(queue)
            self.soon()
            return
        held.queue.lease_until = until
        if until > self._core.clock.liveness():
            self._inbox.look_again(held.queue)

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

"""The queues assigned to a consumer: takes its share, pulls each queue in a task of its own, hands over what it loses."""

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
"""Delay before the next rebalance after an incomplete one."""
TOGETHER_S: Final = 0.05
"""Notifications within this time cause one rebalance."""

HANDOVER_S: Final = 0.2
"""How long the previous reader of a queue gets to commit its offset, so that fewer messages are delivered twice."""
_TAKEN_AT_ONCE: Final = 64


class Store(Protocol):
    """Where the group's offsets are stored: at the brokers, or in a file."""

    async def start_of(self, queue: MessageQueue) -> int:
        """Return the offset to start a queue at."""

    async def commit(self, offsets: Mapping[MessageQueue, int], *, strict: bool = False) -> None: ...

    def forget(self, queue: MessageQueue) -> None: ...


class Sharing(Protocol):
    """Decides which queues of a topic belong to this consumer."""

    async def of(self, topic: str) -> Share | None:
        """Return our share; None if it cannot be determined now, and the assignment stays as it is."""


@dataclass(slots=True)
class Held:
    """An assigned queue and the task that pulls it."""

    queue: ProcessQueue
    task: asyncio.Task[None]


class Assignment:
    """The assigned queues. `interests` returns the current subscriptions. `locked`: each queue needs its broker's lock."""

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
        self._interrupted: set[MessageQueue] = set()  # of those leaving: the lock was lost in between
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
        """Rebalance soon, because something changed."""
        self._wanted.set()

    async def stop_pulling(self) -> None:
        """Stop pulling; messages in flight can still be acknowledged, and their queues stay locked."""
        tasks = [held.task for held in self._held.values()]
        if self._rounds is not None:
            tasks.append(self._rounds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Leave for good: queues with messages in flight stay locked until the lock expires; all others are unlocked."""
        queues = {
            *self._held,
            *self._leaving,
        }  # a snapshot: queues that are handed over or cancelled meanwhile drop out of it
        # With nothing in flight it only remains to commit the offsets and to unlock.
        ending = [task for queue, task in self._leaving.items() if not self._inbox.is_out(queue)]
        await asyncio.gather(*ending, return_exceptions=True)
        for task in [*self._leaving.values(), *self._errands]:
            task.cancel()
        for held in self._held.values():
            self._inbox.drop(held.queue)
        if self.locks is not None:
            await self.locks.stop()
            await self.locks.release([queue for queue in queues if not self._inbox.is_out(queue)])

    # --- offsets ---

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the offsets to commit, without queues whose lock another client may hold by now."""
        return {
            queue: held.queue.committable
            for queue, held in self._held.items()
            if not held.queue.dropped and (self.locks is None or self.locks.holds(queue))
        }

    def restart(self, queue: MessageQueue, offset: int, *, store: bool = True) -> None:
        """Continue at `offset` and drop what is held of the queue. `store`: commit it as the group's offset."""
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
        """Stop pulling and handing out these queues, all if None; also those that are assigned only later."""
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

    # --- rebalancing ---

    async def balance(self) -> bool:
        """Take over our share and give up the rest. Returns False if the share of a topic could not be determined."""
        topics = {interest.topic for interest in self._interests()}
        shares = [await self._shares.of(topic) for topic in sorted(topics)]
        known = [share for share in shares if share is not None]
        kept = {queue for share in known for queue in share.mine}
        told = {share.topic for share in known}
        await self._give_up(
            [queue for queue in self._held if queue.topic not in topics or (queue.topic in told and queue not in kept)]
        )
        new = sorted(kept - self._held.keys())
        # With locks this is not needed: the previous reader unlocks after it has committed its offset.
        if new and self.locks is None and any(share.members > 1 for share in known):
            await asyncio.sleep(HANDOVER_S)
        if self.locks is not None:
            # The lock was acquired, and lost again before we could start.
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
                log.exception("group %s: rebalancing failed", self._group)
                balanced = False

    async def _take(self, queue: MessageQueue) -> bool:
        if queue in self._leaving:
            return False  # a listener is still processing a message of the previous assignment
        try:
            async with self._taking:
                # Lock first, then fetch the start offset, since only the lock keeps it from changing.
                if self.locks is not None and not await self.locks.acquire(queue):
                    log.info("group %s waits for %s: another consumer still holds its lock", self._group, queue)
                    return False
                offset = await self._store.start_of(queue)
        except KappaError as error:
            log.warning("group %s cannot start reading %s yet: %s", self._group, queue, error)
            return False
        log.info("group %s was assigned %s, starting at offset %d", self._group, queue, offset)
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
        """Divide the limits of a topic among its assigned queues."""
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
            log.info("group %s gives up %s: it is assigned to another member", self._group, queue)
            self._inbox.drop(held.queue)
            held.task.cancel()
        if self.locks is not None:
            for queue, held in given_up:
                self._leaving[queue] = asyncio.create_task(self._hand_over(queue, held.queue))
        elif given_up:
            # The next owner starts at the committed offset, so commit before anything else.
            await self._store.commit({queue: held.queue.committable for queue, held in given_up})
            for queue in queues:
                self._store.forget(queue)
        await asyncio.gather(*(held.task for _, held in given_up), return_exceptions=True)

    # --- locks ---

    async def _hand_over(self, queue: MessageQueue, left: ProcessQueue | None) -> None:
        """Wait for the delivery in flight, commit the offset, then unlock."""
        assert self.locks is not None
        try:
            # The lock is renewed meanwhile, but a listener that hangs must not block the queue for ever.
            async with asyncio.timeout(self._core.config.consume_timeout_ms / 1000):
                await self._inbox.wait_free(queue)
            if left is not None and queue not in self._interrupted and self.locks.holds(queue):
                await self._store.commit({queue: left.committable})
            await self.locks.release([queue])
        except TimeoutError:
            log.warning("group %s: a listener of %s does not return; its lock is no longer renewed", self._group, queue)
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
            # Ours again, but another client may have held it: restart at the committed offset, not with what we hold.
            log.info("group %s holds the lock of %s again", self._group, queue)
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

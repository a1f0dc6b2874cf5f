"""The broker's locks of queues that are consumed in order: acquires, renews and releases them.

A lock is a lease. We count it from when we sent the request, the broker from when it received it, so ours ends first: while
we consider a lock ours, no other client can have it. A client that cannot renew stops handing out long before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from kappamq.client.core.core import ClientCore
from kappamq.errors import KappaError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import LockBatch, LockBatchResponse
from kappamq.protocol.headers.client import LockQueues, UnlockQueues

log = logging.getLogger(__name__)

LOST: Final = 0.0
RETRY_S: Final = 1.0
"""Delay before a failed renewal is retried."""


class QueueLocks:
    """Locks of one group and client. `changed(queue, until, lapsed)` is called on each renewal and each loss.

    `lapsed`: it was unknown for a while whether we held the lock, so another client may have had it.
    """

    def __init__(self, core: ClientCore, group: str, changed: Callable[[MessageQueue, float, bool], None]) -> None:
        self._core = core
        self._group = group
        self._changed = changed
        self._until: dict[MessageQueue, float] = {}
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._renewing = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues whose locks are being renewed, whether we currently hold them or not."""
        return list(self._until)

    def until(self, queue: MessageQueue) -> float:
        """Return the liveness time until which we hold the lock; `LOST` if we do not."""
        return self._until.get(queue, LOST)

    def holds(self, queue: MessageQueue) -> bool:
        return self.until(queue) > self._core.clock.liveness()

    async def acquire(self, queue: MessageQueue) -> bool:
        """Request one lock. Raises KappaError if the broker cannot be reached."""
        asked = self._core.clock.liveness()
        granted = await self._ask(queue.broker, {queue})
        if queue in granted:
            self._until[queue] = asked + self._core.config.lock_lease_ms / 1000
        return queue in granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; best effort, since they expire by themselves."""
        for broker, some in _by_broker(queues).items():
            held = {queue for queue in some if self._until.pop(queue, LOST) > self._core.clock.liveness()}
            if not held:
                continue
            try:
                topic = next(iter(held)).topic
                await self._core.ask_master(topic, broker, UnlockQueues(), self._body(held), patient=False)
            except KappaError as error:
                log.info(
                    "group %s could not release its locks at broker %s; they will expire: %s",
                    self._group,
                    broker,
                    error,
                )

    def forget(self, queue: MessageQueue) -> None:
        """Stop renewing without releasing: a listener is still processing a message under this lock."""
        self._until.pop(queue, None)

    async def renew(self) -> bool:
        """Renew all. Returns False if a broker could not be reached."""
        results = await asyncio.gather(*(self._renew_at(*item) for item in _by_broker(self._until).items()))
        return all(results)

    async def _keep(self) -> None:
        period, done = self._core.config.lock_renew_ms / 1000, True
        while True:
            await asyncio.sleep(period if done else min(period, RETRY_S))
            try:
                done = await self.renew()
            except Exception:  # without renewals all locks would expire soon
                log.exception("group %s: renewing the queue locks failed", self._group)
                done = False

    async def _renew_at(self, broker: str, queues: set[MessageQueue]) -> bool:
        asked = self._core.clock.liveness()
        try:
            granted = await self._ask(broker, queues)
        except KappaError as error:
            log.warning(
                "group %s could not renew %d queue locks at broker %s: %s", self._group, len(queues), broker, error
            )
            return False
        now = self._core.clock.liveness()
        for queue in sorted(queues):
            before = self._until.get(queue)
            if before is None:
                continue  # released meanwhile
            until = asked + self._core.config.lock_lease_ms / 1000 if queue in granted else LOST
            if until == LOST and before != LOST:
                log.warning("group %s has lost the lock of %s", self._group, queue)
            self._until[queue] = until
            self._changed(queue, until, before <= now)
        return True

    async def _ask(self, broker: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        topic = next(iter(queues)).topic
        # A reader that waits for a lock asks again soon, so there is nothing to wait for here.
        answer = await self._core.ask_master(topic, broker, LockQueues(), self._body(queues), patient=False)
        return LockBatchResponse.decode(answer.body).locked & queues

    def _body(self, queues: set[MessageQueue]) -> bytes:
        return LockBatch(consumer_group=self._group, client_id=self._core.client_id, queues=queues).encode()


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    found: dict[str, set[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, set()).add(queue)
    return found

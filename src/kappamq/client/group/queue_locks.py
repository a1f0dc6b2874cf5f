"""The broker's locks of queues that are consumed in order: asked for, renewed, given back.

A lock is a lease. We count from the moment we asked, the broker from when it heard us, and ours is the shorter one: when
we still believe in a lock, nobody else can have it. Whoever cannot renew stops handing out long before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from kappamq.client.core.core import ClientCore
from kappamq.errors import KappaError, NotConnected, Retry
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import LockBatch, LockBatchResponse
from kappamq.protocol.headers.client import LockQueues, UnlockQueues

log = logging.getLogger(__name__)

LOST: Final = 0.0
RETRY_S: Final = 1.0
"""A renewal that failed is tried again this soon."""


class QueueLocks:
    """Locks of one group and client. `changed(queue, until, lapsed)` is called on each renewal and each loss.

    `lapsed`: for a while nobody knew whether the lock was ours; somebody else may have had it.
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
        """Those whose locks are kept up, whether they are ours just now or not."""
        return list(self._until)

    def until(self, queue: MessageQueue) -> float:
        """Liveness time up to which the lock is ours; `LOST` if it is not."""
        return self._until.get(queue, LOST)

    def holds(self, queue: MessageQueue) -> bool:
        return self.until(queue) > self._core.clock.liveness()

    async def acquire(self, queue: MessageQueue) -> bool:
        """Ask for one lock. Raises KappaError if the broker cannot be asked."""
        asked = self._core.clock.liveness()
        granted = await self._ask(queue.broker, {queue})
        if queue in granted:
            self._until[queue] = asked + self._core.config.lock_lease_ms / 1000
        return queue in granted

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; best effort, for they end by themselves."""
        for broker, some in _by_broker(queues).items():
            held = {queue for queue in some if self._until.pop(queue, LOST) > self._core.clock.liveness()}
            if not held:
                continue
            try:
                route = await self._core.routes.find(next(iter(held)).topic)
                await self._core.ask(route.master(broker), UnlockQueues(), self._body(held))
            except KappaError as error:
                log.info(
                    "group %s could not give back locks at %s, they end by themselves: %s", self._group, broker, error
                )

    def forget(self, queue: MessageQueue) -> None:
        """Renew no more, and do not give back either: somebody is still at work behind this lock."""
        self._until.pop(queue, None)

    async def renew(self) -> bool:
        """Renew all. False if a broker could not be asked."""
        results = await asyncio.gather(*(self._renew_at(*item) for item in _by_broker(self._until).items()))
        return all(results)

    async def _keep(self) -> None:
        period, done = self._core.config.lock_renew_ms / 1000, True
        while True:
            await asyncio.sleep(period if done else min(period, RETRY_S))
            try:
                done = await self.renew()
            except Exception:  # whatever it is: without renewals all locks are gone in a moment
                log.exception("group %s: renewing locks failed", self._group)
                done = False

    async def _renew_at(self, broker: str, queues: set[MessageQueue]) -> bool:
        asked = self._core.clock.liveness()
        try:
            granted = await self._ask(broker, queues)
        except KappaError as error:
            log.warning("group %s could not renew %d locks at %s: %s", self._group, len(queues), broker, error)
            return False
        now = self._core.clock.liveness()
        for queue in sorted(queues):
            before = self._until.get(queue)
            if before is None:
                continue  # given back meanwhile
            until = asked + self._core.config.lock_lease_ms / 1000 if queue in granted else LOST
            if until == LOST and before != LOST:
                log.warning("group %s has lost the lock of %s", self._group, queue)
            self._until[queue] = until
            self._changed(queue, until, before <= now)
        return True

    async def _ask(self, broker: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        topic = next(iter(queues)).topic
        try:
            route = await self._core.routes.find(topic)
            answer = await self._core.ask(route.master(broker), LockQueues(), self._body(queues))
        except KappaError as error:
            if isinstance(error, NotConnected) or error.retry is Retry.AFTER_ROUTE_REFRESH:
                await self._core.routes.refresh(topic)
            raise
        return LockBatchResponse.decode(answer.body).locked & queues

    def _body(self, queues: set[MessageQueue]) -> bytes:
        return LockBatch(consumer_group=self._group, client_id=self._core.client_id, queues=queues).encode()


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    found: dict[str, set[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, set()).add(queue)
    return found

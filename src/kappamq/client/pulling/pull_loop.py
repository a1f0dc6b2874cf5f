"""Pulls one queue, one request after the other, as long as it is assigned to us."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

from kappamq.client.consumer.consume_stats import ConsumeStats
from kappamq.client.consumer.inbox import Inbox
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID, Route
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.client.pulling.pulling import Interest, Pulled, PullStyle, pull_block
from kappamq.errors import (
    ClientError,
    FlowControlled,
    GoingAway,
    GroupNotFound,
    KappaError,
    NoPermission,
    NotConnected,
    NotSupported,
    RequestTimeout,
    Retry,
    SubscriptionOutdated,
    SubscriptionUnknown,
)
from kappamq.message import MessageQueue, PullStatus

log = logging.getLogger(__name__)

FLOW_CONTROL_S: Final = 0.02
FULL_S: Final = 5.0
"""A full queue checks again after this long, in case a wake-up was missed."""
OVERFULL_S: Final = 0.05
"""How often to check whether the reader of all queues has caught up."""
STRANGER_S: Final = 0.1
"""Pause after sending a heartbeat to a broker that did not know us."""
DAMAGED_S: Final = 0.1
"""Pause after an answer without a single good message, so that a broker with only damage is not polled at full speed."""
AVOID_S: Final = 5.0
"""How long other members of a group are used instead of one that does not answer."""
COMPLAIN_S: Final = 60.0
"""The same problem is logged at most this often."""

Restart = Callable[[MessageQueue, int], None]


class PullLoop:
    """Pulls messages of one queue into the inbox. `restart` restarts the queue at another offset."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        queue: ProcessQueue,
        interest: Callable[[str], Interest | None],
        inbox: Inbox,
        restart: Restart,
        style: PullStyle,
        stats: ConsumeStats,
    ) -> None:
        self._core = core
        self._group = group
        self._queue = queue
        self._interest = interest
        self._inbox = inbox
        self._restart = restart
        self._style = style
        self._stats = stats
        self._broker_id = MASTER_ID  # the one that the last answer suggested
        self._asked: str | None = None  # the address of the last pull
        self._avoided = ("", 0.0)  # an address that does not answer, and until when another one is asked
        self._told = queue.next_offset  # the offset last committed by a pull, initially the start offset
        self._complained = ""
        self._complained_at = 0.0
        self._failures = 0  # consecutive

    async def run(self) -> None:
        queue = self._queue
        while not queue.dropped:
            interest = self._interest(queue.queue.topic)
            if interest is None:
                return  # no longer subscribed; the next rebalance gives the queue up
            await self._wait_for_room()
            if queue.lease_until <= self._core.clock.liveness():
                await self._pause()  # without the lock, messages pulled now might be another member's
                continue
            if self._style.waiting_max is not None and len(self._inbox) >= self._style.waiting_max:
                await asyncio.sleep(OVERFULL_S)
                continue
            try:
                result = await self._pull(interest)
                if not queue.dropped:
                    self._use(result)
                self._complained = ""
                self._failures = 0
                if result.damaged and not result.messages:
                    await asyncio.sleep(DAMAGED_S)
            except KappaError as error:
                await self._recover(error)
            except Exception:
                log.exception("unexpected error while pulling %s; retrying", queue.queue)
                await self._pause()

    async def _pull(self, interest: Interest) -> Pulled:
        style, began = self._style, self._core.clock.liveness()
        try:
            result = await self._pull_as(interest, lite=style.lite)
        except (NotSupported, NoPermission):
            if not style.lite:
                raise
            # Older brokers do not know lite pulls, and newer ones may have them disabled.
            result = await self._pull_as(interest, lite=False)
            style.lite = False
        self._broker_id = result.suggested_broker_id
        self._queue.pulled_ms = self._core.clock.message_ms()
        for damaged in result.damaged:
            self._stats.damage.report(damaged)
        if result.messages:
            now = self._core.clock.liveness()
            self._stats.pulled(self._queue.queue.topic, len(result.messages), now - began, now)
        return result

    async def _pull_as(self, interest: Interest, *, lite: bool) -> Pulled:
        config, queue, style = self._core.config, self._queue, self._style
        route = await self._core.routes.find(queue.queue.topic)
        broker_id = self._reader_id(route)
        self._asked = route.addresses[queue.queue.broker][broker_id]
        # A slave accepts no offsets with pulls. An offset committed already is not repeated: Apache's broker processes pulls and
        # commits concurrently, and the one that finishes last wins, even if it is older.
        commit = queue.committable if style.commits and broker_id == MASTER_ID else 0
        if commit > self._told:
            self._told = commit
        else:
            commit = 0
        return await pull_block(
            self._core,
            self._group,
            queue.queue,
            queue.next_offset,
            interest,
            count=config.pull_batch,
            hold_ms=config.pull_hold_ms,
            timeout=config.pull_timeout_ms / 1000,
            commit_offset=commit or None,
            broker_id=broker_id,
            introduced=style.introduced,
            lite=lite,
            original_topics=True,
        )

    def _reader_id(self, route: Route) -> int:
        """Return the member of the group to pull from: the suggested one, unless it did not answer a moment ago."""
        broker = self._queue.queue.broker
        wanted = route.reader_id(broker, self._broker_id)
        address, until = self._avoided
        known = route.addresses[broker]
        if known[wanted] != address or until <= self._core.clock.liveness():
            return wanted
        return min((other for other in known if known[other] != address), default=wanted)

    def _use(self, result: Pulled) -> None:
        queue = self._queue
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "%s has no offset %d (it holds %d to %d); group %s continues at %d",
                queue.queue,
                queue.next_offset,
                result.min_offset,
                result.max_offset,
                self._group,
                result.next_offset,
            )
            # Restart first: a broker announces a reset of the group only once.
            self._restart(queue.queue, result.next_offset)
            return
        fresh = queue.add(result.messages, result.next_offset)
        if fresh:
            self._inbox.put(queue, fresh)

    async def _wait_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._queue.dropped:
            room = asyncio.Event()
            if not self._queue.when_room(functools.partial(_wake, loop, room)):
                return
            try:
                async with asyncio.timeout(FULL_S):
                    await room.wait()
            except TimeoutError:
                pass

    async def _recover(self, error: KappaError) -> None:
        queue = self._queue.queue
        if isinstance(error, FlowControlled):
            await asyncio.sleep(FLOW_CONTROL_S)
            return
        self._complain(error)
        self._broker_id = MASTER_ID
        self._failures += 1
        try:
            if isinstance(error, (SubscriptionUnknown, SubscriptionOutdated, GroupNotFound)):
                route = await self._core.routes.find(queue.topic)
                address = self._asked or route.reader(queue.broker)
                await self._core.heartbeat_to(await self._core.brokers.get(address))
                await asyncio.sleep(STRANGER_S)
                return
            if isinstance(error, (NotConnected, RequestTimeout)) or error.retry is Retry.AFTER_ROUTE_REFRESH:
                await self._core.routes.refresh(queue.topic)
            if isinstance(error, (NotConnected, GoingAway)) and self._failures == 1:
                return  # connections may break at any time; reconnect at once
            if isinstance(error, (NotConnected, RequestTimeout)) and self._asked is not None:
                self._avoided = self._asked, self._core.clock.liveness() + AVOID_S
                if 1 < self._members() >= self._failures:
                    return  # others of the group may have the messages, too
        except KappaError as another:
            self._complain(another)
        await self._pause()

    def _members(self) -> int:
        """How many brokers the group of this queue has."""
        route = self._core.routes.cached(self._queue.queue.topic)
        return len(route.addresses.get(self._queue.queue.broker, ())) if route is not None else 0

    async def _pause(self) -> None:
        await asyncio.sleep(self._core.config.pull_pause_on_error_ms / 1000)

    def _complain(self, error: KappaError) -> None:
        now, text = self._core.clock.liveness(), str(error)
        if text != self._complained or now - self._complained_at > COMPLAIN_S:
            level = logging.INFO if isinstance(error, (SubscriptionUnknown, ClientError)) else logging.WARNING
            log.log(level, "group %s cannot pull %s: %s", self._group, self._queue.queue, error)
            self._complained, self._complained_at = text, now


def _wake(loop: asyncio.AbstractEventLoop, room: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(room.set)
    except RuntimeError:
        pass  # the loop is closed, so pulling has ended

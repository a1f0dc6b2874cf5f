"""The queues a consumer reads: takes its share, pulls each queue in a task of its own, hands over what it loses."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kappamq.client.balance import Strategy, share
from kappamq.client.core import ClientCore
from kappamq.client.inbox import Inbox
from kappamq.client.offsets import ConsumeFrom, Offsets
from kappamq.client.process_queue import Limits, ProcessQueue
from kappamq.client.pull_loop import PullLoop
from kappamq.client.pulling import Interest
from kappamq.errors import BrokerError, KappaError, NoRoute, NotAvailable
from kappamq.message import MessageQueue
from kappamq.protocol.bodies_clients import ConsumerList
from kappamq.protocol.headers_client import GetConsumerList
from kappamq.protocol.names import is_retry_topic

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""After a round that could not be finished the next one comes this soon."""
TOGETHER_S: Final = 0.05
"""Notices that come this close together cause one round."""

HANDOVER_S: Final = 0.2
"""Whoever read a queue until now gets this long to store how far it was, so that less is delivered twice."""
_TAKEN_AT_ONCE: Final = 64


@dataclass(slots=True)
class Held:
    """A queue that is ours, and the task that pulls it."""

    queue: ProcessQueue
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class Share:
    """What of a topic is ours, and among how many it was shared out."""

    topic: str
    mine: set[MessageQueue]
    members: int


class Assignment:
    """Which queues are ours. `interests` gives the subscriptions of the moment."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        interests: Callable[[], Iterable[Interest]],
        inbox: Inbox,
        offsets: Offsets,
        *,
        strategy: Strategy,
        start: ConsumeFrom,
    ) -> None:
        self._core = core
        self._group = group
        self._interests = interests
        self._inbox = inbox
        self._offsets = offsets
        self._strategy = strategy
        self._start = start
        config = core.config
        self._limits = Limits(config.cached_messages_max, config.cached_bytes_max, config.consume_span_max)
        self._held: dict[MessageQueue, Held] = {}
        self._wanted = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._missing: set[str] = set()
        self._taking = asyncio.Semaphore(_TAKEN_AT_ONCE)

    @property
    def queues(self) -> list[ProcessQueue]:
        return [held.queue for held in self._held.values()]

    def get(self, queue: MessageQueue) -> ProcessQueue | None:
        held = self._held.get(queue)
        return held.queue if held is not None else None

    def start(self, *, balanced: bool) -> None:
        self._rounds = asyncio.create_task(self._keep_balanced(balanced))

    def soon(self) -> None:
        """Something changed: look again."""
        self._wanted.set()

    async def stop_pulling(self) -> None:
        """Take no more; what is held stays acknowledgeable."""
        tasks = [held.task for held in self._held.values()]
        if self._rounds is not None:
            tasks.append(self._rounds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def restart(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`, whatever is held of the queue."""
        held = self._held.pop(queue, None)
        if held is None:
            return
        held.queue.dropped = True
        if held.task is not asyncio.current_task():
            held.task.cancel()
        self._begin(queue, offset)

    async def balance(self) -> bool:
        """Take what is ours and give up what is not. False if something could not be found out."""
        topics = {interest.topic for interest in self._interests()}
        shares = [await self._share(topic) for topic in sorted(topics)]
        known = [share for share in shares if share is not None]
        kept = {queue for share in known for queue in share.mine}
        told = {share.topic for share in known}
        await self._give_up(
            [queue for queue in self._held if queue.topic not in topics or (queue.topic in told and queue not in kept)]
        )
        new = sorted(kept - self._held.keys())
        if new and any(share.members > 1 for share in known):
            await asyncio.sleep(HANDOVER_S)
        taken = await asyncio.gather(*(self._take(queue) for queue in new))
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

    async def _share(self, topic: str) -> Share | None:
        """Return what of a topic is ours; None if that cannot be told now, and all stays as it is."""
        try:
            self._core.routes.keep(topic)
            route = await self._core.routes.find(topic)
            members = await self._members(topic) if route.subscribe else []
        except NoRoute as error:
            # A broker makes the retry topic when it first hears of the group; nobody waits for that.
            if is_retry_topic(topic):
                return Share(topic, set(), 0)
            if topic not in self._missing:
                log.warning("group %s waits for its topic: %s", self._group, error)
            self._missing.add(topic)
            return None
        except KappaError as error:
            log.warning("group %s keeps its queues of %s as they are: %s", self._group, topic, error)
            return None
        self._missing.discard(topic)
        mine = share(self._strategy, self._core.client_id, members, route.subscribe)
        return Share(topic, mine, len(members))

    async def _members(self, topic: str) -> list[str]:
        """Return the client ids of the group; any broker of the topic knows them."""
        route = await self._core.routes.find(topic)
        brokers = sorted(broker for broker, addresses in route.addresses.items() if addresses)
        error: KappaError | None = None
        for broker in random.sample(brokers, len(brokers)):
            address = route.reader(broker)
            try:
                members = await self._members_at(address)
                if self._core.client_id not in members:
                    # It was restarted, or our last heartbeat got lost. Without us in the list we would give up all.
                    await self._core.heartbeat_to(await self._core.brokers.get(address))
                    members = await self._members_at(address)
                if self._core.client_id in members:
                    return members
                error = NotAvailable(f"{address} does not list this consumer in group {self._group} yet")
            except KappaError as failed:
                error = failed
        raise error or NoRoute(f"topic {topic!r} has no broker at the moment")

    async def _members_at(self, address: str) -> list[str]:
        try:
            answer = await self._core.ask(address, GetConsumerList(consumer_group=self._group))
        except BrokerError:
            return []  # how a broker says that it does not know the group
        return ConsumerList.decode(answer.body).consumer_ids

    async def _take(self, queue: MessageQueue) -> bool:
        try:
            async with self._taking:
                offset = await self._offsets.starting_point(queue, self._start)
        except KappaError as error:
            log.warning("group %s cannot start with %s yet: %s", self._group, queue, error)
            return False
        log.info("group %s reads %s from offset %d on", self._group, queue, offset)
        self._begin(queue, offset)
        return True

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        held = ProcessQueue(queue, offset, self._limits)
        loop = PullLoop(self._core, self._group, held, self._interest, self._inbox, self._offsets, self.restart)
        self._held[queue] = Held(held, asyncio.create_task(loop.run()))

    def _interest(self, topic: str) -> Interest | None:
        return next((interest for interest in self._interests() if interest.topic == topic), None)

    async def _give_up(self, queues: list[MessageQueue]) -> None:
        if not queues:
            return
        given_up = [(queue, self._held.pop(queue)) for queue in queues]
        for queue, held in given_up:
            log.info("group %s leaves %s to another consumer", self._group, queue)
            held.queue.dropped = True
            held.task.cancel()
        # The next owner starts where we say we are, so say it before doing anything else.
        await self._offsets.commit({queue: held.queue.committable for queue, held in given_up})
        for queue in queues:
            self._offsets.forget(queue)
        await asyncio.gather(*(held.task for _, held in given_up), return_exceptions=True)

"""Our share of a topic's queues: asks a broker for the group's members and applies the strategy."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from kappamq.client.core.core import ClientCore
from kappamq.client.group.balance import Strategy, share
from kappamq.errors import BrokerError, KappaError, NoRoute, NotAvailable, UnknownTopic
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import ConsumerList
from kappamq.protocol.headers.client import GetConsumerList
from kappamq.protocol.names import is_retry_topic

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """The queues of a topic that are ours, and the number of members it was divided among."""

    topic: str
    mine: set[MessageQueue]
    members: int


class Assigned:
    """Exactly the queues that were chosen, regardless of other readers."""

    def __init__(self) -> None:
        self.queues: set[MessageQueue] = set()

    async def of(self, topic: str) -> Share | None:
        return Share(topic, {queue for queue in self.queues if queue.topic == topic}, 1)


class Shares:
    """For one consumer of a group. Without a `strategy` (broadcasting) all queues are ours."""

    def __init__(self, core: ClientCore, group: str, strategy: Strategy | None) -> None:
        self._core = core
        self._group = group
        self._strategy = strategy
        self._missing: set[str] = set()
        self._kept: set[str] = set()  # topics whose assignment is kept for now, which has been logged

    async def of(self, topic: str) -> Share | None:
        """Return our share; None if it cannot be determined now, and the assignment stays as it is."""
        try:
            self._core.routes.keep(topic)
            route = await self._core.routes.find(topic)
            members = await self._members(topic) if route.subscribe and self._strategy is not None else []
        except NoRoute as error:
            # A broker creates the retry topic when the group first connects, so its absence is not worth a warning.
            if is_retry_topic(topic):
                return Share(topic, set(), 0)
            if topic not in self._missing and isinstance(error, UnknownTopic):
                log.warning(
                    "topic %s does not exist yet; group %s will consume it as soon as it is created",
                    topic,
                    self._group,
                )
            elif topic not in self._missing:
                log.warning("group %s cannot consume topic %s yet: %s", self._group, topic, error)
            self._missing.add(topic)
            return None
        except KappaError as error:
            if topic not in self._kept:
                log.warning("group %s could not rebalance topic %s and keeps its queues: %s", self._group, topic, error)
            self._kept.add(topic)
            return None
        self._kept.discard(topic)
        if topic in self._missing:
            self._missing.discard(topic)
            log.info("topic %s exists now; group %s consumes it", topic, self._group)
        if self._strategy is None:
            return Share(topic, set(route.subscribe), 1)
        mine = share(self._strategy, self._core.client_id, members, route.subscribe)
        return Share(topic, mine, len(members))

    async def _members(self, topic: str) -> list[str]:
        """Return the client ids of the group's members; any broker of the topic knows them."""
        route = await self._core.routes.find(topic)
        brokers = sorted(broker for broker, addresses in route.addresses.items() if addresses)
        error: KappaError | None = None
        for broker in random.sample(brokers, len(brokers)):
            address = route.reader(broker)
            try:
                members = await self._members_at(address)
                if self._core.client_id not in members:
                    # The broker restarted, or lost our last heartbeat. Without us in the list we would give up all queues.
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
            return []  # a broker's answer for an unknown group
        return ConsumerList.decode(answer.body).consumer_ids

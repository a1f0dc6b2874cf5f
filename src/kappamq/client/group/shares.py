"""What of a topic is ours: asks a broker who is in the group, and lets the strategy share the queues out."""

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
    """What of a topic is ours, and among how many it was shared out."""

    topic: str
    mine: set[MessageQueue]
    members: int


class Assigned:
    """Exactly the queues that were chosen, whoever else reads them."""

    def __init__(self) -> None:
        self.queues: set[MessageQueue] = set()

    async def of(self, topic: str) -> Share | None:
        return Share(topic, {queue for queue in self.queues if queue.topic == topic}, 1)


class Shares:
    """For one consumer of a group. Without a `strategy` (broadcasting) everything is ours."""

    def __init__(self, core: ClientCore, group: str, strategy: Strategy | None) -> None:
        self._core = core
        self._group = group
        self._strategy = strategy
        self._missing: set[str] = set()
        self._kept: set[str] = set()  # topics that stay as they are, for now: that was told

    async def of(self, topic: str) -> Share | None:
        """Return what of a topic is ours; None if that cannot be told now, and all stays as it is."""
        try:
            self._core.routes.keep(topic)
            route = await self._core.routes.find(topic)
            members = await self._members(topic) if route.subscribe and self._strategy is not None else []
        except NoRoute as error:
            # A broker makes the retry topic when it first hears of the group; nobody waits for that.
            if is_retry_topic(topic):
                return Share(topic, set(), 0)
            if topic not in self._missing and isinstance(error, UnknownTopic):
                log.warning(
                    "no broker has topic %s yet: group %s waits and reads it as soon as it is created",
                    topic,
                    self._group,
                )
            elif topic not in self._missing:
                log.warning("group %s cannot read topic %s yet: %s", self._group, topic, error)
            self._missing.add(topic)
            return None
        except KappaError as error:
            if topic not in self._kept:
                log.warning("group %s keeps its queues of %s as they are: %s", self._group, topic, error)
            self._kept.add(topic)
            return None
        self._kept.discard(topic)
        if topic in self._missing:
            self._missing.discard(topic)
            log.info("topic %s is there now: group %s reads it", topic, self._group)
        if self._strategy is None:
            return Share(topic, set(route.subscribe), 1)
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

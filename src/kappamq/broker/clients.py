"""Who is connected: producers and consumers as they tell us in heartbeats, and the notices consumers get about each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kappamq.broker.agreement import Agreement, Interest
from kappamq.errors import InvalidParameter
from kappamq.net.connection import Connection
from kappamq.protocol.bodies_clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from kappamq.protocol.frame import request
from kappamq.protocol.headers_client import NotifyConsumersChanged

log = logging.getLogger(__name__)

GROUPS_PER_CONNECTION_MAX = 1000
SUBSCRIPTIONS_MAX = 10_000
_NAME_CHARACTERS_MAX = 255


@dataclass(slots=True)
class Client:
    """One member of a group: a process behind a connection."""

    client_id: str
    connection: Connection
    language: int
    version: int
    seen: float  # liveness time of the last heartbeat
    topics: frozenset[str] = frozenset()  # of a consumer: what it subscribes to
    pushed: bool = False  # of a consumer: it is handed messages, and does not choose where to go on


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    members: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    left: float = 0.0  # when the last member went
    agreement: Agreement = field(default_factory=Agreement)
    recount: bool = False  # somebody has gone: there may be topics that nobody names any more

    @property
    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members.values()})


class Clients:
    def __init__(self, expiry_s: float, group_expiry_s: float) -> None:
        self.expiry_s = expiry_s
        self.group_expiry_s = group_expiry_s
        self.producers: dict[str, dict[Connection, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._named: dict[Connection, tuple[set[str], set[str]]] = {}  # producer and consumer groups of each connection
        self._producing: dict[str, Connection] = {}  # client id -> where producers of that name were heard of last
        self.on_subscribed: Callable[[str, SubscriptionData | None, str], None] = lambda group, subscription, topic: (
            None
        )
        self.on_resubscribed: Callable[[ConsumerGroup, str], None] = lambda group, topic: (
            None
        )  # it wants other messages
        self.may_notify: Callable[[str], bool] = lambda group: True

    # -- heartbeats --------------------------------------------------------------------------------------------------------

    def heartbeat(self, connection: Connection, beat: HeartbeatData, language: int, version: int, now: float) -> None:
        """Note everybody the beat names; members of changed groups are told. Raises InvalidParameter if it names too many."""
        self._check(connection, beat)
        produces, consumes = self._named.setdefault(connection, (set(), set()))
        produces.update(producer.group for producer in beat.producers)
        consumes.update(consumer.group for consumer in beat.consumers)
        for producer in beat.producers:
            members = self.producers.setdefault(producer.group, {})
            before = members.get(connection)
            members[connection] = Client(beat.client_id, connection, language, version, now)
            if before is not None and before.client_id != beat.client_id:
                self._forget_producer(before)
            self._producing[beat.client_id] = connection
        for consumer in beat.consumers:
            self._consumer(connection, beat, consumer, Client(beat.client_id, connection, language, version, now))

    def _check(self, connection: Connection, beat: HeartbeatData) -> None:
        """What clients say is kept: there must be an end to it."""
        named = self._named.get(connection, (set(), set()))
        for known, given in zip(
            named, ({each.group for each in beat.producers}, {each.group for each in beat.consumers}), strict=True
        ):
            if len(known | given) > GROUPS_PER_CONNECTION_MAX:
                raise InvalidParameter(
                    f"one connection names {len(known | given)} groups, {GROUPS_PER_CONNECTION_MAX} at most"
                )
            if any(len(name) > _NAME_CHARACTERS_MAX for name in given):
                raise InvalidParameter(f"the name of a group has {_NAME_CHARACTERS_MAX} characters at most")
        for consumer in beat.consumers:
            group = self.consumers.get(consumer.group)
            topics = {each.topic for each in consumer.subscriptions} | (
                group.subscriptions.keys() if group is not None else set()
            )
            if len(topics) > SUBSCRIPTIONS_MAX:
                raise InvalidParameter(
                    f"group {consumer.group} would subscribe to {len(topics)} topics, {SUBSCRIPTIONS_MAX} at most"
                )

    def _consumer(self, connection: Connection, beat: HeartbeatData, data: ConsumerData, client: Client) -> None:
        group = self.consumers.get(data.group)
        if group is None:
            group = self.consumers[data.group] = ConsumerGroup(data.group)
        other_model = group.message_model is not data.message_model
        group.consume_type, group.message_model, group.from_where = (
            data.consume_type,
            data.message_model,
            data.from_where,
        )
        if other_model:  # what was allowed to one need not be allowed to all
            for topic, subscription in group.subscriptions.items():
                self.on_subscribed(group.name, subscription, topic)
        before = group.members.get(connection)
        changed = before is None
        group.members[connection] = client
        client.pushed = data.consume_type is ConsumeType.CONSUME_PASSIVELY
        if beat.fingerprint and beat.without_subscriptions:
            client.topics = before.topics if before is not None else frozenset()
        else:
            client.topics = frozenset(subscription.topic for subscription in data.subscriptions)
            group.recount |= before is not None and before.topics != client.topics
            changed |= self._subscribe(group, data.subscriptions)
            self._compare(group, client, data)
        if changed:
            self._notify(group)

    def _compare(self, group: ConsumerGroup, client: Client, data: ConsumerData) -> None:
        interest = Interest.of(data.message_model, data.subscriptions)
        conflict = group.agreement.note(client.connection, client.client_id, interest)
        if conflict is not None:
            log.warning(
                "members of consumer group %s subscribe differently, so messages get lost: %s. "
                "Let all members of a group subscribe to the same, or give them groups of their own",
                *(group.name, conflict),
            )

    def _subscribe(self, group: ConsumerGroup, subscriptions: list[SubscriptionData]) -> bool:
        """Take over newer subscriptions and drop topics nobody in the group names any more; True if the topics changed."""
        changed = False
        for subscription in subscriptions:
            known = group.subscriptions.get(subscription.topic)
            changed |= known is None
            if known is None or subscription.version > known.version:
                group.subscriptions[subscription.topic] = subscription
                self.on_subscribed(group.name, subscription, subscription.topic)
                if known is not None and (known.expression, known.expression_type) != (
                    subscription.expression,
                    subscription.expression_type,
                ):
                    self.on_resubscribed(group, subscription.topic)
        if group.recount:
            group.recount = False
            named = frozenset().union(*(member.topics for member in group.members.values()))
            for topic in [topic for topic in group.subscriptions if topic not in named]:
                del group.subscriptions[topic]
                self.on_subscribed(group.name, None, topic)
                changed = True
        return changed

    def unregister(
        self, connection: Connection, producer_group: str | None, consumer_group: str | None, now: float
    ) -> None:
        produces, consumes = self._named.get(connection, (set(), set()))
        if producer_group:
            produces.discard(producer_group)
            self._drop_producer(producer_group, connection)
        if consumer_group:
            consumes.discard(consumer_group)
            self._drop_consumer(consumer_group, connection, now)

    def lost(self, connection: Connection, now: float) -> None:
        """The connection is gone, and whoever lived behind it."""
        produces, consumes = self._named.pop(connection, ((), ()))
        for name in produces:
            self._drop_producer(name, connection)
        for name in consumes:
            self._drop_consumer(name, connection, now)

    def _drop_consumer(self, name: str, connection: Connection, now: float) -> None:
        group = self.consumers.get(name)
        if group is not None and group.members.pop(connection, None) is not None:
            group.agreement.leave(connection)
            group.left, group.recount = now, True
            self._notify(group)

    def _drop_producer(self, name: str, connection: Connection) -> None:
        members = self.producers.get(name)
        if members is not None:
            gone = members.pop(connection, None)
            if not members:
                del self.producers[name]
            if gone is not None:
                self._forget_producer(gone)

    def _forget_producer(self, gone: Client) -> None:
        """It may have other groups on the same connection; then it is still there."""
        others = (self.producers.get(name, {}) for name in self._named.get(gone.connection, ((), ()))[0])
        if self._producing.get(gone.client_id) is gone.connection and not any(
            gone.connection in members and members[gone.connection].client_id == gone.client_id for members in others
        ):
            del self._producing[gone.client_id]

    def expire(self, now: float) -> list[Connection]:
        """Connections whose clients have not been heard of for too long; groups that stand empty for long are forgotten."""
        stale: set[Connection] = set()
        for members in self.producers.values():
            stale.update(client.connection for client in members.values() if now - client.seen > self.expiry_s)
        for group in list(self.consumers.values()):
            stale.update(client.connection for client in group.members.values() if now - client.seen > self.expiry_s)
            if not group.members and now - group.left > self.group_expiry_s:
                del self.consumers[group.name]
                for topic in group.subscriptions:
                    self.on_subscribed(group.name, None, topic)
        return list(stale)

    def _notify(self, group: ConsumerGroup) -> None:
        """Tell the members to share the queues anew; in broadcasting mode everybody has all of them anyway."""
        if group.message_model is MessageModel.BROADCASTING or not self.may_notify(group.name):
            return
        for connection in group.members:
            connection.send(request(NotifyConsumersChanged(consumer_group=group.name), oneway=True).encode())

    # -- asking ------------------------------------------------------------------------------------------------------------

    def find(self, group: str, client_id: str) -> Client | None:
        known = self.consumers.get(group)
        if known is not None:
            for member in known.members.values():
                if member.client_id == client_id:
                    return member
        return None

    def producer(self, client_id: str) -> Connection | None:
        """The connection of the client with producers that calls itself so."""
        return self._producing.get(client_id)

    def pushes_to(self, connection: Connection, group: str) -> bool:
        """Whether a push consumer of the group is behind this connection."""
        known = self.consumers.get(group)
        member = known.members.get(connection) if known is not None else None
        return member is not None and member.pushed

    def is_broadcasting(self, group: str) -> bool:
        known = self.consumers.get(group)
        return known is not None and known.message_model is MessageModel.BROADCASTING

    def may_read(self, group: str, topic: str) -> bool:
        """Offsets of topics that a group has given up are of no interest; one that is offline may come back to all."""
        online = self.consumers.get(group)
        return online is None or not online.members or not online.subscriptions or topic in online.subscriptions

    def conflicts(self) -> Iterator[tuple[str, list[str]]]:
        """Groups whose members contradict each other, and how."""
        for group in self.consumers.values():
            if found := group.agreement.conflicts:
                yield group.name, found

    def subscribers(self, topic: str) -> Iterator[ConsumerGroup]:
        for group in self.consumers.values():
            if topic in group.subscriptions:
                yield group

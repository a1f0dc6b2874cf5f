"""The connected producers and consumers, as reported by their heartbeats, and the notices that consumers get about each other."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from kappamq.broker.clients.conflicts import Agreement, Interest
from kappamq.broker.events import MembersChanged, Resubscribed, Subscribed
from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter
from kappamq.events import Events
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from kappamq.protocol.frame import request
from kappamq.protocol.headers.client import NotifyConsumersChanged
from kappamq.protocol.records.tags import TAGS_CHARACTERS_MAX

log = logging.getLogger(__name__)

GROUPS_PER_CONNECTION_MAX = 1000
SUBSCRIPTIONS_MAX = 10_000
SUBSCRIPTIONS_PER_CONNECTION_MAX = 20_000
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
    pushed: bool = False  # of a consumer: a push consumer, which does not choose its offsets


def tell_members(group: ConsumerGroup) -> None:
    """Notifies each member that the group has changed."""
    notice = request(NotifyConsumersChanged(consumer_group=group.name), oneway=True).encode()
    for connection in group.members:
        connection.send(notice)


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    members: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    left: float = 0.0  # when the last member left
    agreement: Agreement = field(default_factory=Agreement)
    named: Counter[str] = field(default_factory=Counter)  # topic -> members that subscribe to it
    given_up: set[str] = field(default_factory=set)  # topics that no member has named since one gave them up

    def rename(self, before: frozenset[str], after: frozenset[str]) -> None:
        """A member that named these topics names others now."""
        for topic in after - before:
            self.named[topic] += 1
            self.given_up.discard(topic)
        for topic in before - after:
            self.named[topic] -= 1
            if self.named[topic] <= 0:
                del self.named[topic]
                self.given_up.add(topic)

    @property
    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members.values()})


class Clients:
    def __init__(self, config: BrokerConfig, events: Events) -> None:
        self._config = config
        self._events = events
        self.producers: dict[str, dict[Connection, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._named: dict[Connection, tuple[set[str], set[str]]] = {}  # producer and consumer groups of each connection
        self._producing: dict[str, Connection] = {}  # client id -> where its producers last sent a heartbeat

    # -- heartbeats --------------------------------------------------------------------------------------------------------

    def heartbeat(self, connection: Connection, beat: HeartbeatData, language: int, version: int, now: float) -> None:
        """Note every group the heartbeat names; members of changed groups are notified. Raises InvalidParameter if it names too many."""
        for _ in self.heartbeat_steps(connection, beat, language, version, now):
            pass

    def heartbeat_steps(
        self, connection: Connection, beat: HeartbeatData, language: int, version: int, now: float
    ) -> Iterator[None]:
        """The same in small steps, between which other requests may run."""
        yield from self._check(connection, beat)
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
            yield
            if connection not in self._named:
                return  # it was lost meanwhile: keep nothing of it
        for consumer in beat.consumers:
            client = Client(beat.client_id, connection, language, version, now)
            for _ in self._consumer(connection, beat, consumer, client):
                yield
                if connection not in self._named:
                    return

    def _check(self, connection: Connection, beat: HeartbeatData) -> Iterator[None]:
        """Validate what clients send, since it is kept: its size must be bounded, and it must be safe for logs and lists."""
        if not beat.client_id.isprintable():
            raise InvalidParameter(
                f"the client id {beat.client_id[:100]!r} holds control characters: give the client another name"
            )
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
        total = 0
        for consumer in beat.consumers:
            group = self.consumers.get(consumer.group)
            known_topics = group.subscriptions if group is not None else {}
            topics = len(known_topics) + len(
                {each.topic for each in consumer.subscriptions if each.topic not in known_topics}
            )
            if topics > SUBSCRIPTIONS_MAX:
                raise InvalidParameter(
                    f"group {consumer.group} would subscribe to {topics} topics, {SUBSCRIPTIONS_MAX} at most"
                )
            total += len(consumer.subscriptions)
            if total > SUBSCRIPTIONS_PER_CONNECTION_MAX:
                raise InvalidParameter(
                    f"one connection may have {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions in all its groups"
                )
            for each in consumer.subscriptions:
                if len(each.expression) > TAGS_CHARACTERS_MAX:
                    raise InvalidParameter(
                        f"what group {consumer.group} wants of topic {each.topic} has {len(each.expression)} characters, "
                        f"{TAGS_CHARACTERS_MAX} at most: subscribe to fewer tags"
                    )
            yield

    def _consumer(
        self, connection: Connection, beat: HeartbeatData, data: ConsumerData, client: Client
    ) -> Iterator[None]:
        group = self.consumers.get(data.group)
        if group is None:
            group = self.consumers[data.group] = ConsumerGroup(data.group)
        other_model = group.message_model is not data.message_model
        group.consume_type, group.message_model, group.from_where = (
            data.consume_type,
            data.message_model,
            data.from_where,
        )
        if other_model:  # what is allowed in clustering need not be in broadcasting
            for topic, subscription in list(group.subscriptions.items()):
                self._events.publish(Subscribed(group.name, topic, subscription))
                yield
        before = group.members.get(connection)
        changed = before is None
        group.members[connection] = client
        client.pushed = data.consume_type is ConsumeType.CONSUME_PASSIVELY
        if beat.fingerprint and beat.without_subscriptions:
            client.topics = before.topics if before is not None else frozenset()
        else:
            client.topics = frozenset(subscription.topic for subscription in data.subscriptions)
            group.rename(before.topics if before is not None else frozenset(), client.topics)
            yield
            changed |= yield from self._subscribe(group, data.subscriptions)
            if connection not in group.members:
                return  # it has left meanwhile
            self._compare(group, client, data)
        yield
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

    def _subscribe(self, group: ConsumerGroup, subscriptions: list[SubscriptionData]) -> Generator[None, None, bool]:
        """Apply newer subscriptions and drop topics that no member names any more; True if the topics changed."""
        changed = False
        for subscription in subscriptions:
            yield
            known = group.subscriptions.get(subscription.topic)
            changed |= known is None
            if known is None or subscription.version > known.version:
                group.subscriptions[subscription.topic] = subscription
                self._events.publish(Subscribed(group.name, subscription.topic, subscription))
                if known is not None and (known.expression, known.expression_type) != (
                    subscription.expression,
                    subscription.expression_type,
                ):
                    self._events.publish(Resubscribed(group, subscription.topic))
        while group.given_up:
            topic = group.given_up.pop()
            if group.subscriptions.pop(topic, None) is not None:
                self._events.publish(Subscribed(group.name, topic, None))
                changed = True
            yield
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
        """The connection is gone, and the clients behind it."""
        produces, consumes = self._named.pop(connection, ((), ()))
        for name in produces:
            self._drop_producer(name, connection)
        for name in consumes:
            self._drop_consumer(name, connection, now)

    def _drop_consumer(self, name: str, connection: Connection, now: float) -> None:
        group = self.consumers.get(name)
        gone = group.members.pop(connection, None) if group is not None else None
        if group is not None and gone is not None:
            group.agreement.leave(connection)
            group.rename(gone.topics, frozenset())
            group.left = now
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
        """It may have other groups on the same connection; then it stays registered."""
        others = (self.producers.get(name, {}) for name in self._named.get(gone.connection, ((), ()))[0])
        if self._producing.get(gone.client_id) is gone.connection and not any(
            gone.connection in members and members[gone.connection].client_id == gone.client_id for members in others
        ):
            del self._producing[gone.client_id]

    def expire(self, now: float) -> list[Connection]:
        """Return connections without heartbeats for too long; forget groups that have been empty for long."""
        expiry_s, group_expiry_s = self._config.client_expiry_ms / 1000, self._config.group_expiry_ms / 1000
        stale: set[Connection] = set()
        for members in self.producers.values():
            stale.update(client.connection for client in members.values() if now - client.seen > expiry_s)
        for group in list(self.consumers.values()):
            stale.update(client.connection for client in group.members.values() if now - client.seen > expiry_s)
            if not group.members and now - group.left > group_expiry_s:
                del self.consumers[group.name]
                for topic in group.subscriptions:
                    self._events.publish(Subscribed(group.name, topic, None))
        return list(stale)

    def _notify(self, group: ConsumerGroup) -> None:
        """Notify the members to rebalance; not in broadcasting mode, where each member has all queues."""
        if group.message_model is not MessageModel.BROADCASTING:
            self._events.publish(MembersChanged(group))

    # -- asking ------------------------------------------------------------------------------------------------------------

    def find(self, group: str, client_id: str) -> Client | None:
        known = self.consumers.get(group)
        if known is not None:
            for member in known.members.values():
                if member.client_id == client_id:
                    return member
        return None

    def producer(self, client_id: str) -> Connection | None:
        """Return the connection of the client with producers that has this id."""
        return self._producing.get(client_id)

    def identify(self, connection: Connection, group: str) -> tuple[str, bool]:
        """Return the client of a connection, and whether it is a member of the consumer group. A member is identified by its client
        id, which outlives its connections; a client that never sent a heartbeat for the group only by its address."""
        known = self.consumers.get(group)
        member = known.members.get(connection) if known is not None else None
        return (member.client_id, True) if member is not None else (repr(connection), False)

    def pushes_to(self, connection: Connection, group: str) -> bool:
        """Return whether this connection belongs to a push consumer of the group."""
        known = self.consumers.get(group)
        member = known.members.get(connection) if known is not None else None
        return member is not None and member.pushed

    def member_count(self, group: str) -> int:
        known = self.consumers.get(group)
        return len(known.members) if known is not None else 0

    def live_subscriptions(self, group: str) -> dict[str, SubscriptionData]:
        """Return the subscriptions of a group's members, by topic; empty if none is connected."""
        known = self.consumers.get(group)
        return known.subscriptions if known is not None and known.members else {}

    def is_broadcasting(self, group: str) -> bool:
        known = self.consumers.get(group)
        return known is not None and known.message_model is MessageModel.BROADCASTING

    def may_read(self, group: str, topic: str) -> bool:
        """Offsets of topics that a group has given up are not needed; an offline group may come back to all of its topics."""
        online = self.consumers.get(group)
        return online is None or not online.members or not online.subscriptions or topic in online.subscriptions

    def conflicts(self) -> Iterator[tuple[str, list[str]]]:
        """Yield groups whose members contradict each other, and how."""
        for group in self.consumers.values():
            if found := group.agreement.conflicts:
                yield group.name, found

    def subscribers(self, topic: str) -> Iterator[ConsumerGroup]:
        for group in self.consumers.values():
            if topic in group.subscriptions:
                yield group

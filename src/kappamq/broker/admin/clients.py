"""Requests of operators about clients: which are connected, and what they read."""

from __future__ import annotations

from collections.abc import Iterable

from kappamq.broker.clients.registry import Client, Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.clock import Clock
from kappamq.errors import BrokerError, ConsumerOffline
from kappamq.net.requests.beside import Beside
from kappamq.protocol import address
from kappamq.protocol.bodies.admin import Connection as ConnectionInfo
from kappamq.protocol.bodies.admin import (
    ConsumerConnection,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QuerySubscriptionResponse,
)
from kappamq.protocol.bodies.topics import TopicList
from kappamq.protocol.codes import Language, RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import (
    GetAllProducers,
    GetConsumerConnections,
    GetProducerConnections,
    QueryGroupsOfTopic,
    QuerySubscription,
    QueryTopicsOfGroup,
)
from kappamq.state.offsets import Offsets


class AdminClients:
    def __init__(self, clients: Clients, offsets: Offsets, clock: Clock, beside: Beside) -> None:
        self._clients = clients
        self._offsets = offsets
        self._clock = clock
        self._beside = beside  # for answers that may list thousands

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    async def consumers(self, request: Request[GetConsumerConnections]) -> Frame:
        name = request.header.consumer_group
        group = self._clients.consumers.get(name)
        if group is None or not group.members:
            raise ConsumerOffline(f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connections=await self._beside.run(request.connection, _connections, list(group.members.values())),
            subscriptions=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            from_where=group.from_where,
            conflicts=group.agreement.conflicts or None,
        )
        return request.reply(body=await self._beside.run(request.connection, body.encode))

    async def producers(self, request: Request[GetProducerConnections]) -> Frame:
        name = request.header.producer_group
        members = self._clients.producers.get(name)
        if not members:
            raise BrokerError(f"the producer group[{name}] not exist")
        listed = await self._beside.run(request.connection, _connections, list(members.values()))
        return request.reply(body=await self._beside.run(request.connection, ProducerConnection(listed).encode))

    async def all_producers(self, request: Request[GetAllProducers]) -> Frame:
        groups = [(name, list(members.values())) for name, members in self._clients.producers.items()]
        now_ms, now = self._clock.message_ms(), self._clock.liveness()
        return request.reply(body=await self._beside.run(request.connection, _producer_table, groups, now_ms, now))

    def groups_of_topic(self, request: Request[QueryGroupsOfTopic]) -> Frame:
        """Return the groups that subscribe to a topic now, and those that have read from it."""
        topic = request.header.topic
        found = {group.name for group in self._clients.subscribers(topic)} | self._offsets.groups_of(topic)
        return request.reply(body=GroupList(sorted(found)).encode())

    def topics_of_group(self, request: Request[QueryTopicsOfGroup]) -> Frame:
        """Topics that a group has read from."""
        group = request.header.group
        return request.reply(body=TopicList(sorted(self._offsets.topics_of(group))).encode())

    def subscription(self, request: Request[QuerySubscription]) -> Frame:
        """Return a group's subscription to a topic; empty if the group is not online."""
        header = request.header
        group = self._clients.consumers.get(header.group)
        wanted = group.subscriptions.get(header.topic or "") if group is not None else None
        return request.reply(body=QuerySubscriptionResponse(header.group, header.topic, wanted).encode())


def _producer_table(groups: list[tuple[str, list[Client]]], now_ms: int, now: float) -> bytes:
    """Worker: each producer, and the time of its last heartbeat."""
    table = {
        name: [
            ProducerInfo(
                client_id=client.client_id,
                remote_ip=address.join(*client.connection.peer),
                language=_language(client.language),
                version=client.version,
                last_update_ms=now_ms - round((now - client.seen) * 1000),
            )
            for client in members
        ]
        for name, members in groups
    }
    return ProducerTable(table).encode()


def _connections(members: Iterable[Client]) -> list[ConnectionInfo]:
    return [
        ConnectionInfo(
            client_id=client.client_id,
            client_address=address.join(*client.connection.peer),
            language=_language(client.language),
            version=client.version,
        )
        for client in members
    ]


def _language(number: int) -> str:
    return Language(number).name if number in Language._value2member_map_ else Language.OTHER.name

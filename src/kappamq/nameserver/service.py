"""The request handlers of a name server. Knows connections, but no sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from kappamq.clock import Clock
from kappamq.config.apache import NameServerSettings
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import BrokerError, BrokerNotFound, NotSupported, ProtocolError, QueryNotFound, TopicNotFound
from kappamq.nameserver import settings as live_settings
from kappamq.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from kappamq.nameserver.registering import BIG_BYTES, Registering, check_crc
from kappamq.nameserver.repeated_warnings import RepeatedWarnings
from kappamq.nameserver.routes import UNIT, UNIT_SUBSCRIBED, MinIdChange, Registered, RouteTable
from kappamq.protocol import address as addresses
from kappamq.protocol.bodies.all import (
    BrokerData,
    BrokerMemberGroup,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
)
from kappamq.protocol.codes import VERSION_STANDARD_JSON, RequestCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import (
    AddWritePermission,
    AddWritePermissionResponse,
    BrokerHeartbeat,
    DeleteKv,
    DeleteTopicInNameServer,
    GetAllTopics,
    GetBrokerMembers,
    GetClusterInfo,
    GetKv,
    GetKvNamespace,
    GetKvResponse,
    GetNameServerConfig,
    GetRoute,
    GetSystemTopics,
    GetTopicsByCluster,
    GetUnitSubscribedOnlyTopics,
    GetUnitSubscribedTopics,
    GetUnitTopics,
    PutKv,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    RegisterTopic,
    UnregisterBroker,
    UpdateNameServerConfig,
    WipeWritePermission,
    WipeWritePermissionResponse,
)

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Header)
Answer = Frame | None | Awaitable[Frame | None]


class Peer(Protocol):
    """The part of a connection that the service uses."""

    @property
    def peer(self) -> tuple[str, int]: ...
    @property
    def local(self) -> tuple[str, int]: ...
    def close(self) -> None: ...


class NameService:
    """Handles requests; `expire` must be called periodically.

    `notify` is called when the smallest id of a broker group changes, if configured.
    """

    def __init__(
        self,
        config: NameServerConfig,
        clock: Clock,
        *,
        net: NetConfig | None = None,
        notify: Callable[[MinIdChange], None] | None = None,
        beside: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """`beside`: runs long work in a thread; it takes the connection, a function, its arguments, and size=bytes."""
        self.settings = NameServerSettings(nameserver=config, net=net or NetConfig())
        self.kv = KvConfig(config.root, bytes_max=config.kv_bytes_max)
        self.routes: RouteTable[Peer] = RouteTable(
            expiry_ms=config.broker_expiry_ms,
            topics_max=config.topics_max,
            brokers_max=config.brokers_max,
            acting_master=config.acting_master,
            delete_topics_on_registration=config.delete_topics_on_registration,
        )
        self._beside = beside or _in_a_thread
        self._registering = Registering(self.routes, clock.liveness, self._beside, self.settings.net)
        self._conflicts = RepeatedWarnings()  # about brokers that replace each other
        self._clock = clock
        self._notify = notify
        self._handlers: dict[int, Callable[[Peer, Frame], Answer]] = {}
        for kind, handler in self._table():
            assert kind.code is not None
            self._handlers[kind.code] = _decoding(kind, handler)

    def handle(self, connection: Peer, frame: Frame) -> Answer:
        """Handle one request. Raises KappaError, whose code and text become the answer."""
        handler = self._handlers.get(frame.code)
        if handler is None:
            raise NotSupported(f" request type {frame.code} not supported")
        # A beat must not count only when it is served: it may wait behind a registration with thousands of topics.
        self.routes.heard(connection, self._clock.liveness())
        if self._registering.is_busy(connection):
            return self._registering.in_turn(connection, lambda: handler(connection, frame))
        return handler(connection, frame)

    def connection_lost(self, connection: Peer) -> None:
        self._registering.lost(connection)
        for address in self.routes.connection_lost(connection):
            log.info("removed broker %s: its connection was closed", address)
        self._tell_changes()

    def expire(self, *, beating: bool = False) -> None:
        """Remove brokers whose heartbeat timeout has expired, and close their connections. `beating`: see `RouteTable.expire`."""
        for address, owner in self.routes.expire(self._clock.liveness(), beating=beating):
            log.warning("removed broker %s: no heartbeat within its timeout", address)
            owner.close()
        self._conflicts.settle(self._clock.liveness())
        self._tell_changes()

    @property
    def config(self) -> NameServerConfig:
        return self.settings.nameserver

    def _table(self) -> list[tuple[type[Header], Callable[[Peer, Frame, Any], Answer]]]:
        return [
            (PutKv, self._put_kv),
            (GetKv, self._get_kv),
            (DeleteKv, self._delete_kv),
            (GetKvNamespace, self._get_kv_namespace),
            (RegisterBroker, self._register),
            (UnregisterBroker, self._unregister),
            (QueryDataVersion, self._query_data_version),
            (BrokerHeartbeat, self._heartbeat),
            (GetRoute, self._route),
            (GetClusterInfo, self._cluster_info),
            (GetBrokerMembers, self._members),
            (WipeWritePermission, self._wipe_write),
            (AddWritePermission, self._add_write),
            (GetAllTopics, self._all_topics),
            (GetTopicsByCluster, self._topics_by_cluster),
            (GetSystemTopics, self._system_topics),
            (GetUnitTopics, self._unit_topics),
            (GetUnitSubscribedTopics, self._unit_topics),
            (GetUnitSubscribedOnlyTopics, self._unit_topics),
            (DeleteTopicInNameServer, self._delete_topic),
            (RegisterTopic, self._register_topic),
            (UpdateNameServerConfig, self._update_config),
            (GetNameServerConfig, self._get_config),
        ]

    # --- brokers ---

    def _register(self, connection: Peer, frame: Frame, header: RegisterBroker) -> Answer:
        addresses.split(header.broker_address)  # refuse an address that clients could not connect to
        if len(frame.body) >= BIG_BYTES:
            if self._registering.is_busy(connection):
                return self._register_many(connection, frame, header)
            return self._registering.in_turn(connection, lambda: self._register_many(connection, frame, header))
        check_crc(frame, header)
        body = RegisterBrokerBody.decode_any(frame.body, compressed=header.compressed, version=frame.version)
        found = self.routes.register(header, body, connection, self._clock.liveness())
        return self._registered(connection, frame, header, found)

    async def _register_many(self, connection: Peer, frame: Frame, header: RegisterBroker) -> Frame | None:
        found = await self._registering.register(connection, frame, header)
        return None if found is None else self._registered(connection, frame, header, found)

    def _registered(self, connection: Peer, frame: Frame, header: RegisterBroker, found: Registered) -> Frame:
        if found.new:
            log.info("broker %s (%s, id %d) registered", header.broker_address, header.broker_name, header.broker_id)
        remark = None
        if found.replaced is not None:
            remark = (
                f"two running brokers have the name {header.broker_name} and the id {header.broker_id}: {header.broker_address} "
                f"replaces {found.replaced}, whose connection is still open. Clients find only the one that registered last: "
                "stop one of them, or give it another name (--name, brokerName)"
            )
            self._conflicts.warn(header.broker_name, remark, self._clock.liveness())
        self._tell_changes()
        answer = self._master_shown(found, connection)
        order = self.kv.namespace(ORDER_TOPIC_CONFIG) if self.config.order_topics_to_brokers else None
        return reply(frame, remark=remark, header=answer, body=b"" if order is None else KVTable(order).encode())

    def _master_shown(self, found: Registered, connection: Peer) -> RegisterBrokerResponse:
        return RegisterBrokerResponse(
            ha_address=self._shown(found.ha_address, connection),
            master_address=self._shown(found.master_address, connection),
            master_version=found.master_version,
        )

    def _unregister(self, connection: Peer, frame: Frame, header: UnregisterBroker) -> Frame:
        if self.routes.unregister(header.cluster, header.broker_address, connection):
            log.info("broker %s (%s) unregistered", header.broker_address, header.broker_name)
            self._tell_changes()
        else:
            # A late request of a broker that was replaced or removed before.
            log.info("ignored a stale request to unregister broker %s", header.broker_address)
        return reply(frame)

    def _query_data_version(self, connection: Peer, frame: Frame, header: QueryDataVersion) -> Frame:
        asked = DataVersion.decode(frame.body)
        self.routes.heartbeat(header.cluster, header.broker_address, self._clock.liveness())
        known = self.routes.data_version(header.cluster, header.broker_address, connection)
        answer = QueryDataVersionResponse(changed=known is None or known != asked)
        return reply(frame, header=answer, body=b"" if known is None else known.encode())

    def _heartbeat(self, connection: Peer, frame: Frame, header: BrokerHeartbeat) -> Frame:
        if not self.routes.heartbeat(header.cluster, header.broker_address, self._clock.liveness()):
            # Apache's name server answers SUCCESS to anybody; its brokers do not wait for the answer.
            raise BrokerNotFound(f"broker {header.broker_address[:300]} is not registered here: register it again")
        found = self.routes.master_for(header.cluster, header.broker_address)
        return reply(frame, header=self._master_shown(found, connection))

    def _tell_changes(self) -> None:
        for change in self.routes.take_changes():
            if self._notify is not None and self.config.notify_min_broker_id:
                self._notify(change)

    # --- routes ---

    def _route(self, connection: Peer, frame: Frame, header: GetRoute) -> Frame:
        route = self.routes.route(header.topic, zone=header.zone if header.zone_mode else None)
        if route is None:
            # The beginning is RocketMQ's, since tools look for it.
            raise TopicNotFound(
                f"No topic route info in name server for the topic: {header.topic[:300]}. No live broker has registered it"
            )
        if self.config.order_messages:
            route.order_conf = self.kv.get(ORDER_TOPIC_CONFIG, header.topic)
        self._show_route(route, connection)
        standard = frame.version >= VERSION_STANDARD_JSON or bool(header.standard_json)
        return reply(frame, body=route.encode(standard=standard))

    def _show_route(self, route: TopicRouteData, connection: Peer) -> None:
        self._show_brokers(route.brokers, connection)
        route.filter_servers = {
            self._shown(address, connection) or address: servers for address, servers in route.filter_servers.items()
        }

    def _show_brokers(self, brokers: list[BrokerData], connection: Peer) -> None:
        for broker in brokers:
            broker.addresses = {
                number: self._shown(address, connection) or address for number, address in broker.addresses.items()
            }

    def _shown(self, address: str | None, connection: Peer) -> str | None:
        """Return the address at which this peer can reach a broker.

        A broker that registered over loopback is on this machine; a peer on another machine reaches it at the address of ours.
        """
        if not address:
            return address
        try:
            host, port = addresses.split(address)
        except ProtocolError:
            return address  # nothing to improve
        local = connection.local[0]
        if not addresses.is_loopback(host) or addresses.is_loopback(local):
            return address
        return addresses.join(addresses.unpack_ip(addresses.pack_ip(local)), port)

    def _cluster_info(self, connection: Peer, frame: Frame, header: GetClusterInfo) -> Frame:
        info = self.routes.cluster_info()
        self._show_brokers(list(info.brokers.values()), connection)
        return reply(frame, body=info.encode())

    def _members(self, connection: Peer, frame: Frame, header: GetBrokerMembers) -> Frame:
        members = self.routes.members(header.cluster, header.broker_name)
        members.addresses = {
            number: self._shown(address, connection) or address for number, address in members.addresses.items()
        }
        return reply(frame, body=BrokerMemberGroup(members).encode())

    # --- topics ---

    def _wipe_write(self, connection: Peer, frame: Frame, header: WipeWritePermission) -> Frame:
        count = self.routes.wipe_write(header.broker_name)
        log.info("write permission of broker %s wiped on %d topics", header.broker_name, count)
        return reply(frame, header=WipeWritePermissionResponse(topics=count))

    def _add_write(self, connection: Peer, frame: Frame, header: AddWritePermission) -> Frame:
        count = self.routes.add_write(header.broker_name)
        log.info("write permission of broker %s added on %d topics", header.broker_name, count)
        return reply(frame, header=AddWritePermissionResponse(topics=count))

    def _all_topics(self, connection: Peer, frame: Frame, header: GetAllTopics) -> Frame:
        if not self.config.list_topics:
            raise BrokerError("disable: listing all topics is disabled (enableAllTopicList)")
        return reply(frame, body=TopicList(self.routes.topics()).encode())

    def _topics_by_cluster(self, connection: Peer, frame: Frame, header: GetTopicsByCluster) -> Frame:
        if not self.config.list_topics:
            raise BrokerError("disable: listing topics is disabled (enableAllTopicList)")
        return reply(frame, body=TopicList(self.routes.topics_of_cluster(header.cluster)).encode())

    def _system_topics(self, connection: Peer, frame: Frame, header: GetSystemTopics) -> Frame:
        topics, address = self.routes.system_topics()
        return reply(frame, body=TopicList(topics, self._shown(address, connection)).encode())

    def _unit_topics(self, connection: Peer, frame: Frame, header: Header) -> Frame:
        if not self.config.list_topics:
            raise BrokerError("disable: listing topics is disabled (enableAllTopicList)")
        bits = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIBED, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUBSCRIBED, UNIT),
        }
        assert header.code is not None
        return reply(frame, body=TopicList(self.routes.unit_topics(*bits[header.code])).encode())

    def _delete_topic(self, connection: Peer, frame: Frame, header: DeleteTopicInNameServer) -> Frame:
        self.routes.delete_topic(header.topic, header.cluster)
        return reply(frame)

    def _register_topic(self, connection: Peer, frame: Frame, header: RegisterTopic) -> Frame:
        self.routes.register_topic(header.topic, TopicRouteData.of(frame).queues)
        return reply(frame)

    # --- KV configuration and settings ---

    async def _put_kv(self, connection: Peer, frame: Frame, header: PutKv) -> Frame:
        await self.kv.put(header.namespace, header.key, header.value)
        return reply(frame)

    def _get_kv(self, connection: Peer, frame: Frame, header: GetKv) -> Frame:
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"no config item, namespace: {header.namespace[:100]} key: {header.key[:100]}")
        return reply(frame, header=GetKvResponse(value=value))

    async def _delete_kv(self, connection: Peer, frame: Frame, header: DeleteKv) -> Frame:
        await self.kv.delete(header.namespace, header.key)
        return reply(frame)

    def _get_kv_namespace(self, connection: Peer, frame: Frame, header: GetKvNamespace) -> Frame:
        table = self.kv.namespace(header.namespace)
        if table is None:
            raise QueryNotFound(f"no config item, namespace: {header.namespace[:100]}")
        return reply(frame, body=KVTable(table).encode())

    async def _update_config(self, connection: Peer, frame: Frame, header: UpdateNameServerConfig) -> Frame:
        self.settings = await self._beside(
            connection, live_settings.changed, self.settings, frame.body, size=len(frame.body)
        )
        self.routes.delete_topics_when_registered(self.config.delete_topics_on_registration)
        return reply(frame)

    def _get_config(self, connection: Peer, frame: Frame, header: GetNameServerConfig) -> Frame:
        return reply(frame, body=live_settings.shown(self.settings))


def _in_a_thread(
    _connection: Peer, work: Callable[..., Any], *arguments: Any, size: int | None = None
) -> Awaitable[Any]:
    return asyncio.to_thread(work, *arguments)


def _decoding(kind: type[H], handler: Callable[[Peer, Frame, H], Answer]) -> Callable[[Peer, Frame], Answer]:
    return lambda connection, frame: handler(connection, frame, kind.decode(frame.ext))

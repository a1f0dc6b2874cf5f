"""Administration of topics, brokers and groups. The command line and Spark use it too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self, Unpack

from kappamq.client.admin.groups import GroupAdmin
from kappamq.client.admin.members import Members
from kappamq.client.admin.resizing import Resizing
from kappamq.client.batches import administration
from kappamq.client.core import arguments
from kappamq.client.core import core as sharing
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID, Route, no_broker
from kappamq.client.core.settings import client_config
from kappamq.client.trace.story import TraceQueries
from kappamq.config import properties as properties_text
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ClientClosed, InvalidParameter, NoRoute, TopicNotFound
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import (
    TopicOffset,
    TopicStatsTable,
)
from kappamq.protocol.bodies.batches import ScopeState
from kappamq.protocol.bodies.topics import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    ClusterInfo,
    KVTable,
    TopicConfig,
    TopicList,
)
from kappamq.protocol.headers.admin import (
    DeleteTopic,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    GetTopicConfig,
    GetTopicStats,
    UpdateBrokerConfig,
    UpdateTopic,
)
from kappamq.protocol.headers.nameserver import DeleteTopicInNameServer, GetAllTopics, GetClusterInfo
from kappamq.protocol.names import (
    AUTO_CREATE_TOPIC,
    check_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)

READ_WRITE: Final = PERMISSION_READ | PERMISSION_WRITE
VISIBLE_S: Final = 5.0
"""How long to wait until the name server shows that a topic was created or deleted."""
LOOK_S: Final = 0.05


class AsyncAdmin(TraceQueries, GroupAdmin, Resizing, Members):
    """Queries and administers name servers and brokers.

    >>> async with AsyncAdmin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     await admin.create_topic("orders", queues=8)
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.config = client_config(nameserver, config, options, type(self))
        self._core: ClientCore | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> ClientCore:
        if self._closed:
            raise ClientClosed("this admin is closed: create a new one, it cannot be restarted")
        if self._core is None:
            self._core = sharing.acquire(self.config)
        return self._core

    async def close(self) -> None:
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await sharing.release(core)

    # --- the cluster ---

    async def cluster(self) -> ClusterInfo:
        """Return the brokers and their addresses, by name and by cluster."""
        return ClusterInfo.decode((await self.start().ask_nameserver(GetClusterInfo())).body)

    async def masters(self, cluster: str | None = None, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """Return broker name -> address of its master; of all, of one cluster, or of the named brokers."""
        info = await self.cluster()
        names = set(info.brokers)
        if cluster is not None:
            if cluster not in info.clusters:
                known = ", ".join(sorted(info.clusters)) or "none"
                raise InvalidParameter(f"unknown cluster {cluster!r} (known: {known})")
            names &= set(info.clusters[cluster])
        if brokers is not None:
            wanted = {brokers} if isinstance(brokers, str) else set(brokers)
            if missing := wanted - names:
                known = ", ".join(sorted(names)) or "none"
                raise InvalidParameter(f"no broker {', '.join(sorted(missing))} is registered (registered: {known})")
            names &= wanted
        found = {name: info.brokers[name].addresses.get(MASTER_ID) for name in sorted(names)}
        masters = {name: address for name, address in found.items() if address is not None}
        if not masters:
            raise no_broker(", ".join(self.config.nameservers))
        return masters

    async def runtime_info(self, broker: str) -> dict[str, str]:
        """Return the runtime information of a broker, given by name or address."""
        answer = await self.start().ask(await self._address(broker), GetBrokerRuntimeInfo())
        return KVTable.decode(answer.body).table

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return the properties a broker runs with."""
        answer = await self.start().ask(await self._address(broker), GetBrokerConfig())
        return properties_text.parse_bytes(answer.body, where=f"the configuration of {broker}")

    async def update_broker_config(self, broker: str, properties: Mapping[str, str]) -> None:
        """Change properties of a running broker. Raises the broker's error if it refuses."""
        body = properties_text.render(properties).encode()
        await self.start().ask(await self._address(broker), UpdateBrokerConfig(), body)

    async def scopes(self, name: str | None = None) -> dict[str, dict[str, ScopeState]]:
        """Return the scopes of batch transactions: name -> broker -> what that broker knows of it."""
        return await administration.scopes(self.start(), name)

    async def reset_scope(self, name: str, *, force: bool = False) -> list[str]:
        """Forget a scope on all brokers, so that another owner can use its name; returns the brokers that knew it."""
        return await administration.reset_scope(self.start(), name, force=force)

    async def _address(self, broker: str) -> str:
        arguments.expect("broker", broker, str, "a name or an address")
        return broker if ":" in broker else (await self.masters(brokers=[broker]))[broker]

    # --- topics ---

    async def topics(self, *, system: bool = False) -> list[str]:
        """Return the names of all topics; `system`: including the brokers' internal, retry and dead-letter topics."""
        listed = TopicList.decode((await self.start().ask_nameserver(GetAllTopics())).body).topics
        if system:
            return sorted(listed)
        info = await self.cluster()
        own = {*info.clusters, *info.brokers, *(f"{cluster}_REPLY_TOPIC" for cluster in info.clusters)}
        return sorted(
            topic
            for topic in listed
            if not (is_system_topic(topic, own) or is_retry_topic(topic) or is_dlq_topic(topic))
        )

    async def route(self, topic: str) -> Route:
        """Fetch the current route of a topic. Raises TopicNotFound, or NoRoute if no broker is registered at all."""
        routes = self.start().routes
        route = await routes.refresh(topic, at_once=True)
        if route is None:
            await routes.check_any_broker()
            raise TopicNotFound(f"topic {topic!r} does not exist: create it with `kappamq topic create {topic}`")
        return route

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return broker name -> settings of the topic there. Raises TopicNotFound if no broker has it."""
        found: dict[str, TopicConfig] = {}
        for name, address in (await self.masters()).items():
            try:
                answer = await self.start().ask(address, GetTopicConfig(topic=topic))
            except TopicNotFound:
                continue
            found[name] = TopicConfig.decode(answer.body)
        if not found:
            raise TopicNotFound(f"no broker has topic {topic!r}: create it with `kappamq topic create {topic}`")
        return found

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        permission: int = READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic on every broker, of one cluster or of those named; an existing topic gets these settings.

        Returns when the name server shows it, so that the next send finds it.
        """
        check_topic(topic)
        arguments.number("queues", queues)
        if read_queues is not None:
            arguments.number("read_queues", read_queues)
        if queues < 1 or (read_queues is not None and read_queues < 1):
            raise InvalidParameter(f"a topic must have at least 1 queue; got {queues} and {read_queues}")
        header = UpdateTopic(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues,
            permission=permission,
            filter_type="SINGLE_TAG",
            sys_flag=0,
            order=order,
            attributes=",".join(f"+{name}={value}" for name, value in (attributes or {}).items()) or None,
        )
        masters = await self.masters(cluster, brokers)
        for address in masters.values():
            await self.start().ask(address, header)
        await self._until_visible(topic, masters, header)

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
    ) -> None:
        """Change only the named settings of an existing topic; `resize_topic` changes its queues without losing messages.

        `read_queues` without `queues` changes only what consumers see. With fewer, messages in the other queues become unreadable.
        """
        masters = await self.masters()
        for name, now in (await self.topic_config(topic)).items():
            header = UpdateTopic(
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                read_queues=read_queues or queues or now.read_queues,
                write_queues=queues or now.write_queues,
                permission=now.permission if permission is None else permission,
                filter_type=now.filter_type,
                sys_flag=now.sys_flag,
                order=now.order if order is None else order,
            )
            await self.start().ask(masters[name], header)
            await self._until_visible(topic, [name], header)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with all its messages, on every broker or in one cluster. Raises TopicNotFound."""
        route = await self.route(topic)
        core = self.start()
        for name, address in (await self.masters(cluster)).items():
            if name in route.addresses:
                await core.ask(address, DeleteTopic(topic=topic))
        await core.nameservers.request_all(DeleteTopicInNameServer(topic=topic, cluster=cluster))
        await core.routes.refresh(topic, at_once=True)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the min and max offset of each queue, and when its last message was stored."""
        route = await self.route(topic)
        found: dict[MessageQueue, TopicOffset] = {}
        for broker in sorted(route.addresses):
            answer = await self.start().ask(route.reader(broker), GetTopicStats(topic=topic))
            found |= TopicStatsTable.decode(answer.body).offsets
        return dict(sorted(found.items()))

    async def master_stats(self, topic: str, *, partial: bool = False) -> dict[MessageQueue, TopicOffset]:
        """Like `topic_stats`, from masters only, for callers that plan by it: a slave may lag behind.

        Raises NoRoute for a broker without a master; `partial`: leave its queues out instead."""
        route = await self.route(topic)
        found: dict[MessageQueue, TopicOffset] = {}
        for broker, addresses in sorted(route.addresses.items()):
            if MASTER_ID not in addresses:
                if partial:
                    continue
                raise NoRoute(f"broker {broker!r} has no master, so the ends of its queues of {topic!r} are unknown")
            answer = await self.start().ask(addresses[MASTER_ID], GetTopicStats(topic=topic))
            found |= TopicStatsTable.decode(answer.body).offsets
        return dict(sorted(found.items()))

    async def _until_visible(self, topic: str, brokers: Iterable[str], wanted: UpdateTopic) -> None:
        core = self.start()
        deadline = core.clock.liveness() + VISIBLE_S
        while True:
            route = await core.routes.refresh(topic, at_once=True)
            if route is not None and all(
                (MessageQueue(topic, broker, wanted.write_queues - 1) in route.publish)
                == bool(wanted.permission & PERMISSION_WRITE)
                and MessageQueue(topic, broker, wanted.write_queues) not in route.publish
                and (MessageQueue(topic, broker, wanted.read_queues - 1) in route.subscribe)
                == bool(wanted.permission & PERMISSION_READ)
                and MessageQueue(topic, broker, wanted.read_queues) not in route.subscribe
                for broker in brokers
            ):
                return
            if core.clock.liveness() > deadline:
                raise NoRoute(
                    f"the brokers have created topic {topic!r}, but after {VISIBLE_S:g} s the name server does not "
                    "show it: are they registered with this one?"
                )
            await asyncio.sleep(LOOK_S)

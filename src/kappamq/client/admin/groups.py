"""Consumer groups: members, progress, offset resets."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable

from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import Route
from kappamq.client.group.offsets import time_ms
from kappamq.errors import ConsumerOffline, InvalidParameter, KappaError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import ConsumeOffset, ConsumerConnection, ConsumeStats, GroupList
from kappamq.protocol.bodies.clients import ResetOffset, SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.bodies.topics import TopicList
from kappamq.protocol.headers.admin import (
    CloneGroupOffset,
    DeleteGroup,
    GetAllGroups,
    GetConsumerConnections,
    GetConsumeStats,
    QueryGroupsOfTopic,
    QueryTopicsOfGroup,
    ResetOffsetByBroker,
    UpdateGroup,
)
from kappamq.protocol.names import check_group, is_retry_topic


class GroupAdmin(ABC):
    """The methods of an admin about consumer groups."""

    @abstractmethod
    def start(self) -> ClientCore: ...

    @abstractmethod
    async def masters(self, cluster: str | None = None, brokers: Iterable[str] | None = None) -> dict[str, str]: ...

    @abstractmethod
    async def route(self, topic: str) -> Route: ...

    async def groups(self) -> list[str]:
        """Return the names of all consumer groups that a broker knows."""
        found: set[str] = set()
        for address in (await self.masters()).values():
            answer = await self.start().ask(address, GetAllGroups())
            found |= SubscriptionGroupTable.decode(answer.body).groups.keys()
        return sorted(found)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that consume a topic."""
        route = await self.route(topic)
        found: set[str] = set()
        for broker in route.addresses:
            answer = await self.start().ask(route.reader(broker), QueryGroupsOfTopic(topic=topic))
            found |= set(GroupList.decode(answer.body).groups)
        return sorted(found)

    async def create_group(self, group: SubscriptionGroupConfig | str) -> None:
        """Create a consumer group on every broker, or give it these settings."""
        arguments.expect("group", group, (str, SubscriptionGroupConfig), "a name, or a SubscriptionGroupConfig")
        config = SubscriptionGroupConfig(name=group) if isinstance(group, str) else group
        check_group(config.name)
        for address in (await self.masters()).values():
            await self.start().ask(address, UpdateGroup(), config.encode())

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a group on every broker; `offsets`: delete its offsets, too."""
        arguments.text("group", group)
        for address in (await self.masters()).values():
            await self.start().ask(address, DeleteGroup(group=group, clean_offset=offsets))

    async def consumers(self, group: str) -> ConsumerConnection:
        """Return the connected members of a group and their subscriptions. Raises ConsumerOffline."""
        failure: KappaError | None = None
        for address in (await self.masters()).values():
            try:
                answer = await self.start().ask(address, GetConsumerConnections(consumer_group=group))
            except KappaError as error:
                failure = error
                continue
            return ConsumerConnection.decode(answer.body)
        raise failure or ConsumerOffline(f"no consumer of group {group!r} is connected")

    async def consumer_progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffset]:
        """Return for each queue the group reads its committed offset and the queue's end."""
        arguments.text("group", group)
        found: dict[MessageQueue, ConsumeOffset] = {}
        for address in (await self.masters()).values():
            answer = await self.start().ask(address, GetConsumeStats(consumer_group=group, topic=topic))
            found |= ConsumeStats.decode(answer.body).offsets
        return dict(sorted(found.items()))

    async def reset_offset(
        self, group: str, topic: str, to: int | datetime.datetime | None = None
    ) -> dict[MessageQueue, int]:
        """Reset a group to the messages stored from a time on (0: all), or to the end (None).

        Connected consumers move there at once. Returns the new offset of each queue."""
        if to is not None:
            arguments.moment("to", to, " (0: all messages), or None for the end")
        route = await self.route(topic)
        header = ResetOffsetByBroker(
            topic=topic, group=group, queue_id=-1, offset=-1, timestamp=-1 if to is None else time_ms(to), force=True
        )
        found: dict[MessageQueue, int] = {}
        for broker in sorted(route.addresses):
            answer = await self.start().ask(route.master(broker), header)
            found |= ResetOffset.decode(answer.body).offsets
        return found

    async def clone_offsets(self, source: str, target: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Set the offsets of group `target` to those of group `source`, in one topic or in all, even while it consumes.

        Returns the new offset of each queue. Raises InvalidParameter if `source` has no offsets.
        """
        check_group(target)
        if source == target:
            raise InvalidParameter(f"group {source!r} cannot be cloned onto itself")
        core = self.start()
        found: dict[MessageQueue, int] = {}
        for address in (await self.masters()).values():
            answer = await core.ask(address, QueryTopicsOfGroup(group=source))
            known = [name for name in TopicList.decode(answer.body).topics if not is_retry_topic(name)]
            for name in known if topic is None else {topic} & set(known):
                # One topic at a time: Apache's broker does nothing if no topic is named.
                header = CloneGroupOffset(source_group=source, target_group=target, topic=name, offline=True)
                await core.ask(address, header)
                answer = await core.ask(address, GetConsumeStats(consumer_group=source, topic=name))
                offsets = ConsumeStats.decode(answer.body).offsets
                found |= {queue: offset.consumer_offset for queue, offset in offsets.items()}
        if not found:
            where = "any topic" if topic is None else f"topic {topic!r}"
            raise InvalidParameter(f"group {source!r} has no offsets in {where}: there is nothing to clone")
        return dict(sorted(found.items()))

"""What operators do with consumer groups: make, change, forbid, delete, list."""

from __future__ import annotations

from collections.abc import Callable

from kappamq.broker.admin.topics import WhenSafe, page_start
from kappamq.broker.requests.bursts import Handler
from kappamq.broker.upkeep.slices import Worker
from kappamq.config.broker import BrokerConfig
from kappamq.errors import GroupNotFound, InvalidParameter
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection
from kappamq.protocol import names
from kappamq.protocol.bodies.admin import GroupForbidden
from kappamq.protocol.bodies.clients import GroupConfigList, SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.admin import DeleteGroup, ForbidGroup, GetAllGroups, GetAllGroupsResponse, GetGroup
from kappamq.state import attributes
from kappamq.state.groups import Groups
from kappamq.state.offsets import Offsets

_GROUPS_AT_ONCE_MAX = 10_000


class AdminGroups:
    def __init__(
        self, config: BrokerConfig, groups: Groups, offsets: Offsets, worker: Worker, when_safe: WhenSafe, turns: FairTurns
    ) -> None:  # fmt: skip
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._worker = worker
        self._when_safe = when_safe
        self._turns = turns
        self.on_delete: Callable[[str], None] = lambda group: None

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
        }

    # -- changing ----------------------------------------------------------------------------------------------------------

    def update(self, connection: Connection, frame: Frame) -> None:
        if not frame.body:
            raise InvalidParameter("the settings of the group (the request's body) are missing")
        group = SubscriptionGroupConfig.of(frame)
        self._check(group)
        self._groups.update(group)
        self._when_safe(connection, frame, reply(frame))

    async def update_list(self, connection: Connection, frame: Frame) -> None:
        """All of them, or, if one is wrong, none."""
        given = GroupConfigList.of(frame).groups
        if not given:
            raise InvalidParameter("the list of groups (groupConfigList) is empty")
        if len(given) > _GROUPS_AT_ONCE_MAX:
            raise InvalidParameter(f"{len(given)} groups in one request are too many: {_GROUPS_AT_ONCE_MAX} at most")
        async for group in self._turns.share(given):
            self._check(group)
        async for group in self._turns.share(given):
            self._groups.update(group)
        self._when_safe(connection, frame, reply(frame))

    def _check(self, group: SubscriptionGroupConfig) -> None:
        names.check_group(group.name)
        if not 0 <= group.retry_queues <= self._config.topic_queues_max:
            raise InvalidParameter(f"retryQueueNums is 0 to {self._config.topic_queues_max}, not {group.retry_queues}")
        if group.retry_times_max < -1:
            raise InvalidParameter(f"retryMaxTimes is -1 (for ever) or more, not {group.retry_times_max}")
        known = self._groups.table.get(group.name)
        group.attributes = attributes.altered_group(
            known.attributes if known is not None else {}, attributes.listed(group.attributes)
        )

    def delete(self, connection: Connection, frame: Frame) -> None:
        """Delete a group; with cleanOffset, also where it was. One that is not here is as good as deleted."""
        header = DeleteGroup.decode(frame.ext)
        if header.group in names.BUILT_IN_GROUPS:
            raise InvalidParameter(f"group {header.group} belongs to the system and stays")
        self._groups.delete(header.group)
        if header.clean_offset:
            self._offsets.delete(group=header.group)
            self.on_delete(header.group)
        self._when_safe(connection, frame, reply(frame))

    def forbid(self, connection: Connection, frame: Frame) -> None:
        """Whether a group may read a topic; without `readable` nothing changes."""
        header = ForbidGroup.decode(frame.ext)
        names.check_topic(header.topic)
        if header.readable is not None:
            self._groups.existing(header.group)
            self._groups.forbid(header.group, header.topic, header.readable)
        readable = not self._groups.is_forbidden(header.group, header.topic)
        self._when_safe(
            connection, frame, reply(frame, body=GroupForbidden(header.group, header.topic, readable).encode())
        )

    # -- asking ------------------------------------------------------------------------------------------------------------

    def one(self, connection: Connection, frame: Frame) -> Frame:
        name = GetGroup.decode(frame.ext).group
        group = self._groups.table.get(name)
        if group is None:
            raise GroupNotFound(f"subscription group [{name}] does not exist")
        return reply(frame, body=group.encode())

    async def all(self, connection: Connection, frame: Frame) -> Frame:
        """Every group, or a page of them; see AdminTopics.all."""
        header = GetAllGroups.decode(frame.ext)
        version, total = self._groups.version, len(self._groups.table)
        listed = sorted(self._groups.table.items())
        if header.count_max is not None:
            start = page_start(header.start, header.data_version, version)
            listed = listed[start : start + max(0, header.count_max)]
        forbidden = {group: dict(topics) for group, topics in self._groups.forbidden.items()}
        table = SubscriptionGroupTable(groups=dict(listed), forbidden=forbidden, data_version=version)
        return reply(frame, header=GetAllGroupsResponse(total=total), body=await self._worker(table.encode))

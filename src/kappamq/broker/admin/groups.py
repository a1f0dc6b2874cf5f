"""Operations on consumer groups: create, change, forbid, delete, list."""

from __future__ import annotations

from kappamq.broker.admin.topics import WhenSafe, page_start
from kappamq.broker.requests.request import Handler, Request
from kappamq.config.broker import BrokerConfig
from kappamq.errors import GroupNotFound, InvalidParameter
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.protocol import names
from kappamq.protocol.bodies.admin import GroupForbidden
from kappamq.protocol.bodies.clients import GroupConfigList, SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import (
    DeleteGroup,
    ForbidGroup,
    GetAllGroups,
    GetAllGroupsResponse,
    GetGroup,
    UpdateGroup,
    UpdateGroupList,
)
from kappamq.state import attributes
from kappamq.state.groups import Groups
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets

_GROUPS_AT_ONCE_MAX = 10_000


class AdminGroups:
    def __init__(
        self,
        config: BrokerConfig,
        groups: Groups,
        offsets: Offsets,
        beside: Beside,
        when_safe: WhenSafe,
        turns: FairTurns,
        pending: PendingResets,
    ) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._beside = beside
        self._when_safe = when_safe
        self._turns = turns
        self._pending = pending

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

    def update(self, request: Request[UpdateGroup]) -> None:
        if not request.body:
            raise InvalidParameter("the settings of the group (the request's body) are missing")
        group = request.parse(SubscriptionGroupConfig)
        self._check(group)
        self._groups.update(group)
        self._when_safe(request, request.reply())

    async def update_list(self, request: Request[UpdateGroupList]) -> None:
        """Create all of them or, if one is wrong, none."""
        given = request.parse(GroupConfigList).groups
        if not given:
            raise InvalidParameter("the list of groups (groupConfigList) is empty")
        if len(given) > _GROUPS_AT_ONCE_MAX:
            raise InvalidParameter(f"{len(given)} groups in one request are too many: {_GROUPS_AT_ONCE_MAX} at most")
        async for group in self._turns.share(given):
            self._check(group)
        async for group in self._turns.share(given):
            self._groups.update(group)
        self._when_safe(request, request.reply())

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

    def delete(self, request: Request[DeleteGroup]) -> None:
        """Delete a group; with cleanOffset, also its offsets. Deleting one that does not exist succeeds."""
        header = request.header
        if header.group in names.BUILT_IN_GROUPS:
            raise InvalidParameter(f"group {header.group} belongs to the system and stays")
        self._groups.delete(header.group)
        if header.clean_offset:
            self._offsets.delete(group=header.group)
            self._pending.forget(group=header.group)
        self._when_safe(request, request.reply())

    def forbid(self, request: Request[ForbidGroup]) -> None:
        """Whether a group may read a topic; without `readable` nothing changes."""
        header = request.header
        names.check_topic(header.topic)
        if header.readable is not None:
            self._groups.existing(header.group)
            self._groups.forbid(header.group, header.topic, header.readable)
        readable = not self._groups.is_forbidden(header.group, header.topic)
        self._when_safe(request, request.reply(body=GroupForbidden(header.group, header.topic, readable).encode()))

    # -- asking ------------------------------------------------------------------------------------------------------------

    def one(self, request: Request[GetGroup]) -> Frame:
        name = request.header.group
        group = self._groups.table.get(name)
        if group is None:
            raise GroupNotFound(f"subscription group [{name}] does not exist")
        return request.reply(body=group.encode())

    async def all(self, request: Request[GetAllGroups]) -> Frame:
        """Every group, or a page of them; see AdminTopics.all."""
        total, body = await self._beside.run(request.connection, self._page, request.header)
        return request.reply(header=GetAllGroupsResponse(total=total), body=body)

    def _page(self, header: GetAllGroups) -> tuple[int, bytes]:
        """Worker: the number of groups, and the answer."""
        version = self._groups.version  # before the table, see AdminTopics
        groups = self._groups.table.copy()
        forbidden = {group: topics.copy() for group, topics in self._groups.forbidden.copy().items()}
        listed = sorted(groups.items())
        if header.count_max is not None:
            start = page_start(header.start, header.data_version, version)
            listed = listed[start : start + max(0, header.count_max)]
        table = SubscriptionGroupTable(groups=dict(listed), forbidden=forbidden, data_version=version)
        return len(groups), table.encode()

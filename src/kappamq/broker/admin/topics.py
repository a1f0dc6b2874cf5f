"""Operations on topics: create, change, delete, list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kappamq.broker.requests.request import Handler, Request
from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter, ProtocolError
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigList, TopicList, TopicTable
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import (
    DeleteTopic,
    GetAllTopicConfig,
    GetAllTopicConfigResponse,
    GetSystemTopicsFromBroker,
    GetTopicConfig,
    UpdateTopic,
    UpdateTopicList,
)
from kappamq.state import attributes
from kappamq.state.topics import Topics

WhenSafe = Callable[[Request[Any], Frame], None]
"""Sends an answer as soon as everything recorded so far is as durable as an acknowledged message."""

_PERMISSION_MAX = 7
_TOPICS_AT_ONCE_MAX = 10_000


class AdminTopics:
    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        beside: Beside,
        when_safe: WhenSafe,
        announced: Callable[[], Awaitable[Any]],
        turns: FairTurns,
    ) -> None:
        self._config = config
        self._topics = topics
        self._beside = beside
        self._when_safe = when_safe
        self._turns = turns
        self._announced = announced  # waits, for a while, until the name servers know of the change

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_CONFIG: self.one,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
        }

    # -- changing ----------------------------------------------------------------------------------------------------------

    async def update(self, request: Request[UpdateTopic]) -> None:
        header = request.header
        wanted = TopicConfig(
            header.topic,
            header.read_queues,
            header.write_queues,
            header.permission,
            header.filter_type,
            header.sys_flag or 0,
            header.order,
        )
        self._check(wanted)
        known = self._topics.get(header.topic)
        wanted.attributes = attributes.altered_topic(
            known.attributes if known is not None else {}, attributes.parse(header.attributes)
        )
        self._topics.update(wanted)
        await self._announced()
        self._when_safe(request, request.reply())

    async def update_list(self, request: Request[UpdateTopicList]) -> None:
        """Create all of them or, if one is wrong, none."""
        given = request.parse(TopicConfigList).topics
        if not given:
            raise InvalidParameter("the list of topics (topicConfigList) is empty")
        if len(given) > _TOPICS_AT_ONCE_MAX:
            raise InvalidParameter(f"{len(given)} topics in one request are too many: {_TOPICS_AT_ONCE_MAX} at most")
        async for topic in self._turns.share(given):
            self._check(topic)
            known = self._topics.get(topic.name)
            topic.attributes = attributes.altered_topic(
                known.attributes if known is not None else {}, attributes.listed(topic.attributes)
            )
        async for topic in self._turns.share(given):
            self._topics.update(topic)
        await self._announced()
        self._when_safe(request, request.reply())

    def _check(self, topic: TopicConfig) -> None:
        names.check_topic(topic.name)
        own = topic.name.startswith(names.KAPPAMQ_TOPIC_PREFIX)
        if own or (self._config.refuse_system_topics and self._topics.is_system(topic.name)):
            raise InvalidParameter(f"the topic[{topic.name}] is conflict with system topic: choose another name")
        if not 0 <= topic.permission <= _PERMISSION_MAX:
            raise InvalidParameter(f"perm is a sum of 4 (read), 2 (write) and 1 (inherit), not {topic.permission}")
        if topic.filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise InvalidParameter(f"topicFilterType is SINGLE_TAG or MULTI_TAG, not {topic.filter_type!r}")
        for count in (topic.read_queues, topic.write_queues):
            if not 0 <= count <= self._config.topic_queues_max:
                raise InvalidParameter(f"a topic has 0 to {self._config.topic_queues_max} queues, not {count}")

    async def delete(self, request: Request[DeleteTopic]) -> None:
        """Delete a topic with its messages. Deleting one that does not exist succeeds: tools ask every broker."""
        name = request.header.topic
        if not name.strip():
            raise InvalidParameter("the topic to delete is blank")
        if self._topics.is_system(name):
            raise InvalidParameter(f"the topic[{name}] is a system topic: the broker needs it")
        self._topics.delete(name)
        self._when_safe(request, request.reply())

    # -- asking ------------------------------------------------------------------------------------------------------------

    def one(self, request: Request[GetTopicConfig]) -> Frame:
        return request.reply(body=self._topics.existing(request.header.topic).encode())

    async def all(self, request: Request[GetAllTopicConfig]) -> Frame:
        """Every topic, or a page of them: the page begins anew when the table has changed since the first one."""
        total, body = await self._beside.run(request.connection, self._page, request.header)
        return request.reply(header=GetAllTopicConfigResponse(total=total), body=body)

    def _page(self, header: GetAllTopicConfig) -> tuple[int, bytes]:
        """Worker: the number of topics, and the answer."""
        version = self._topics.version  # before the table: what changes in between has the next version
        topics = self._topics.table.copy()
        listed = sorted(topics.items())
        if header.count_max is not None:
            start = page_start(header.start, header.data_version, version)
            listed = listed[start : start + max(0, header.count_max)]
        table = TopicTable(topics=dict(listed), data_version=version, mapping_data_version=DataVersion())
        return len(topics), table.encode()

    def system(self, request: Request[GetSystemTopicsFromBroker]) -> Frame:
        """Return the topics that belong to the system, including ours."""
        found = sorted({*names.SYSTEM_TOPICS, *(name for name in self._topics.table if self._topics.is_system(name))})
        return request.reply(body=TopicList(found).encode())


def page_start(start: int | None, asked_version: str | None, version: DataVersion) -> int:
    """Where a page of a table begins. A client that reads page by page notices by the version that the table has changed."""
    if not start or start < 0:
        return 0
    if asked_version:
        try:
            if DataVersion.decode(asked_version.encode()) != version:
                return 0
        except ProtocolError as error:
            raise InvalidParameter(f"dataVersion is no JSON of a version: {error}") from error
    return start

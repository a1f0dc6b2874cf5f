"""Requests that move a group: to a time, to an offset (222), or to where another group is (314).

Usually the broker moves it, see resets.py. With useServerSideResetOffset=false it only computes the offsets, and tells the
clients that are online (220) to move, as RocketMQ did before: they stop, set their offsets, and go on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from kappamq.broker.admin.topics import WhenSafe
from kappamq.broker.clients.registry import Client, Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Appender
from kappamq.broker.upkeep.slices import Worker, in_slices, spliced
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, ConsumerOffline, GroupNotFound, InvalidParameter, NotAvailable
from kappamq.message import MessageQueue
from kappamq.protocol import fastjson, names
from kappamq.protocol.bodies.clients import ResetOffset
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.codes import Language, RequestCode
from kappamq.protocol.frame import request as request_frame
from kappamq.protocol.headers.admin import CloneGroupOffset, ResetOffsetByBroker
from kappamq.protocol.headers.client import ResetClientOffset
from kappamq.state.groups import Groups
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

ALL_QUEUES = BY_TIME = -1
_VERSION_RESETS = 28  # the first client version that supports it


class OffsetResets:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        pending: PendingResets,
        appender: Appender,
        worker: Worker,
        when_safe: WhenSafe,
        on_reset: Callable[[str, int], None],
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._pending = pending
        self._appender = appender
        self._worker = worker
        self._when_safe = when_safe
        self._on_reset = on_reset  # called with the topic and the queue, once it was reset

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset, RequestCode.CLONE_GROUP_OFFSET: self.clone}

    def _move(self, group: str, topic: str, offsets: dict[int, int]) -> list[tuple[str, int]]:
        """Store both as one group: a crash leaves both or none, and so does a log without room."""
        rows = {str(queue_id): offset for queue_id, offset in offsets.items()}
        self._offsets.record_commits()  # earlier commits come before it
        reset, moved = [group, topic, rows], [topic, group, rows]
        self._appender.append_group([], [("reset", reset), ("offsets-reset", moved)], own=True)
        known = self._clients.consumers.get(group)
        members = known.client_ids if known is not None else []
        self._pending.expect(group, topic, offsets, members, self._clock.liveness(), self._store.append_offset)
        self._pending.changed(group, topic)
        return [(topic, queue_id) for queue_id in offsets]

    async def _tell(self, queues: list[tuple[str, int]]) -> None:
        """Answer pulls that wait at these queues, but only once the reset cannot be lost any more: a consumer cannot be called
        back. If the disk fails, nobody hears of it."""
        try:
            await self._appender.confirmed(self._store.append_offset)
        except NotAvailable as error:
            log.warning("consumers were not notified of an offset reset yet: %s", error)
            return
        for topic, queue_id in queues:
            self._on_reset(topic, queue_id)

    # -- to a time or an offset --------------------------------------------------------------------------------------------

    async def reset(self, request: Request[ResetOffsetByBroker]) -> None:
        """Reset by offset, by time, or (a negative time) to the end.

        Without `isForce` a group that its clients move goes only backwards. The broker itself moves it wherever it is told
        to, as RocketMQ's does: `resetOffsetByQueueId` of its tools never sets isForce."""
        header = request.header
        topic = self._topics.existing(header.topic)
        if header.group not in self._groups.table:
            raise GroupNotFound(f"subscription group [{header.group}] does not exist")
        self._groups.movable(header.group)
        targets = await self._targets(header, topic)
        if self._config.reset_on_server:
            if targets:
                await self._tell(self._move(header.group, topic.name, targets))
        else:
            if not header.force:
                self._keep_those_ahead(header.group, topic.name, targets)
            self._tell_clients(header, targets)
        parts: list[bytes] = []
        async for some in in_slices(list(targets.items())):
            parts.append(await self._worker(self._rows, topic.name, some))
        self._when_safe(request, request.reply(body=spliced(ResetOffset().encode(), "offsetTable", parts)))

    def _keep_those_ahead(self, group: str, topic: str, targets: dict[int, int]) -> None:
        for queue_id, target in targets.items():
            consumed = self._offsets.get(group, topic, queue_id)
            if consumed is not None and consumed <= target:
                targets[queue_id] = consumed

    def _rows(self, topic: str, targets: Sequence[tuple[int, int]]) -> bytes:
        return fastjson.dumps({MessageQueue(topic, self._config.name, q): offset for q, offset in targets})[1:-1]

    async def _targets(self, header: ResetOffsetByBroker, topic: TopicConfig) -> dict[int, int]:
        queue_ids: list[int] = list(range(topic.read_queues))
        if header.queue_id is not None and header.queue_id != ALL_QUEUES:
            if not 0 <= header.queue_id < topic.read_queues:
                raise BrokerError(f"topic {topic.name} has no queue {header.queue_id}")
            queue_ids = [header.queue_id]
        if header.offset is None or header.offset == BY_TIME:
            return await self._by_time(topic.name, queue_ids, header.timestamp)
        if header.queue_id in (None, ALL_QUEUES):
            raise BrokerError(f"offset {header.offset} means a queue: name it (queueId), or reset by time")
        return {queue_ids[0]: self._checked(topic.name, queue_ids[0], header.offset)}

    def _checked(self, topic: str, queue_id: int, offset: int) -> int:
        low, end, _next, _stored = self._store.queue_state(topic, queue_id)
        if not low <= offset <= end:
            raise BrokerError(f"Target offset {offset} not in consume queue range [{low}-{end}]")
        return offset

    async def _by_time(self, topic: str, queue_ids: list[int], ms: int) -> dict[int, int]:
        found: dict[int, int] = {}
        async for some in in_slices(queue_ids):
            if ms < 0:
                offsets = [self._store.queue_state(topic, queue_id).end for queue_id in some]
            else:
                offsets = await self._worker(lambda ids=some: [self._store.search(topic, q, ms) for q in ids])
            found.update(zip(some, offsets, strict=True))
        return found

    def _tell_clients(self, header: ResetOffsetByBroker, targets: dict[int, int]) -> None:
        """Notify all of them: each knows which of the queues are its own."""
        group = self._clients.consumers.get(header.group)
        members: list[Client] = list(group.members.values()) if group is not None else []
        if not members:
            raise ConsumerOffline(
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
        for client in members:
            if client.version < _VERSION_RESETS:
                raise BrokerError(f"the client does not support this feature. version={client.version}")
        body = ResetOffset(
            {MessageQueue(header.topic, self._config.name, queue_id): offset for queue_id, offset in targets.items()}
        )
        notice = ResetClientOffset(
            topic=header.topic,
            group=header.group,
            queue_id=ALL_QUEUES,
            timestamp=header.timestamp,
            force=header.force,
            offset=BY_TIME,
        )
        plain, listed = (
            request_frame(notice, data, oneway=True).encode() for data in (body.encode(), body.encode_list())
        )
        for client in members:
            client.connection.send(listed if client.language == Language.CPP else plain)

    # -- to where another group is -----------------------------------------------------------------------------------------

    async def clone(self, request: Request[CloneGroupOffset]) -> None:
        """Set one group's offsets to another's, in one topic or in all that it reads; also while consumers are connected."""
        header = request.header
        names.check_group(header.target_group)
        if header.source_group == header.target_group:
            raise InvalidParameter(f"group {header.source_group} cannot be cloned onto itself")
        if header.source_group not in self._groups.table:
            raise GroupNotFound(f"subscription group [{header.source_group}] does not exist: there is nothing to clone")
        if header.topic:
            self._topics.existing(header.topic)
        self._groups.movable(header.target_group)
        moved: list[tuple[str, int]] = []
        for topic in self._cloned_topics(header):
            if offsets := self._offsets.queues(header.source_group, topic):
                moved += self._move(header.target_group, topic, offsets)
        await self._tell(moved)
        self._when_safe(request, request.reply())

    def _cloned_topics(self, header: CloneGroupOffset) -> Iterable[str]:
        topics = [header.topic] if header.topic else sorted(self._offsets.topics_of(header.source_group))
        own = names.retry_topic(header.source_group)  # nobody else reads it
        for topic in topics:
            if topic == own or self._topics.get(topic) is None:
                continue
            if header.offline or self._clients.may_read(header.source_group, topic):
                yield topic

"""Requests of clients besides sending and pulling: heartbeats, members of a group, offsets."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from kappamq.broker.delivery.retry import retry_topic
from kappamq.broker.events import Subscribed
from kappamq.broker.foundation import Foundation
from kappamq.broker.pulling.filtering import SQL92
from kappamq.broker.pulling.pulling import Pulling
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.upkeep import HOT_BYTES
from kappamq.errors import BrokerError, GroupNotFound, InvalidParameter, NotMaster, QueryNotFound
from kappamq.protocol import names
from kappamq.protocol.bodies.clients import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    MessageModel,
    SubscriptionGroupConfig,
)
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import (
    BoundaryType,
    GetConsumerList,
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    HeartBeat,
    HeartBeatResponse,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    TimestampResponse,
    UnregisterClient,
    UpdateConsumerOffset,
)

log = logging.getLogger(__name__)

BeginQueried = Callable[[str, str, int, int], None]
"""Group, topic, queue id, offset."""

_REMARKS_MAX = 10  # the most groups that the answer to a heartbeat mentions


class Consumers:
    def __init__(self, base: Foundation, pulling: Pulling, begin_queried: BeginQueried) -> None:
        """`begin_queried`: called when a consumer has asked for its start offset, with the answer."""
        self._config, self._store, self._clock, self._clients = base.config, base.store, base.clock, base.clients
        self._topics, self._groups, self._offsets = base.tables.topics, base.tables.groups, base.tables.offsets
        self._resets = base.tables.pending_resets
        self._subscriptions, self._filtering = pulling.subscriptions, pulling.filtering
        self._worker, self._turns = base.workers.read, base.reader.turns
        self._begin_queried = begin_queried
        self._on_condition = base.delivery_tables.filters.subscribed  # a group filters by SQL

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    # -- members -----------------------------------------------------------------------------------------------------------

    def heartbeat(self, request: Request[HeartBeat]) -> Frame | Awaitable[Frame]:
        beat = request.parse(HeartbeatData)
        if not beat.client_id:
            raise InvalidParameter("the heartbeat names no client (clientID)")
        remarks: list[str] = []
        steps = self._heartbeat_steps(request, beat, remarks)
        if request.was_read_beside:
            return self._heartbeat_in_turns(request, steps, remarks)
        for _ in steps:
            pass
        return self._beaten(request, remarks)

    async def _heartbeat_in_turns(
        self, request: Request[HeartBeat], steps: Iterator[None], remarks: list[str]
    ) -> Frame:
        """One so large that a worker parsed it is applied over several turns."""
        await self._turns.run(steps)
        return self._beaten(request, remarks)

    def _beaten(self, request: Request[HeartBeat], remarks: list[str]) -> Frame:
        # The heartbeat succeeded; the remark reports problems of its groups.
        remark = "; ".join(remarks[:_REMARKS_MAX]) or None
        return request.reply(remark=remark, header=HeartBeatResponse(heartbeat_v2=True, subscription_changed=True))

    def _heartbeat_steps(self, request: Request[HeartBeat], beat: HeartbeatData, remarks: list[str]) -> Iterator[None]:
        known = []
        for consumer in beat.consumers:
            yield
            group = self._groups.get(consumer.group)
            if group is None:
                # As in RocketMQ: the group stays unknown, its pulls are refused, and the others in this heartbeat are accepted.
                remarks.append(self._groups.why_not(consumer.group))
                continue
            if consumer.message_model is MessageModel.CLUSTERING and not consumer.group.startswith(
                names.SYSTEM_GROUP_PREFIX
            ):
                self._ensure_retry_topic(group, consumer)
            known.append(consumer)
        beat.consumers = known
        if not request.connection.is_open:
            return
        now = self._clock.liveness()
        yield from self._clients.heartbeat_steps(request.connection, beat, request.language, request.version, now)
        for name in dict.fromkeys(consumer.group for consumer in known):
            online = self._clients.consumers.get(name)
            conflict = online.agreement.first_conflict if online is not None else None
            if conflict is not None:
                remarks.append(conflict)
            yield

    def _ensure_retry_topic(self, group: SubscriptionGroupConfig, consumer: ConsumerData) -> None:
        if self._topics.get(names.retry_topic(group.name)) is None:
            topics = (self._topics.get(subscription.topic) for subscription in consumer.subscriptions)
            order = any(topic is not None and topic.order for topic in topics)
            with suppress(NotMaster):  # the master gets these heartbeats, too
                retry_topic(self._topics, group, unit=consumer.unit_mode, order=order)

    def subscribed(self, event: Subscribed) -> None:
        """A subscription is new, newer or gone: the kernel's rows for it are invalid."""
        group, topic, subscription = event.group, event.topic, event.subscription
        self._subscriptions.drop(group, topic, False)
        if subscription is not None and subscription.expression_type == SQL92:
            self._on_condition(group, subscription)
        if subscription is not None and self._filtering.is_for_kernel(subscription):
            config, known = self._topics.get(topic), self._groups.get(group)
            if (
                config is not None
                and known is not None
                and known.consume_enable
                and (known.consume_broadcast_enable or not self._clients.is_broadcasting(group))
                and not self._groups.is_forbidden(group, topic)
            ):
                self._subscriptions.allow(
                    group, topic, False, subscription.version, self._filtering.tag_codes(subscription)
                )

    def unregister(self, request: Request[UnregisterClient]) -> Frame:
        header = request.header
        self._clients.unregister(
            request.connection, header.producer_group, header.consumer_group, self._clock.liveness()
        )
        return request.reply()

    def members(self, request: Request[GetConsumerList]) -> Frame:
        name = request.header.consumer_group
        group = self._clients.consumers.get(name)
        if group is None or not group.members:
            raise BrokerError(f"no consumer for this group, {name}")
        return request.reply(body=ConsumerList(group.client_ids).encode())

    # -- offsets -----------------------------------------------------------------------------------------------------------

    def query_offset(self, request: Request[QueryConsumerOffset]) -> Frame | Awaitable[Frame]:
        header = request.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = self._offsets.get(group, topic, queue_id)
        if offset is None:
            return self._first_offset(request)
        client, member = self._clients.identify(request.connection, group)
        self._resets.offset_queried(client, (group, topic, queue_id), offset, self._clock.liveness(), member=member)
        self._begin_queried(group, topic, queue_id, offset)
        return request.reply(header=OffsetResponse(offset=offset))

    async def _first_offset(self, request: Request[QueryConsumerOffset]) -> Frame:
        """A new group begins at the beginning of a small queue that is complete here; otherwise its client decides."""
        header = request.header
        low, end, _next, _stored = self._store.queue_state(header.topic, header.queue_id)
        first = self._topics.first_offset(header.topic, header.queue_id)
        whole = low == first and header.zero_if_not_found is not False
        if whole and end > first:
            entry = await self._worker(self._store.entry, header.topic, header.queue_id, first)
            whole = entry is not None and entry[0] >= self._store.log.end - HOT_BYTES
        if not whole:
            raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
        self._begin_queried(header.consumer_group, header.topic, header.queue_id, first)
        return request.reply(header=OffsetResponse(offset=first))

    def update_offset(self, request: Request[UpdateConsumerOffset]) -> Frame:
        """A commit that may be late never moves back; one by which a client seeks, or moves a group, is applied as it is.

        Push consumers commit periodically, also after a queue has moved to another member that is
        already further, and they never seek. Pull consumers and tools decide where to go on; our own clients
        mark each commit that is such a decision."""
        header = request.header
        if header.consumer_group not in self._groups.table:
            raise GroupNotFound(
                f"Group {header.consumer_group} not exist! Nobody of it has sent a heartbeat or pulled yet"
            )
        topic = self._topics.existing(header.topic)
        self._groups.movable(header.consumer_group)
        queues = max(topic.read_queues, topic.write_queues)
        if not 0 <= header.queue_id < queues:
            raise InvalidParameter(f"queue id {header.queue_id}: topic {topic.name} has {queues} queues, from 0 on")
        end = self._store.queue_state(topic.name, header.queue_id).end
        if not 0 <= header.commit_offset <= end:
            raise InvalidParameter(
                f"offset {header.commit_offset} is outside queue {header.queue_id} of topic {topic.name}, which ends at {end}"
            )
        place = header.consumer_group, topic.name, header.queue_id
        client, member = self._clients.identify(request.connection, header.consumer_group)
        tool = not request.is_oneway and not header.forward
        if not self._resets.may_commit(client, place, self._clock.liveness(), member=member, tool=tool):
            return request.reply(remark="Offset has been previously reset")
        pushed = self._config.reset_on_server and self._clients.pushes_to(request.connection, header.consumer_group)
        late = pushed or header.forward
        (self._offsets.commit if late else self._offsets.set)(*place, header.commit_offset)
        return request.reply()

    def max_offset(self, request: Request[GetMaxOffset]) -> Frame:
        header = request.header
        return request.reply(header=OffsetResponse(offset=self._store.queue_state(header.topic, header.queue_id).end))

    def min_offset(self, request: Request[GetMinOffset]) -> Frame:
        header = request.header
        return request.reply(header=OffsetResponse(offset=self._store.queue_state(header.topic, header.queue_id).first))

    async def search(self, request: Request[SearchOffset]) -> Frame:
        header = request.header
        upper = header.boundary is BoundaryType.UPPER
        offset = await self._worker(self._store.search, header.topic, header.queue_id, header.timestamp, upper)
        return request.reply(header=OffsetResponse(offset=offset))

    async def earliest(self, request: Request[GetEarliestStoreTime]) -> Frame:
        header = request.header
        low = self._store.queue_state(header.topic, header.queue_id).first
        stored = await self._worker(self._store.store_ms, header.topic, header.queue_id, low)
        return request.reply(header=TimestampResponse(timestamp=-1 if stored is None else stored))

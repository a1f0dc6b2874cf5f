"""The progress and lag of consumer groups."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kappamq.broker.admin.queues import store_times
from kappamq.broker.admin.topics import WhenSafe
from kappamq.broker.clients.registry import Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.slices import Worker, in_slices, rows, spliced
from kappamq.clock import Clock
from kappamq.message import MessageQueue
from kappamq.net.requests.beside import Beside
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.admin import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueTimeSpan,
)
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import (
    GetAllConsumerOffsets,
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
)
from kappamq.state.groups import Groups
from kappamq.state.offsets import Offsets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

_NEVER = (1 << 63) - 1


@dataclass(slots=True)
class _Progress:
    """The progress of one group in one topic: its queues as JSON, and sums over them."""

    rows: list[bytes]
    lag: int
    inflight: int = 0


class Progress:
    def __init__(
        self,
        broker_name: str,
        address: Callable[[], str],
        store: MessageStore,
        clock: Clock,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        worker: Worker,
        beside: Beside,
        when_safe: WhenSafe,
        get_tps: Callable[[str, str], float],
        handed_out_to: Callable[[str, str, int], int],
    ) -> None:
        self._broker_name = broker_name
        self._address = address
        self._store = store
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._worker = worker
        self._beside = beside
        self._when_safe = when_safe
        self._get_tps = get_tps
        self._handed_out_to = handed_out_to  # where the last pull of a queue began

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.of_group,
            RequestCode.GET_BROKER_CONSUME_STATS: self.of_all,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
        }

    # -- how far behind ----------------------------------------------------------------------------------------------------

    async def of_group(self, request: Request[GetConsumeStats]) -> Frame:
        header = request.header
        named = [name for name in (header.topics or "").split(";") if name]
        if header.topic:
            named.append(header.topic)
        parts: list[bytes] = []
        tps = 0.0
        for topic in dict.fromkeys(named or sorted(self._offsets.topics_of(header.consumer_group))):
            if self._clients.may_read(header.consumer_group, topic):
                parts += (await self._progress(header.consumer_group, topic)).rows
                tps += self._get_tps(header.consumer_group, topic)
        return request.reply(body=spliced(ConsumeStats(tps=tps).encode(), "offsetTable", parts))

    async def of_all(self, request: Request[GetBrokerConsumeStats]) -> Frame:
        ordered_only = request.header.order
        answer = ConsumeStatsList(broker_address=self._address())
        parts: list[bytes] = []
        topics = self._offsets.topics_by_group()
        for group in sorted(topics.keys() & self._groups.table.keys()):
            found: list[bytes] = []
            for topic in sorted(topics[group]):
                config = self._topics.get(topic)
                if config is None or (ordered_only and not config.order) or not self._clients.may_read(group, topic):
                    continue
                here = await self._progress(group, topic)
                answer.total_lag += here.lag
                answer.total_inflight += here.inflight
                found.append(spliced(ConsumeStats(tps=self._get_tps(group, topic)).encode(), "offsetTable", here.rows))
            if found:
                parts.append(b"{" + fastjson.dumps(group) + b":[" + b",".join(found) + b"]}")
        return request.reply(body=spliced(answer.encode(), "consumeStatsList", parts))

    async def _progress(self, group: str, topic: str) -> _Progress:
        result = _Progress([], 0)
        config = self._topics.get(topic)
        if config is None:
            return result
        async for ids in in_slices(range(config.read_queues)):
            some: list[tuple[int, ConsumeOffset]] = []
            for queue_id in ids:
                end = self._store.queue_state(topic, queue_id).end
                consumed = self._offsets.get(group, topic, queue_id) or 0
                # After a reset the last pull may be anywhere: the number in flight is never negative.
                handed_out = min(max(self._handed_out_to(group, topic, queue_id), consumed), max(end, consumed))
                some.append((queue_id, ConsumeOffset(end, consumed, pull_offset=handed_out)))
                result.lag += end - consumed
                result.inflight += handed_out - consumed
            result.rows.append(await self._worker(self._progress_rows, topic, some))
        return result

    def _progress_rows(self, topic: str, some: Sequence[tuple[int, ConsumeOffset]]) -> bytes:
        """Worker: add when the last message that was consumed had been stored."""
        places = [(topic, queue_id, offset.consumer_offset - 1) for queue_id, offset in some]
        for (_queue_id, offset), stored in zip(some, store_times(self._store, places), strict=True):
            offset.last_ms = stored or 0
        return rows({MessageQueue(topic, self._broker_name, queue_id): offset for queue_id, offset in some})

    async def time_spans(self, request: Request[QueryConsumeTimeSpan]) -> Frame:
        """For each queue: the time of its first and last message, of the last one consumed, and how long the next waits."""
        header = request.header
        topic = self._topics.existing(header.topic)
        parts: list[bytes] = []
        async for ids in in_slices(range(topic.write_queues)):
            states = []
            for queue_id in ids:
                low, end, _next, _stored = self._store.queue_state(topic.name, queue_id)
                states.append((queue_id, low, end, self._offsets.get(header.group, topic.name, queue_id) or 0))
            parts.append(await self._worker(self._span_rows, topic.name, states, self._clock.message_ms()))
        return request.reply(body=spliced(ConsumeTimeSpans().encode(), "consumeTimeSpanSet", parts))

    def _span_rows(self, topic: str, states: Sequence[tuple[int, int, int, int]], now: int) -> bytes:
        """Worker: times of (queue id, min, end, consumed) of some queues."""
        spans = []
        for queue_id, low, end, consumed in states:
            offsets = (low, end - 1, consumed - 1, consumed if consumed < end else -1)
            first, last, read, following = store_times(self._store, [(topic, queue_id, offset) for offset in offsets])
            queue = MessageQueue(topic, self._broker_name, queue_id)
            spans.append(_span(queue, first, last, read, following, now).to_json())
        return fastjson.dumps(spans)[1:-1]

    # -- offsets as such ---------------------------------------------------------------------------------------------------

    async def all_offsets(self, request: Request[GetAllConsumerOffsets]) -> Frame:
        """The text of consumerOffset.json, for slaves."""
        body = await self._beside.run(request.connection, lambda: fastjson.dumps(self._offsets.with_overlay()))
        return request.reply(body=body)

    def corrections(self, request: Request[QueryCorrectionOffset]) -> Frame:
        """Return per queue the smallest offset of all groups but those to be left out; the largest number if the group to
        compare with is behind that."""
        header = request.header
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic) - left_out:
            for queue_id, offset in self._offsets.queues(group, header.topic).items():
                if offset >= self._store.queue_state(header.topic, queue_id).first:
                    smallest[queue_id] = min(offset, smallest.get(queue_id, _NEVER))
        for queue_id, offset in self._offsets.queues(header.compare_group, header.topic).items():
            if smallest.get(queue_id, _NEVER) > offset:
                smallest[queue_id] = _NEVER
        return request.reply(body=CorrectionOffsets(smallest).encode())


def _span(
    queue: MessageQueue, first: int | None, last: int | None, read: int | None, following: int | None, now: int
) -> QueueTimeSpan:
    first, last = -1 if first is None else first, -1 if last is None else last
    consumed = first if read is None else read
    return QueueTimeSpan(
        queue=queue,
        min_ms=first,
        min_text=_text(first),
        max_ms=last,
        max_text=_text(last),
        consume_ms=consumed,
        consume_text=_text(consumed),
        delay_ms=0 if following is None else max(0, now - following),
    )


def _text(ms: int) -> str:
    """Format a time as Java does: 2026-11-15#21:02:09:123. A record's timestamp may be any number."""
    try:
        moment = datetime.datetime.fromtimestamp(ms // 1000)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03}"

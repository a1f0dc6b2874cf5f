"""The contents of a topic's queues: first and next offset, time of the last message, single entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kappamq.broker.clients.registry import Clients
from kappamq.broker.pulling.filtering import SQL92
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.slices import Worker, in_slices, rows, spliced
from kappamq.errors import BrokerError, InvalidParameter
from kappamq.message import MessageQueue
from kappamq.native.layout import ENTRY
from kappamq.protocol.bodies.admin import ConsumeQueueData, QueryConsumeQueueResponse, TopicOffset, TopicStatsTable
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetTopicStats, QueryConsumeQueue
from kappamq.state.filters import FilterData
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

_ENTRIES_MAX = 1024
QueueAt = tuple[str, int, int]  # topic, queue id, offset of a message in it


class QueueViews:
    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: Topics,
        clients: Clients,
        worker: Worker,
        filter_of: Callable[[str, str], FilterData | None],
        tag_codes: Callable[[SubscriptionData], frozenset[int] | None],
        put_tps: Callable[[str], float],
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._clients = clients
        self._worker = worker
        self._filter_of = filter_of
        self._tag_codes = tag_codes
        self._put_tps = put_tps

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.status,
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
        }

    async def status(self, request: Request[GetTopicStats]) -> Frame:
        """Return every queue of a topic, including those that are still empty."""
        name = request.header.topic
        topic = self._topics.existing(name)
        parts: list[bytes] = []
        async for ids in in_slices(range(max(topic.read_queues, topic.write_queues))):
            states = [(queue_id, *self._store.queue_state(name, queue_id)[:2]) for queue_id in ids]
            parts.append(await self._worker(self._status_rows, name, states))
        return request.reply(body=spliced(TopicStatsTable(put_tps=self._put_tps(name)).encode(), "offsetTable", parts))

    def _status_rows(self, topic: str, states: Sequence[tuple[int, int, int]]) -> bytes:
        """Worker: (queue id, min, end) of some queues and the time of the last message in each."""
        times = store_times(self._store, [(topic, queue_id, end - 1) for queue_id, _low, end in states])
        return rows(
            {
                MessageQueue(topic, self._broker_name, queue_id): TopicOffset(low, end, stored or 0)
                for (queue_id, low, end), stored in zip(states, times, strict=True)
            }
        )

    async def entries(self, request: Request[QueryConsumeQueue]) -> Frame:
        """Entries of one queue as they lie on disk, and whether a group's subscription would select them."""
        header = request.header
        name, queue_id = header.topic or "", header.queue_id
        topic = self._topics.existing(name)
        if not 0 <= queue_id < max(topic.read_queues, topic.write_queues):
            raise InvalidParameter(f"topic {name} has no queue {queue_id}")
        low, end, _next, _stored = self._store.queue_state(name, queue_id)
        answer = QueryConsumeQueueResponse(min_index=low, max_index=end)
        group = self._clients.consumers.get(header.consumer_group or "")
        wanted = answer.subscription = group.subscriptions.get(name) if group is not None else None
        codes = None
        if wanted is not None and wanted.expression_type == SQL92:
            # entries alone do not show it: all of them may match
            known = self._filter_of(header.consumer_group or "", name)
            answer.filter_data = known.to_text() if known is not None else None
        elif wanted is not None:
            codes = self._tag_codes(wanted)
        if not low <= header.index < end:
            raise BrokerError(f"Index {header.index} of {queue_id}@{name} is not exist: it holds [{low}, {end})")
        count = min(max(header.count, 1), _ENTRIES_MAX, end - header.index)
        data = await self._worker(self._read, name, queue_id, header.index, count)
        for log_offset, size, code in ENTRY.iter_unpack(data):
            matched = codes is None or ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in codes
            answer.entries.append(ConsumeQueueData(log_offset, size, code, matched=matched))
        return request.reply(body=answer.encode())

    def _read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """Worker: entries from memory or, up to the end of their file, from disk."""
        data = self._store.tail_entries(topic, queue_id, first, count)
        data = data or self._store.queues.read(topic, queue_id, first, count)
        return bytes(data[: len(data) - len(data) % ENTRY.size])


def store_times(store: MessageStore, places: Sequence[QueueAt]) -> list[int | None]:
    """Worker: when each of these messages was stored; None for missing ones."""
    return [store.store_ms(*place) if place[2] >= 0 else None for place in places]

"""Finding single messages: by key and time, by unique id, by the offset id that a send returned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kappamq.broker.requests.request import Handler, Request
from kappamq.errors import BrokerError, QueryNotFound
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import QueryMessage, QueryMessageResponse, ViewMessage
from kappamq.protocol.records.record import Record, decode
from kappamq.protocol.records.tags import keys_of
from kappamq.store.message_store import MessageStore

_ANSWER_BYTES_MAX = 8 << 20
_CANDIDATES_MAX = 16_384  # the most records a query reads; if more have the same hash, the oldest are not found


class Queries:
    def __init__(
        self, store: MessageStore, worker: Callable[..., Awaitable[Any]], flush_derived: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._worker = worker
        self._flush_derived = flush_derived

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    async def query(self, request: Request[QueryMessage]) -> Frame:
        header = request.header
        count = max(1, min(header.count_max, self._store.config.query_max))
        await self._flush_derived()  # a key is found as soon as its message can be consumed
        found = await self._worker(self._search, header.topic, header.key, count, header.begin_ms, header.end_ms)
        if not found:
            raise QueryNotFound("can not find message, maybe time range not correct")
        index = self._store.index
        answer = QueryMessageResponse(index_ms=index.infos()[-1].end_ms, index_log_offset=index.indexed_to)
        return request.reply(header=answer, body=b"".join(found))

    def _search(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Worker: records of `topic` with `key`, oldest first. The index has only hashes, so the keys are compared here."""
        found: dict[int, bytes] = {}
        seen: set[int] = set()
        total = 0
        candidates = count * 4
        while True:
            offsets = self._store.query(topic, key, candidates, begin_ms, end_ms)
            for log_offset in offsets:
                if log_offset in seen:
                    continue
                seen.add(log_offset)
                data = self._store.record(log_offset)
                if data is None or not self._is_wanted(decode(data), topic, key, begin_ms, end_ms):
                    continue
                full = bool(found) and total + len(data) > _ANSWER_BYTES_MAX
                if not full:
                    found[log_offset] = data
                    total += len(data)
                if full or len(found) >= count:
                    return [found[log_offset] for log_offset in sorted(found)]
            if len(offsets) < candidates or candidates >= _CANDIDATES_MAX:
                return [found[log_offset] for log_offset in sorted(found)]
            candidates *= 8  # other keys with the same hash were in the way

    async def view(self, request: Request[ViewMessage]) -> Frame:
        header = request.header
        data = await self._worker(self._store.record, header.log_offset)
        if data is None:
            raise BrokerError(f"can not find message by offset {header.log_offset}")
        return request.reply(body=data)

    def _is_wanted(self, record: Record, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
        if record.topic != topic:
            return False
        if not self._store.clock_steps.within(record.log_offset, record.stored_ms, begin_ms, end_ms):
            return False
        properties = record.property_map()
        return properties.get("UNIQ_KEY") == key or key in keys_of(properties.get("KEYS"))

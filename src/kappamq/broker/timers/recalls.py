"""Recalls a message before it is due: another record in the timer topic says that it must not be delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import IllegalOperation, NoPermission, TopicNotFound
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import RecallMessage, RecallMessageResponse
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.recall import RecallHandle, delete_key
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

_TAG = "_RECALL_TAG_"
_LOOK_AGAIN_S = 0.05
_CANDIDATES_MAX = 256
_STEPS_LOOKED_AT = 16


class Recalls:
    def __init__(
        self, store: MessageStore, config: BrokerConfig, clock: Clock, topics: Topics, appender: Appender
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._topics = topics
        self._appender = appender

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, request: Request[RecallMessage]) -> Frame:
        """The answer says that the message will not be delivered; without one it may be or not."""
        header = request.header
        if not self._config.recall:
            raise NoPermission("recall failed, operation is forbidden: see recallMessageEnable")
        if self._topics.get(header.topic) is None:
            raise TopicNotFound(f"recall failed, the topic[{header.topic}] not exist")
        handle = RecallHandle.decode(header.recall_handle)
        if handle.topic != header.topic:
            raise IllegalOperation(f"recall failed, topic not match: the handle is for {handle.topic}")
        if handle.broker != self._config.name:
            raise IllegalOperation(f"recall failed, the message lies at broker {handle.broker}: ask that one")
        now_ms = self._clock.message_ms()
        times = self._possible_times(handle.due_ms)
        if max(times) <= now_ms:
            raise IllegalOperation("recall failed, timestamp invalid: the time of the message has come already")
        if min(time for time in times if time > now_ms) - now_ms > self._config.timer_delay_max_s * 1000:
            raise IllegalOperation("recall failed, timestamp invalid: no message can wait for so long")
        recalls: list[Draft] = []
        for due_ms in times:
            if not 0 < due_ms - now_ms <= self._config.timer_delay_max_s * 1000:
                continue
            pairs = {
                properties.TIMER_DELETE_UNIQUE_KEY: delete_key(handle.topic, handle.key),
                properties.UNIQUE_KEY: handle.key,
                properties.TIMER_DELIVER_MS: str(due_ms),
                properties.TAGS: _TAG,
                properties.BORN_TIMESTAMP: str(now_ms),
            }
            if header.producer_group:
                pairs[properties.PRODUCER_GROUP] = header.producer_group
            recalls.append(Draft(handle.topic, 0, b"0", pairs, born_ms=now_ms, born=request.connection.born))
        if len(recalls) == 1:
            end = self._appender.append(recalls[0]).end
        else:
            end = self._appender.append_group(recalls)[-1].end
        await self._appender.answerable(end)
        return request.reply(header=RecallMessageResponse(message_id=handle.key, region=self._config.region))

    def _possible_times(self, due_ms: int) -> list[int]:
        """When a message may be due whose handle says `due_ms`: if it asked for a delay, its time has moved with the wall clock each
        time that was set since. Where the message lies, and so which of them it is, the handle does not say."""
        times, shift_ms = [due_ms], 0
        for step in reversed(self._store.clock_steps.steps[-_STEPS_LOOKED_AT:]):
            shift_ms += step.step_ms
            times.append(due_ms + shift_ms)
        return sorted(set(times))


class RecallLookup:
    """Finds recalls by the key index."""

    def __init__(
        self, store: MessageStore, clock: Clock, worker: Worker, flush_derived: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._flush_derived = flush_derived

    async def is_recalled(self, record: Record, key: str) -> bool:
        """Return whether this parked message was recalled, if the slot does not show it."""
        while self._store.catching_up():  # noqa: ASYNC110 (it is a matter of seconds after a crash)
            await asyncio.sleep(_LOOK_AGAIN_S)
        await self._flush_derived()
        unique = record.property_map().get(properties.UNIQUE_KEY, "")
        return bool(unique and await self._worker(self._look_up, unique, key))

    def _look_up(self, unique: str, key: str) -> bool:
        now_ms = self._clock.message_ms()
        for log_offset in self._store.query(TIMER_TOPIC, unique, _CANDIDATES_MAX, 0, now_ms):
            found = self._store.decoded(log_offset)
            if found is not None and found.property_map().get(properties.TIMER_DELETE_UNIQUE_KEY) == key:
                return True
        return False

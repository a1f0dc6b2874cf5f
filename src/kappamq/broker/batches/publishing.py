"""Turns decided chunks into messages: a chunk and the note that it was published are one group, so publishing resumes there after a crash.

A part of the agenda: one chunk per slice, or a part of one that the kernel leaves to Python. Batches of a scope are published in their
order, chunks in the order of the decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.sources import Sources
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.upkeep.slices import Worker
from kappamq.errors import IllegalMessage, KappaError, ProtocolError
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.names import STAGED_TOPIC
from kappamq.protocol.records.record import Record, decode
from kappamq.state.staged import Chunk, Staged, StagedChunks
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_AFTER_REFUSAL_MS: Final = 1000
_AT_ONCE_MS: Final = 0
FLUSH_BYTES: Final = 2 << 20
"""The most bytes of published messages that are not on disk: a batch is reported as published when all of them are."""
PART_ROWS: Final = 100
"""Per slice, of a chunk with messages that are not plain, such as delayed ones: each takes the loop some microseconds."""

ReadSlowly = Callable[[TopicConfig, int, Record], list[Draft]]
"""The messages of a chunk that are not all plain."""


class Publishing:
    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        appender: Appender,
        agenda: Agenda,
        staged: StagedChunks,
        worker: Worker,
        read_slowly: ReadSlowly,
        on_published: Callable[[str], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._appender = appender
        self._agenda = agenda
        self._staged = staged
        self._worker = worker
        self._read_slowly = read_slowly
        self._on_published = on_published  # called with the scope of a transaction whose chunks are all published
        self._sources = Sources(store)
        self._reading = False
        self._ready: tuple[int, bytes | None] | None = None  # place and record of the next chunk
        self._drafts: tuple[int, list[Draft]] | None = None  # place and messages of a chunk that is published in parts
        self._illegal: int | None = None  # place of one that cannot be stored
        self._not_before_ms = _AT_ONCE_MS
        self._refused = ""

    def due_ms(self) -> int | None:
        return None if self._reading or self._next() is None else self._not_before_ms

    def _next(self) -> tuple[Staged, Chunk] | None:
        first = self._staged.next_to_publish()
        if first is None or not first.waiting:
            return None
        return first, first.chunks[first.waiting[0]]

    def run(self, now_ms: int) -> None:
        found = self._next()
        if found is None:
            return
        staged, chunk = found
        if self._ready is None or self._ready[0] != chunk.place:
            self._look(chunk, now_ms)
        if self._ready is not None and self._ready[0] == chunk.place:
            self._publish(staged, chunk, self._ready[1], now_ms)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def _look(self, chunk: Chunk, now_ms: int) -> None:
        places = self._sources.entries(STAGED_TOPIC, 0, chunk.at, 1)
        if places and self._sources.are_warm(places):
            self._ready = chunk.place, self._sources.read(places)[0]
        elif places is not None and not places:
            self._reading = True
            self._agenda.spawn(self, self._wait_for_sight(now_ms))
        else:
            self._reading = True
            self._agenda.spawn(self, self._read_cold(chunk))

    async def _wait_for_sight(self, now_ms: int) -> None:
        """It was appended, but is not in its queue yet."""
        try:
            self._not_before_ms = now_ms + _AFTER_REFUSAL_MS  # should the disk fail
            await self._appender.visible(self._store.append_offset)
            self._not_before_ms = _AT_ONCE_MS
        finally:
            self._reading = False

    async def _read_cold(self, chunk: Chunk) -> None:
        try:
            places = await self._worker(self._sources.read_entries, STAGED_TOPIC, 0, chunk.at, 1)
            records = await self._worker(self._sources.read, places)
            self._ready = chunk.place, records[0] if records else None
        finally:
            self._reading = False

    # -- storing -----------------------------------------------------------------------------------------------------------

    def _publish(self, staged: Staged, chunk: Chunk, data: bytes | None, now_ms: int) -> None:
        topic = self._topics.get(chunk.topic)
        rows = chunk.rows - staged.parts.get(chunk.place, 0)  # that are left
        dropped = 0
        try:
            record = None if data is None else decode(data, check_crc=False)  # `Sources` has checked it
        except ProtocolError:
            record = None
        if record is None:
            log.error(
                "scope %s: a chunk of batch %d can no longer be read: %d messages for topic %s are lost",
                staged.scope, staged.number, rows, chunk.topic,
            )  # fmt: skip
            dropped = rows
        elif topic is None or not topic.write_queues:
            log.warning(
                "scope %s: topic %s is gone: %d messages of batch %d are dropped",
                staged.scope, chunk.topic, rows, staged.number,
            )  # fmt: skip
            dropped = rows
        change: tuple[str, list[Any]] = "chunk-published", [staged.transaction, chunk.place, dropped]
        try:
            if record is None or topic is None or dropped:
                self._appender.append_copies([], [change])
            elif not self._store_messages(staged, topic, chunk, record, change):
                return  # the rest in the next slices
            self._appender.flush_along(FLUSH_BYTES)
        except IllegalMessage as error:
            # Staging checks for it; settings may have changed since. It must not keep all others from being published.
            log.error(
                "scope %s: %d messages of batch %d for topic %s can no longer be stored (%s): they are dropped",
                staged.scope, rows, staged.number, chunk.topic, error,
            )  # fmt: skip
            self._appender.change("chunk-published", [staged.transaction, chunk.place, rows])
        except KappaError as error:
            if str(error) != self._refused:
                log.warning("publishing decided batches is delayed: %s", error)
            self._refused = str(error)
            self._not_before_ms = now_ms + _AFTER_REFUSAL_MS
            self._drafts = None  # placers may have changed some
            return
        self._refused, self._not_before_ms, self._ready, self._drafts = "", _AT_ONCE_MS, None, None
        if staged.is_published:
            self._on_published(staged.scope)

    def _store_messages(
        self, staged: Staged, topic: TopicConfig, chunk: Chunk, record: Record, change: tuple[str, list[Any]]
    ) -> bool:
        """Store the rest of a chunk, or a part of it; returns whether that was all."""
        queue_id = chunk.queue_id if chunk.queue_id < topic.write_queues else chunk.queue_id % topic.write_queues
        done = staged.parts.get(chunk.place, 0)
        if not done and self._appender.append_batch(topic.name, queue_id, record, change):
            return True
        if self._drafts is None or self._drafts[0] != chunk.place:
            if chunk.rows > PART_ROWS and self._illegal != chunk.place:
                self._reading = True
                self._agenda.spawn(self, self._read_drafts(topic, queue_id, chunk, record))
                return False
            self._drafts = chunk.place, self._read_slowly(topic, queue_id, record)
        drafts = self._drafts[1]
        part = drafts[done : done + PART_ROWS]
        for draft in part:
            draft.queue_id = queue_id  # the topic may have another number of queues by now
        done += len(part)
        whole = done >= len(drafts)
        self._appender.append_group(
            part, [change if whole else ("chunk-part", [staged.transaction, chunk.place, done])]
        )
        return whole

    async def _read_drafts(self, topic: TopicConfig, queue_id: int, chunk: Chunk, record: Record) -> None:
        """Beside the loop."""
        try:
            self._drafts = chunk.place, await self._worker(self._read_slowly, topic, queue_id, record)
        except IllegalMessage:
            self._illegal = chunk.place  # `_publish` gets the same error, and drops it
        finally:
            self._reading = False

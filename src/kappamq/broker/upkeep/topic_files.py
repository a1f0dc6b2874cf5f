"""Handles the queues and queue files of a deleted topic: queues are emptied at once, files are removed when the log has the deletion."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.broker.upkeep.workers import Workers
from kappamq.state.events import TopicDeleted
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_DELETION_SAFE_S = 30.0


class TopicFiles:
    def __init__(
        self,
        store: MessageStore,
        writer: LogWriter,
        upkeep: Upkeep,
        workers: Workers,
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._upkeep = upkeep
        self._workers = workers
        self._run = run

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.forget(event.name)

    def forget(self, name: str) -> None:
        """Empty its queues at once, so that nothing stored from now on is taken for old, and remove their files.

        In a Raft group both wait until the deletion is confirmed: it may be lost with this leader's term, and the numbers that were
        given with it."""
        store = self._store
        ends = {queue_id: store.queue_state(name, queue_id).next for queue_id in store.queue_ids(name)}
        may_be_lost = store.marks.mode.waits_always
        if not may_be_lost:
            self._empty(name, ends)
        # Entries of a topic that is made again meanwhile are written after these files are gone.
        gone = self._upkeep.hold_entries()
        self._run(self._forget_files(name, store.append_offset, gone, ends if may_be_lost else {}))

    def _empty(self, name: str, ends: dict[int, int]) -> None:
        """Numbering goes on if the topic is made again."""
        store = self._store
        for queue_id, end in ends.items():
            low, entered, numbered, _stored = store.queue_state(name, queue_id)
            if numbered <= end:
                store.restart_queue(name, queue_id, end)
            elif low < end:  # made again, and sent to
                store.raise_minimum(name, queue_id, min(end, entered))

    async def _forget_files(self, name: str, deleted_at: int, gone: asyncio.Future[None], ends: dict[int, int]) -> None:
        """Not before the log is on disk with the deletion: else a crash brings the topic back, without its messages."""
        try:
            safe = self._writer.confirmed(deleted_at)
            await asyncio.wait({safe}, timeout=_DELETION_SAFE_S)
            error = (
                safe.exception()
                if safe.done()
                else TimeoutError(f"the disk has not answered for {_DELETION_SAFE_S:g} s")
            )
            if error is not None:
                log.warning("queue files of the deleted topic %s stay until the next start: %s", name, error)
                return
            self._empty(name, ends)
            await self._workers.write(self._store.forget_topic, name)
            self._store.queues.forget_readers(name)
        finally:
            gone.set_result(None)

"""Keeps old staged chunks from holding back retention: chunks that have waited long for a decision are stored again at the log's end.

Nothing is dropped: only the coordinator can allow that, and one that is away for a week may have decided the chunk before it
failed. A copy costs as much disk as the chunk did; how much may be staged is bounded (`staged_bytes_max`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kappamq.broker.delivery.sources import Sources
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.upkeep.slices import Worker
from kappamq.config.broker import BrokerConfig
from kappamq.protocol.names import STAGED_TOPIC
from kappamq.protocol.records.record import decode
from kappamq.state.staged import Chunk, Staged, StagedChunks
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TIMEOUTS: Final = 24
"""Chunks keep their log files for this many times `batch_transaction_timeout_ms`: a working coordinator has decided or
aborted long before."""
_CONFIRM_BYTES: Final = 32 << 20
"""Copies are waited for after this many bytes."""


class Renewing:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        staged: StagedChunks,
        appender: Appender,
        worker: Worker,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._store = store
        self._staged = staged
        self._appender = appender
        self._worker = worker
        self._now_ms = now_ms
        self._sources = Sources(store)
        self._complained: set[str] = set()  # scopes

    @property
    def needed_from(self) -> int:
        first = self._staged.needed_from()
        return self._store.append_offset if first is None else first

    async def renew_below(self, log_min: int) -> None:
        """Copy chunks that were staged long ago and are not decided; the others keep their files, since they will be settled soon."""
        copied: dict[str, int] = {}
        unconfirmed = 0
        end = self._store.append_offset  # not what is copied now
        while (found := self._staged.first_below(min(log_min, end))) is not None and self._is_old(found[0]):
            staged, chunk = found
            data = await self._read(chunk)
            if not self._is_still(staged, chunk):
                continue
            if data is None:
                if staged.scope not in self._complained:
                    log.error("scope %s: a staged chunk cannot be read: the log is kept from there on", staged.scope)
                    self._complained.add(staged.scope)
                break
            self._copy(staged, chunk, data)
            copied[staged.scope] = copied.get(staged.scope, 0) + 1
            unconfirmed += len(data)
            if unconfirmed >= _CONFIRM_BYTES:
                await self._appender.confirmed(self._store.append_offset)
                unconfirmed = 0
            await asyncio.sleep(0)
        if copied:
            await self._appender.confirmed(self._store.append_offset)  # the originals go when this returns
        for scope, count in copied.items():
            self._tell(scope, count)

    def _is_old(self, staged: Staged) -> bool:
        age_ms = self._now_ms() - staged.since_ms
        return staged.waiting is None and age_ms >= TIMEOUTS * self._config.batch_transaction_timeout_ms

    def _is_still(self, staged: Staged, chunk: Chunk) -> bool:
        return self._staged.get(staged.transaction) is staged and staged.chunks.get(chunk.place) == chunk

    async def _read(self, chunk: Chunk) -> bytes | None:
        places = await self._worker(self._sources.read_entries, STAGED_TOPIC, 0, chunk.at, 1)
        records: list[bytes | None] = await self._worker(self._sources.read, places)
        return records[0] if records else None

    def _copy(self, staged: Staged, chunk: Chunk, data: bytes) -> None:
        draft = Draft.of(decode(data, check_crc=False))  # `Sources` has checked it
        draft.waited = True
        to = self._store.queue_state(STAGED_TOPIC, 0).next
        change = "chunk-copied", [staged.transaction, chunk.place, self._store.append_offset, to]
        (placed,) = self._appender.append_group([draft], [change], own=True)
        assert placed.queue_offset == to

    def _tell(self, scope: str, count: int) -> None:
        log.error(
            "scope %s: its coordinator has not decided for more than %d x batch_transaction_timeout_ms what becomes of staged chunks: %d "
            "of them were copied, so that old log files can go. If it is gone for good: `kappamq scope reset %s --force`",
            scope, TIMEOUTS, count, scope,
        )  # fmt: skip

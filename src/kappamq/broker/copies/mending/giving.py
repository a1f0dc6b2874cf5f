"""Gives bytes of this log to another copy whose own are damaged: only below `confirmed`, and only if they are good here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from kappamq.broker.copies.question import QuestionLink, dispensable
from kappamq.broker.upkeep.slices import Worker
from kappamq.config.copies import CopiesConfig
from kappamq.replication.frames import PIECE_BYTES_MAX, Checksum, Kind
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import RangePiece, RangeQuestion, check_question
from kappamq.store.log.mending import whole_records
from kappamq.store.message_store import MessageStore
from kappamq.store.receiving import bytes_of_unit_max

_LINKS_MAX: Final = 8
SIDES: Final = ("fetching", "lending")


class RangeGiver:
    def __init__(
        self, config: CopiesConfig, store: MessageStore, ours: Callable[[], RangeQuestion], worker: Worker
    ) -> None:
        """`ours`: this broker's identity in a greeting."""
        self._config = config
        self._store = store
        self._ours = ours
        self._worker = worker
        self._links: dict[RangeLink, None] = {}  # the oldest first

    @property
    def secret(self) -> str | None:
        return self._config.secret

    @property
    def checksum(self) -> Checksum:
        return self._store.kernel_module.crc32

    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        """Accept a connection with a request. A connection that is being served is not closed to make room."""
        if len(self._links) >= _LINKS_MAX:
            idle = dispensable(self._links)
            if idle is None:
                transport.abort()
                return
            del self._links[idle]
            idle.abort()
        link = RangeLink(self, transport, lambda: self._links.pop(link, None))
        self._links[link] = None
        transport.set_protocol(link)
        link.asked(content)

    def stop(self) -> None:
        for link in list(self._links):
            link.abort()

    def check(self, question: RangeQuestion) -> None:
        """Raises Refusal."""
        check_question(question, self._ours())
        low, high = self._store.log.min, self._store.marks.confirmed.offset
        if not low <= question.start < question.end <= high:
            raise Refusal(f"the bytes {question.start} to {question.end} were asked for, here are {low} to {high}")

    async def give(self, question: RangeQuestion, link: RangeLink) -> None:
        """Raise Refusal if our own log is damaged there, or not the same."""
        await self._worker(self._compare, question)
        link.welcome()
        at = question.start
        while at < question.end:
            data = await self._worker(self._whole, at, question.end)
            await link.send(RangePiece(at, data))
            at += len(data)

    def _compare(self, question: RangeQuestion) -> None:
        """Worker: the neighbours of the stretch must be the same here."""
        for start, size, crc in (
            (question.start - question.before, question.before, question.before_crc),
            (question.end, question.behind, question.behind_crc),
        ):
            if size and self.checksum(self._store.pread(start, size)) != crc:
                raise Refusal(f"the two logs differ at {start}: they are not copies of one, or both are damaged")

    def _whole(self, start: int, end: int) -> bytes:
        """Worker: whole records from `start` on; one longer than a piece is returned as a whole."""
        store, size = self._store, PIECE_BYTES_MAX
        segment_bytes = store.config.segment_bytes
        while True:
            data = store.pread(start, min(size, end - start))
            good = whole_records(store.kernel_module, memoryview(data), start, segment_bytes)
            if good:
                return data[:good]
            if len(data) < size or size > bytes_of_unit_max(store.config):
                raise Refusal(f"the log is damaged at {start} here, too")
            size *= 4


class RangeLink(QuestionLink):
    def __init__(self, giver: RangeGiver, transport: asyncio.Transport, lost: Callable[[], object]) -> None:
        super().__init__(transport, SIDES, giver.secret, giver.checksum, lost)
        self._giver = giver
        self._question: RangeQuestion | None = None

    def _read(self, values: dict[str, Any]) -> None:
        self._question = RangeQuestion.of(values)

    def _answer(self) -> None:
        assert self._question is not None
        self._giver.check(self._question)
        self._give(self._giver.give(self._question, self))

    def welcome(self) -> None:
        self._say(Kind.WELCOME, {"proof": self.proof})

    async def send(self, piece: RangePiece) -> None:
        await self._send(Kind.BYTES, piece.encode())

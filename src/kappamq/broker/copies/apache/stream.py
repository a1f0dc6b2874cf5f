"""A slave's connection to an Apache master: reports out, the log in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kappamq.broker.copies.incoming import Incoming, NotKnown, some
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.clock import Clock
from kappamq.replication import classic
from kappamq.replication.frames import BadStream
from kappamq.store.message_store import MessageStore


class ClassicStream:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        out: asyncio.StreamWriter,
        writer: LogWriter,
        store: MessageStore,
        clock: Clock,
        arrived: Callable[[], None],
    ) -> None:
        """`arrived`: called after something was received, and stored if there was anything to store."""
        self._reader = reader
        self._out = out
        self._writer = writer
        self._store = store
        self._clock = clock
        self._arrived = arrived
        self._flush_asked = 0
        self._reported = -1
        self.reported_at = 0.0
        self._grown = asyncio.Event()

    async def receive(self) -> None:
        """Until it fails."""
        pieces = classic.Pieces()
        end = self._store.log.end
        incoming = Incoming(end)
        expected = end
        if not end:
            incoming.add(0, memoryview(classic.FIRST_BYTE))
            expected = classic.FROM_THE_FIRST_BYTE_ON
        await self._flushed(end)
        self.report()
        while True:
            try:
                async with asyncio.timeout(classic.SILENCE_S):
                    data = await some(self._reader)
            except TimeoutError:
                raise NotKnown(f"the Apache master has been silent for {classic.SILENCE_S:g} s") from None
            start, parts = expected, []
            for offset, part in pieces.feed(data):
                if offset != expected:
                    raise BadStream(f"the Apache master sends from {offset}, what came before ends at {expected}")
                parts.append(part)
                expected += len(part)
            if expected > start:
                incoming.add(start, memoryview(parts[0] if len(parts) == 1 else b"".join(parts)))
                self._writer.receive(incoming)
            self._arrived()
            self._grown.set()
            self.report()

    async def _flushed(self, end: int) -> None:
        """The first report says where to go on, so it must be exactly the end of the log."""
        done = asyncio.Event()
        if self._store.config.flush == "sync" and self._store.marks.flushed.offset < end:
            self._writer.when_flushed(end, done.set)
            await done.wait()

    def report(self) -> None:
        """Report our progress, when it has advanced or a report is due. The reported bytes are on disk if this broker is
        configured so."""
        if self._out.transport.is_closing():
            return
        end = self._store.log.end
        if self._store.config.flush == "sync":
            flushed = self._store.marks.flushed.offset
            if (
                flushed < end and self._flush_asked <= flushed
            ):  # else a waiter is parked: one for each call would be too many
                self._flush_asked = end
                self._writer.when_flushed(end, self.report)
            end = min(end, flushed)
        end = max(end, classic.FROM_THE_FIRST_BYTE_ON)
        now = self._clock.liveness()
        if end != self._reported or now - self.reported_at >= classic.BEAT_S:
            self._reported, self.reported_at = end, now
            self._out.write(classic.REPORT.pack(end))

    async def reach(self, end: int) -> None:
        """Return when the log has reached `end`."""
        while self._store.log.end < end:
            self._grown.clear()
            await self._grown.wait()

"""The marks of the log, and the rules by which a mode moves them.

After the append a message lies still and marks pass over it. Two of them are moved by events: `written` by a pwrite, `flushed` by an
fdatasync. The other three follow by the rule of the mode, which is the only place that knows it:

- `answerable`: a send below it may be answered with success;
- `visible`: a consumer may see what lies below it. The dispatcher enters it into the queues, and `dispatched` follows in the same call;
- `confirmed`: nobody can take back what lies below it, whatever crashes. Snapshots, retention and deletions wait for it.

Waiters park on one mark, and the call that moves it hands them back.
"""

from __future__ import annotations

from typing import Any, Protocol

from kappamq.protocol.codes import ResponseCode
from kappamq.store.log.watermark import Watermark


class Mode(Protocol):
    """How far the marks that follow may go, given those that lead. Each answer only grows as its arguments do."""

    name: str
    in_turn: bool
    """Whether a message can be answered in the turn in which it is written."""
    late: ResponseCode
    """What the sender of a message hears that was not answerable in time."""

    def answerable(self, written: int, flushed: int) -> int: ...

    def visible(self, written: int, flushed: int) -> int: ...

    def confirmed(self, written: int, flushed: int) -> int: ...


class AsyncFlush:
    """A message is answered and seen when it is in the page cache: a crash of the process loses nothing, a power cut may."""

    name = "async"
    in_turn = True
    late = ResponseCode.FLUSH_DISK_TIMEOUT

    def answerable(self, written: int, flushed: int) -> int:
        return written

    def visible(self, written: int, flushed: int) -> int:
        return written

    def confirmed(self, written: int, flushed: int) -> int:
        return flushed


class SyncFlush:
    """A message is answered and seen when it is on disk."""

    name = "sync"
    in_turn = False
    late = ResponseCode.FLUSH_DISK_TIMEOUT

    def answerable(self, written: int, flushed: int) -> int:
        return flushed

    def visible(self, written: int, flushed: int) -> int:
        return flushed

    def confirmed(self, written: int, flushed: int) -> int:
        return flushed


def mode_of(flush: str) -> Mode:
    """The mode for the setting `flush`, which is checked where settings are read."""
    return SyncFlush() if flush == "sync" else AsyncFlush()


class Marks:
    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.written: Watermark[Any] = Watermark()
        self.flushed: Watermark[Any] = Watermark()
        self.answerable: Watermark[Any] = Watermark()
        self.visible: Watermark[Any] = Watermark()
        self.confirmed: Watermark[Any] = Watermark()
        self.dispatched: Watermark[Any] = Watermark()

    def all(self) -> tuple[Watermark[Any], ...]:
        return self.written, self.flushed, self.answerable, self.visible, self.confirmed, self.dispatched

    def reset(self, end: int) -> None:
        """Recovery found the log's end, and it is on disk. Nobody may be waiting."""
        for mark in self.all():
            mark.reset(end)

    def move_written(self, end: int) -> list[Any]:
        """The log is in the page cache up to `end`. Returns everybody whose mark was reached."""
        return self.written.advance(end) + self._follow()

    def move_flushed(self, end: int) -> list[Any]:
        """The log is on disk up to `end`. Returns everybody whose mark was reached."""
        return self.flushed.advance(end) + self._follow()

    def _follow(self) -> list[Any]:
        mode, written, flushed = self.mode, self.written.offset, self.flushed.offset
        reached = self.answerable.advance(mode.answerable(written, flushed))
        reached += self.visible.advance(mode.visible(written, flushed))
        reached += self.confirmed.advance(mode.confirmed(written, flushed))
        return reached

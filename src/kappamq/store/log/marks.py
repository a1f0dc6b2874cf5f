"""The marks of the log, and the rules by which a mode moves them.

After the append a message does not move; marks pass over it. Two of them are moved by events: `written` by a pwrite, `flushed` by an
fdatasync. The other three follow by the rule of the mode, which is defined here and nowhere else:

- `answerable`: a send below it may be answered with success;
- `visible`: a consumer may see what lies below it. The dispatcher enters it into the queues, and `dispatched` follows in the same call;
- `confirmed`: no crash can lose what lies below it. Snapshots, retention and deletions wait for it.

Waiters park on one mark, and the call that moves it hands them back.
"""

from __future__ import annotations

from typing import Any, Protocol

from kappamq.protocol.codes import ResponseCode
from kappamq.store.log.watermark import Watermark

Following = tuple[int, int, int]
"""How far `answerable`, `visible` and `confirmed` may go."""


class Mode(Protocol):
    """How far the marks that follow may go, given those that lead. What `follow` returns only grows as its arguments do."""

    name: str
    in_turn: bool
    """Whether a message can be answered in the turn in which it is written."""
    late: ResponseCode
    """The response code for a message that did not become answerable in time."""

    def follow(self, written: int, flushed: int) -> Following: ...


class AsyncFlush:
    """A message is answered and seen when it is in the page cache: a crash of the process loses nothing, a power cut may."""

    name = "async"
    in_turn = True
    late = ResponseCode.FLUSH_DISK_TIMEOUT

    def follow(self, written: int, flushed: int) -> Following:
        return written, written, flushed


class SyncFlush:
    """A message is answered and seen when it is on disk."""

    name = "sync"
    in_turn = False
    late = ResponseCode.FLUSH_DISK_TIMEOUT

    def follow(self, written: int, flushed: int) -> Following:
        return flushed, flushed, flushed


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
        """Recovery found the log's end, and it is on disk. There must be no waiters."""
        for mark in self.all():
            mark.reset(end)

    def move_written(self, end: int) -> list[Any]:
        """The log is in the page cache up to `end`. Returns the waiters that are released."""
        return self._follow(self.written.advance(end))

    def move_flushed(self, end: int) -> list[Any]:
        """The log is on disk up to `end`. Returns the waiters that are released."""
        return self._follow(self.flushed.advance(end))

    def _follow(self, reached: list[Any]) -> list[Any]:
        """Move the marks that changed. Called once per turn, so unchanged marks must cost nothing."""
        answerable, visible, confirmed = self.mode.follow(self.written.offset, self.flushed.offset)
        if answerable != self.answerable.offset:
            reached += self.answerable.advance(answerable)
        if visible != self.visible.offset:
            reached += self.visible.advance(visible)
        if confirmed != self.confirmed.offset:
            reached += self.confirmed.advance(confirmed)
        return reached

"""The marks of the log, and the rules by which a mode advances them.

A message does not move after its append; the marks advance past it. Two of them are advanced by events: `written` by a pwrite, `flushed`
by an fdatasync. The other three follow by the rule of the mode, which is defined only here:

- `answerable`: a send below it may be acknowledged as successful;
- `visible`: consumers may see messages below it. The dispatcher enters them into the queues, and `dispatched` follows in the same call;
- `confirmed`: no crash can lose what is below it. Snapshots, retention and deletions wait for it.

Waiters park on one mark, and the call that advances it returns them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.leader_hint import not_known
from kappamq.store.log.watermark import Watermark

Following = tuple[int, int, int]
"""How far `answerable`, `visible` and `confirmed` may go."""


class Verdict(NamedTuple):
    """The answer to a sender, instead of success, if its message is stored here but lacks what the mode promises."""

    code: ResponseCode
    why: str


_DISK_IS_LATE = Verdict(ResponseCode.FLUSH_DISK_TIMEOUT, "stored, but the disk has not confirmed it in time")


class Mode(Protocol):
    """How far the following marks may go, given the leading ones. `follow` must be monotonic in its arguments; a mark never goes
    back, even if a new mode would put it lower."""

    name: str
    in_turn: bool
    """Whether a message can be acknowledged in the turn in which it is written."""
    needs_flush: bool
    """Whether messages can be acknowledged only after an fdatasync: then one is requested in each turn."""
    waits_always: bool
    """Whether even a sender that asked for an answer as soon as the message is written has to wait."""

    @property
    def lacks(self) -> bool:
        """Whether `shortfall` may return a verdict now."""
        ...

    def follow(self, written: int, flushed: int) -> Following: ...

    def late(self, written: int, flushed: int) -> Verdict:
        """The verdict for a message that did not become answerable in time."""
        ...

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        """How long a message may take to become answerable under the present conditions."""
        ...

    def shortfall(self, end: int) -> Verdict | None:
        """What is missing for a message that ends at `end` and is acknowledged although the mode cannot keep its promise; None: nothing."""
        ...


class AsyncFlush:
    """A message is acknowledged and visible once it is in the page cache: a crash of the process loses nothing, a power cut may."""

    name = "async"
    in_turn = True
    needs_flush = False
    lacks = False
    waits_always = False

    def follow(self, written: int, flushed: int) -> Following:
        return written, written, flushed

    def late(self, written: int, flushed: int) -> Verdict:
        return _DISK_IS_LATE

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        return flush_timeout_s

    def shortfall(self, end: int) -> Verdict | None:
        return None


class SyncFlush:
    """A message is acknowledged and visible once it is on disk."""

    name = "sync"
    in_turn = False
    needs_flush = True
    lacks = False
    waits_always = False

    def follow(self, written: int, flushed: int) -> Following:
        return flushed, flushed, flushed

    def late(self, written: int, flushed: int) -> Verdict:
        return _DISK_IS_LATE

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        return flush_timeout_s

    def shortfall(self, end: int) -> Verdict | None:
        return None


class Copies(Protocol):
    """What a synchronous master knows about its slaves."""

    def held(self) -> int:
        """The offset up to which the required number of slaves has the log."""
        ...

    def missing(self) -> str | None:
        """Why messages cannot be copied now (too few slaves are connected or keep up); None if they can."""
        ...


class SyncCopies:
    """In addition to a flush mode: a message is acknowledged once enough slaves have it, too. Without enough slaves it is acknowledged by
    the flush mode alone, and the answer says so: it is stored, in fewer copies than promised."""

    in_turn = False
    waits_always = False

    def __init__(self, own: Mode, copies: Copies, timeout_s: float) -> None:
        """`timeout_s`: how long the slaves may take."""
        self._timeout_s = timeout_s
        self.name = f"{own.name}, synchronous copies"
        self.needs_flush = own.needs_flush
        self._own = own
        self._copies = copies

    @property
    def lacks(self) -> bool:
        return self._copies.missing() is not None

    def follow(self, written: int, flushed: int) -> Following:
        answerable, visible, confirmed = self._own.follow(written, flushed)
        if self._copies.missing() is None:
            answerable = min(answerable, self._copies.held())
        return answerable, visible, confirmed

    def late(self, written: int, flushed: int) -> Verdict:
        if self._copies.held() < self._own.follow(written, flushed)[0]:
            return Verdict(ResponseCode.FLUSH_SLAVE_TIMEOUT, "stored, but slaves have not confirmed it in time")
        return self._own.late(written, flushed)

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        waits_for_slaves = self._copies.held() < self._own.follow(written, flushed)[0]
        return min(self._timeout_s, flush_timeout_s) if waits_for_slaves else flush_timeout_s

    def shortfall(self, end: int) -> Verdict | None:
        missing = self._copies.missing() if self._copies.held() < end else None
        return None if missing is None else Verdict(ResponseCode.SLAVE_NOT_AVAILABLE, f"stored, but {missing}")


class Follower:
    """The log is a copy of a master's: clients do not send here, and consumers see only what the master shows."""

    name = "follower"
    in_turn = False
    lacks = False
    waits_always = False

    def __init__(self, own: Mode, master: Callable[[], tuple[int, int]]) -> None:
        """`master`: returns its `visible` and `confirmed` offsets."""
        self.needs_flush = own.needs_flush
        self._own = own
        self._master = master

    def follow(self, written: int, flushed: int) -> Following:
        answerable, visible, confirmed = self._own.follow(written, flushed)
        shown, safe = self._master()
        return answerable, min(visible, shown), min(confirmed, safe)

    def late(self, written: int, flushed: int) -> Verdict:
        return self._own.late(written, flushed)

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        return flush_timeout_s

    def shortfall(self, end: int) -> Verdict | None:
        return None


def mode_of(flush: str) -> Mode:
    """The mode for the setting `flush`, which was validated with the settings."""
    return SyncFlush() if flush == "sync" else AsyncFlush()


class RaftGroup:
    """The log is one of several in a Raft group: a message is acknowledged, visible and confirmed once a majority has it on disk."""

    name = "raft"
    in_turn = False
    needs_flush = True
    lacks = False
    waits_always = True

    def __init__(self, confirmed: Callable[[], int]) -> None:
        """`confirmed`: returns the offset that the group has confirmed."""
        self._confirmed = confirmed

    def follow(self, written: int, flushed: int) -> Following:
        confirmed = min(self._confirmed(), written)
        return confirmed, confirmed, min(confirmed, flushed)  # what we save as confirmed must be on our own disk, too

    def late(self, written: int, flushed: int) -> Verdict:
        return Verdict(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            not_known("no majority of the group has confirmed it in time"),
        )

    def patience_s(self, flush_timeout_s: float, written: int, flushed: int) -> float:
        return flush_timeout_s

    def shortfall(self, end: int) -> Verdict | None:
        return None


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

    def take_mode(self, mode: Mode) -> list[Any]:
        """Use this mode from now on. Returns the waiters that are released."""
        self.mode = mode
        return self.follow()

    def move_written(self, end: int) -> list[Any]:
        """The log is in the page cache up to `end`. Returns the waiters that are released."""
        return self._follow(self.written.advance(end))

    def move_flushed(self, end: int) -> list[Any]:
        """The log is on disk up to `end`. Returns the waiters that are released."""
        return self._follow(self.flushed.advance(end))

    def follow(self) -> list[Any]:
        """Something outside of this node that the mode depends on has changed. Returns the waiters that are released."""
        return self._follow([])

    def _follow(self, reached: list[Any]) -> list[Any]:
        """Advance the marks that changed. Called once per turn, so unchanged marks must cost nothing."""
        answerable, visible, confirmed = self.mode.follow(self.written.offset, self.flushed.offset)
        if answerable > self.answerable.offset:
            reached += self.answerable.advance(answerable)
        if visible > self.visible.offset:
            reached += self.visible.advance(visible)
        if confirmed > self.confirmed.offset:
            reached += self.confirmed.advance(confirmed)
        return reached

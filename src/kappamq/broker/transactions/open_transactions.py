"""Which transactions are open: a fold over the half queue and the op queue. Pure; the log is `half_log`'s business.

A half message lies in the half queue. It is settled by an op record that names its place there. When its producer is checked,
or its log file is about to be deleted, it is copied to the end of the queue, and an op record settles the old place in the same
group: so there is one live place for each transaction. All copies name the first one, the root, by its log offset: a commit or
rollback may name any of the copies, and still counts only once.

RocketMQ's broker keeps two numbers, and so do we: every half below the first is settled, and op records below the second
name only such halves. When the store is opened, both queues are read from there on.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

REMEMBERED_MAX: Final = 50_000
"""Transactions that were ended of late, kept to tell a second decision what the first one was."""
_STALE_TIMES_MAX: Final = 10_000


class Outcome(enum.StrEnum):
    """What has become of a half message in its place; the letter is what op records say."""

    COMMITTED = "c"
    ROLLED_BACK = "r"
    GIVEN_UP = "g"
    MOVED = "m"  # still open, in another place


@dataclass(slots=True, eq=False)
class Half:
    """An open transaction, and where its newest copy lies."""

    root: int  # log offset of the record that the producer has sent
    log_offset: int
    queue_offset: int
    size: int
    group: str  # of producers, any of which can be asked
    topic: str  # where it will go
    since_ms: int  # when the root was stored
    immune_ms: int | None = None  # its producer's own wish how long not to ask; else the broker's setting
    checks: int = 0
    due_ms: int = 0


class Op(NamedTuple):
    """What an op record says."""

    queue_offset: int
    settled: tuple[int, ...]  # places in the half queue
    root: int = 0  # 0: written by a Java broker, which tells neither this nor the outcome
    outcome: Outcome | None = None
    end: int = 0  # log offset behind it


class Positions(NamedTuple):
    half: int  # every half below it is settled
    op: int  # op records below it name only such halves
    needed_from: int  # log offset of what is still needed


class Halves:
    def __init__(self) -> None:
        self._live: OrderedDict[int, Half] = OrderedDict()  # by place in the half queue, ascending
        self._by_root: dict[int, Half] = {}
        self._ops: deque[tuple[int, int]] = deque()  # (place in the op queue, last place in the half queue it settles)
        self._times: list[tuple[int, int]] = []  # heap of (due, place); stale unless the half there says the same
        self._remembered: OrderedDict[int, tuple[Outcome, int]] = OrderedDict()
        self.counts: dict[str, int] = {}  # how many are open, by topic
        self._nameless: dict[tuple[str, str, int], int] = {}

    # -- asking ------------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._live)

    def get(self, root: int) -> Half | None:
        return self._by_root.get(root)

    def ended(self, root: int) -> tuple[Outcome, int] | None:
        """How a transaction was ended and the log offset at which that is safe; None if it is open or long forgotten."""
        return self._remembered.get(root)

    def copy_of(self, unique: str, group: str, born_ms: int) -> Half | None:
        """The open copy, made by a Java broker, of a half with this id: its copies do not name their root."""
        return self._by_root.get(self._nameless.get((unique, group, born_ms), -1))

    @property
    def oldest(self) -> Half | None:
        return next(iter(self._live.values()), None)

    def below(self, log_offset: int, count: int) -> list[Half]:
        """Halves whose only copy lies below `log_offset`, the oldest first, `count` at most."""
        found: list[Half] = []
        for half in self._live.values():  # places in queue and log ascend together
            if half.log_offset >= log_offset or len(found) == count:
                break
            found.append(half)
        return found

    def positions(self, half_end: int, op_end: int, log_end: int) -> Positions:
        """Where to read on; the ends are those of both queues and the log."""
        oldest = self.oldest
        half = half_end if oldest is None else oldest.queue_offset
        while self._ops and self._ops[0][1] < half:
            self._ops.popleft()
        op = self._ops[0][0] if self._ops else op_end
        return Positions(half, op, log_end if oldest is None else oldest.log_offset)

    # -- changes -----------------------------------------------------------------------------------------------------------

    def open(self, half: Half) -> None:
        """A half message was stored, or found again."""
        known = self._by_root.get(half.root)
        if known is not None:
            del self._live[known.queue_offset]
        else:
            self.counts[half.topic] = self.counts.get(half.topic, 0) + 1
        self._remembered.pop(half.root, None)
        self._by_root[half.root] = self._live[half.queue_offset] = half
        self._note_time(half)

    def name(self, half: Half, unique: str, born_ms: int) -> None:
        """`half` is the copy of one it does not name: it is known by these."""
        self._nameless[unique, half.group, born_ms] = half.root

    def end(self, half: Half, op: Op) -> None:
        """Committed, rolled back or given up, as `op` says."""
        assert op.outcome is not None
        self._remove(half)
        self._settled(op)

    def _remove(self, half: Half) -> None:
        del self._live[half.queue_offset]
        del self._by_root[half.root]
        left = self.counts[half.topic] = self.counts[half.topic] - 1
        if not left:
            del self.counts[half.topic]

    def move(self, half: Half, op: Op, log_offset: int, queue_offset: int, size: int, due_ms: int) -> None:
        """A new copy was stored, and `op` settles the old place."""
        del self._live[half.queue_offset]
        half.log_offset, half.queue_offset, half.size, half.due_ms = log_offset, queue_offset, size, due_ms
        self._live[queue_offset] = half
        self._settled(op)
        self._note_time(half)

    def _settled(self, op: Op) -> None:
        self._ops.append((op.queue_offset, max(op.settled, default=-1)))
        self.remember(op)

    def remember(self, op: Op) -> None:
        """How a transaction was ended, for a producer that asks again."""
        if op.outcome is not None and op.outcome is not Outcome.MOVED:
            self._remembered[op.root] = op.outcome, op.end
            self._remembered.move_to_end(op.root)
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)

    # -- the fold ----------------------------------------------------------------------------------------------------------

    def settle(self, op: Op) -> None:
        """An op record was found again; the places it settles are dropped one by one."""
        self._settled(op)

    def drop(self, place: int) -> None:
        """Nothing is open at this place of the half queue any more, if something was."""
        half = self._live.get(place)
        if half is not None:
            self._remove(half)

    # -- times -------------------------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        """When the next half is due."""
        times = self._times
        while times:
            due, place = times[0]
            half = self._live.get(place)
            if half is not None and half.due_ms == due:
                return due
            heappop(times)
        return None

    def take_due(self, now_ms: int) -> Half | None:
        """The half that is due for longest; it is not due again before `postpone` or `move`."""
        due = self.due_ms()
        if due is None or due > now_ms:
            return None
        return self._live[heappop(self._times)[1]]

    def postpone(self, half: Half, due_ms: int) -> None:
        half.due_ms = due_ms
        self._note_time(half)

    def shift_times(self, step_ms: int) -> None:
        """The clock was set: whatever was counted by it moves along."""
        for half in self._live.values():
            half.due_ms += step_ms
            half.since_ms += step_ms
        self._times = [(half.due_ms, place) for place, half in self._live.items()]
        heapify(self._times)

    def _note_time(self, half: Half) -> None:
        heappush(self._times, (half.due_ms, half.queue_offset))
        if len(self._times) > 2 * len(self._live) + _STALE_TIMES_MAX:
            # A producer that asks for hours and ends the transaction at once leaves a due time here that is not reached for long.
            self._times = [(half.due_ms, place) for place, half in self._live.items()]
            heapify(self._times)

"""Marks of the log: which events move them, by the rule of each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kappamq.store.log.marks import Follower, Marks, Mode, RaftGroup, SyncCopies, mode_of
from kappamq.store.log.watermark import Watermark
from tests.dialogue import Script, scripts

NAMES = ("written", "flushed", "answerable", "visible", "confirmed", "dispatched")


class Slaves:
    """What a synchronous master knows of its slaves."""

    def __init__(self) -> None:
        self.has = 0
        self.why: str | None = None

    def held(self) -> int:
        return self.has

    def missing(self) -> str | None:
        return self.why


class Dialogue:
    """Marks, and waiters called by names."""

    def given_marks(self, flush: str) -> str:
        return self.begin(mode_of(flush))

    def given_synchronous_copies(self, flush: str) -> str:
        self.slaves = Slaves()
        return self.begin(SyncCopies(mode_of(flush), self.slaves, 3))

    def given_follower(self, flush: str) -> str:
        self.master = 0, 0
        return self.begin(Follower(mode_of(flush), lambda: self.master))

    def given_raft_group(self) -> str:
        self.group = 0
        return self.begin(RaftGroup(lambda: self.group))

    def begin(self, mode: Mode) -> str:
        self.marks = Marks(mode)
        return f"mode {mode.name}: answered in its turn {mode.in_turn}, late {mode.late(0, 0).code.name}"

    def when_slaves_hold(self, end: int) -> str:
        self.slaves.has, self.slaves.why = end, None
        return self.reached(self.marks.follow)

    def when_slaves_are_missing(self) -> str:
        self.slaves.why = "no slave is there"
        return self.reached(self.marks.follow)

    def when_master_shows(self, end: int, *, confirmed: int) -> str:
        self.master = end, confirmed
        return self.reached(self.marks.follow)

    def when_group_confirms(self, end: int) -> str:
        self.group = end
        return self.reached(self.marks.follow)

    def then_late(self) -> str:
        """The answer to a sender that has waited too long."""
        verdict = self.marks.mode.late(self.marks.written.offset, self.marks.flushed.offset)
        return f"late: {verdict.code.name}, {verdict.why}"

    def then_patience(self) -> str:
        """In seconds, if the flush may take 5."""
        return f"patience {self.marks.mode.patience_s(5, self.marks.written.offset, self.marks.flushed.offset):g} s"

    def then_shortfall(self, end: int) -> str:
        verdict = self.marks.mode.shortfall(end)
        return f"up to {end}: " + ("as promised" if verdict is None else f"{verdict.code.name}, {verdict.why}")

    def when_reset(self, end: int) -> str | None:
        return self.refused(lambda: self.marks.reset(end))

    def when_wait(self, mark: str, offset: int, *waiters: str) -> list[str]:
        """By default as many as there are marks wait: each is called like its mark."""
        chosen = NAMES if mark == "each" else (mark,)
        return [
            f"{waiter} does not have to wait"
            for name in chosen
            for waiter in waiters or (name,)
            if not self.mark(name).wait(offset, waiter)
        ]

    def when_written(self, end: int) -> str:
        return self.reached(lambda: self.marks.move_written(end))

    def when_flushed(self, end: int) -> str:
        return self.reached(lambda: self.marks.move_flushed(end))

    def when_dispatched(self, end: int) -> str:
        return self.reached(lambda: self.marks.dispatched.advance(end))

    def when_give_up(self, mark: str, *, until: str = "") -> str:
        """Those before `until` give up, or all."""
        which = (lambda waiter: waiter != until) if until else None
        return said("given up", self.mark(mark).give_up(which))

    def then_marks(self) -> str:
        assert [self.mark(name) for name in NAMES] == list(self.marks.all())
        assert len({id(mark) for mark in self.marks.all()}) == len(NAMES), "each mark is one of its own"
        return "  ".join(f"{name} {self.mark(name).offset}" for name in NAMES)

    def mark(self, name: str) -> Watermark[str]:
        mark: Watermark[str] = getattr(self.marks, name)
        return mark

    def reached(self, move: Callable[[], list[str]]) -> str:
        found: list[list[str]] = []
        return self.refused(lambda: found.append(move())) or said("reached", found[0])

    def refused(self, move: Callable[[], object]) -> str | None:
        try:
            move()
        except AssertionError as error:
            text = str(error).split("\n")[0]  # pytest adds what it knows about the values
            return f"refused: {text if 'never goes back' in text else 'somebody waits'}"
        return None


def said(what: str, waiters: Sequence[str]) -> str:
    return f"{what}: {' '.join(waiters) or 'nobody'}"


@scripts(__file__, "marks", "waiters")
def test_marks(script: Script) -> None:
    script.replay(lambda scenario: scenario.run(Dialogue()))

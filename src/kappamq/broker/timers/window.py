"""Which timers are in memory: those of the next seconds, as slots of the timer files. Later ones stay on disk."""

from __future__ import annotations

from collections.abc import Iterable

from kappamq.store.timer.entries import PRECISION_MS, slot_ms

_AHEAD_MS = 3000
_NEVER = 1 << 62


class TimerWindow:
    def __init__(self, read_ms: int) -> None:
        """Everything in the slots before that of `read_ms` is done with."""
        self._upto_ms = slot_ms(max(read_ms, 1))
        self._next_slot: int | None = self._upto_ms  # the first one behind that has something in it, or may have
        self._loading_from: int | None = None

    @property
    def upto_ms(self) -> int:
        """The slots before are in memory, or on their way: what is entered for them need not be loaded."""
        return self._upto_ms

    @property
    def complete_ms(self) -> int:
        """What is due before is in memory."""
        if self._loading_from is not None:
            return self._loading_from
        return _NEVER if self._next_slot is None else self._next_slot

    @property
    def load_ms(self) -> int | None:
        """When it is time to load more; None if all is in memory, or more is being loaded."""
        return None if self._next_slot is None or self._loading_from is not None else self._next_slot - _AHEAD_MS

    @property
    def is_all(self) -> bool:
        """Nothing is left behind it."""
        return self._next_slot is None and self._loading_from is None

    def grow(self, now_ms: int) -> None:
        """Over slots that have nothing in them: what comes for them need not take the way over the files."""
        if self._loading_from is None:
            self._upto_ms = max(self._upto_ms, min(_ahead(now_ms), self.complete_ms))

    def begin_load(self, now_ms: int) -> tuple[int, int]:
        """The slots [from, to) are loaded from the files now. What is entered from now on for one of them is not in there."""
        # Not from the next slot that we know of: something is perhaps just being entered before it.
        first = self._loading_from = self._upto_ms
        self._upto_ms = max(first + PRECISION_MS, _ahead(now_ms))
        self._next_slot = None
        return first, self._upto_ms

    def end_load(self, upto_ms: int, next_slot: int | None) -> None:
        """Loading got as far as `upto_ms`; the files say what comes next."""
        self._loading_from = None
        self._upto_ms = upto_ms
        self.note([] if next_slot is None else [next_slot])

    def give_up_load(self) -> None:
        """Loading failed: all of it must be loaded again."""
        if self._loading_from is not None:
            self._upto_ms = self._next_slot = self._loading_from
            self._loading_from = None

    def note(self, slots: Iterable[int]) -> None:
        """There is something in these."""
        behind = [slot for slot in slots if slot >= self._upto_ms]
        if behind:
            self._next_slot = min(behind) if self._next_slot is None else min(self._next_slot, *behind)


def _ahead(now_ms: int) -> int:
    return slot_ms(now_ms) + _AHEAD_MS

"""How many followers have how much of the log: what a synchronous master waits for."""

from __future__ import annotations

from collections.abc import Hashable


class Held:
    """The reports of all followers that count. `store.log.marks.SyncCopies` asks for `held` and `missing`."""

    def __init__(self, awaited: int, lag_bytes_max: int) -> None:
        """`awaited`: how many followers must have a message. One that is further behind than `lag_bytes_max` counts as absent."""
        self._awaited = awaited
        self._lag_bytes_max = lag_bytes_max
        self._ends: dict[Hashable, int] = {}
        self._log_end = 0  # as last reported
        self._held = 0
        self._missing: str | None = None
        self._count()

    def report(self, follower: Hashable, end: int, log_end: int) -> None:
        """A follower has the log up to `end`, written or flushed as its mode requires; the log itself ends at `log_end`."""
        self._ends[follower] = end
        self.grown(log_end)

    def lost(self, follower: Hashable) -> None:
        self._ends.pop(follower, None)
        self._count()

    def grown(self, log_end: int) -> None:
        """The log has grown: a follower may be too far behind by now."""
        self._log_end = log_end
        self._count()

    def held(self) -> int:
        return self._held

    def missing(self) -> str | None:
        return self._missing

    def _count(self) -> None:
        if not self._awaited:
            return
        oldest = self._log_end - self._lag_bytes_max
        ends = sorted([end for end in self._ends.values() if end >= oldest], reverse=True)
        if len(ends) >= self._awaited:
            self._held = max(self._held, ends[self._awaited - 1])
            self._missing = None
        else:
            behind = len(self._ends) - len(ends)
            far = f", {behind} too far behind" if behind else ""
            self._missing = f"{len(ends)} of {self._awaited} slaves that are awaited are connected{far}"

"""How long messages take from their arrival until the broker may answer, measured once per turn and not per message.

All messages of a turn are counted with the time of the first one: from the moment something was appended until the log was
written, or on disk where answers wait for that. What the figures tell is the last minute, or up to two.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

GENERATION_S = 60.0
_STEP = math.log(1.25)  # a bucket ends at 1.25 times where it begins
_SMALLEST_S = 1e-6
_BUCKETS = 96  # up to half an hour
_EDGES_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]"),
    *("[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
"""As RocketMQ's tools print them."""


class PutLatency:
    def __init__(self, now: Callable[[], float], put_count: int = 0) -> None:
        self._now = now
        self._began = now()
        self._counted = put_count
        self._turns: deque[tuple[int, float, int]] = deque()  # where each ends in the log, when it began, its messages
        self._newer, self._older = [0] * _BUCKETS, [0] * _BUCKETS
        self._newer_since = self._began
        self.max_ms = 0  # since the start

    # -- the turn ----------------------------------------------------------------------------------------------------------

    def began(self) -> None:
        """Something was appended, the first of this turn."""
        self._began = self._now()

    @property
    def turn_s(self) -> float:
        """How long the first message of this turn has waited."""
        return self._now() - self._began

    def written(self, end: int, put_count: int) -> None:
        """The turn is over; the log ends at `end` and has got `put_count` messages since the start."""
        if put_count != self._counted:
            self._turns.append((end, self._began, put_count - self._counted))
            self._counted = put_count

    def reached(self, offset: int) -> None:
        """What lies below `offset` may be answered."""
        turns = self._turns
        if not turns or turns[0][0] > offset:
            return
        now = self._now()
        self._turn_over(now)
        while turns and turns[0][0] <= offset:
            _end, began, count = turns.popleft()
            passed = now - began
            bucket = int(math.log(passed / _SMALLEST_S) / _STEP) if passed > _SMALLEST_S else 0
            self._newer[min(bucket, _BUCKETS - 1)] += count
            self.max_ms = max(self.max_ms, int(passed * 1000))

    def _turn_over(self, now: float) -> None:
        if now - self._newer_since >= GENERATION_S:
            empty = [0] * _BUCKETS
            self._older = self._newer if now - self._newer_since < 2 * GENERATION_S else empty
            self._newer = [0] * _BUCKETS
            self._newer_since = now

    # -- asking ------------------------------------------------------------------------------------------------------------

    def _counts(self) -> list[int]:
        self._turn_over(self._now())
        return [newer + older for newer, older in zip(self._newer, self._older, strict=True)]

    def percentile_ms(self, part: float) -> float:
        """So many milliseconds at most for this part of the messages; 0 if there were none."""
        counts = self._counts()
        wanted = sum(counts) * part
        passed = 0
        for bucket, count in enumerate(counts):
            passed += count
            if count and passed >= wanted:
                return _SMALLEST_S * math.exp((bucket + 1) * _STEP) * 1000
        return 0.0

    def distribution(self) -> str:
        found = [0] * len(_NAMES)
        for bucket, count in enumerate(self._counts()):
            whole_ms = int(_SMALLEST_S * math.exp((bucket + 0.5) * _STEP) * 1000)
            found[sum(whole_ms > edge for edge in _EDGES_MS)] += count
        return "".join(f"{name}:{count} " for name, count in zip(_NAMES, found, strict=True))

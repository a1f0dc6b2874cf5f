"""How much of something happened lately: sums over the last minute, hour and day, in a few numbers each. Pure: told the time."""

from __future__ import annotations

from kappamq.protocol.bodies.admin import BrokerStatsData, StatsItem

# (seconds per bucket, buckets): the newest bucket is still filling.
MINUTE, HOUR, DAY = (10, 6), (600, 6), (3600, 24)
_LEVELS = (MINUTE, HOUR, DAY)


class Series:
    """Amounts by time. Nothing has to be done while nothing happens: old buckets are dropped when new ones come."""

    __slots__ = ("_began", "_levels")

    def __init__(self, now: float) -> None:
        self._began = now
        self._levels: tuple[list[list[int]], ...] = ([], [], [])  # of [bucket number, sum, times]

    def add(self, now: float, amount: int, times: int = 1) -> None:
        for buckets, (seconds, count) in zip(self._levels, _LEVELS, strict=True):
            number = int(now // seconds)
            if buckets and buckets[-1][0] == number:
                buckets[-1][1] += amount
                buckets[-1][2] += times
            else:
                buckets.append([number, amount, times])
                if len(buckets) > count:
                    del buckets[0]

    def last(self, now: float, level: tuple[int, int] = MINUTE) -> StatsItem:
        """Sum, amount a second and average amount at a time, over the buckets of a level that are not too old."""
        seconds, count = level
        current = int(now // seconds)
        total = times = 0
        for number, amount, often in self._levels[_LEVELS.index(level)]:
            if number > current - count:
                total += amount
                times += often
        span = min((count - 1) * seconds + now - current * seconds, now - self._began)
        return StatsItem(total, total / max(span, 1.0), total / times if times else 0.0)

    def data(self, now: float) -> BrokerStatsData:
        return BrokerStatsData(self.last(now, MINUTE), self.last(now, HOUR), self.last(now, DAY))

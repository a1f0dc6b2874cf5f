"""What the broker does, in numbers. Nothing here costs anything per message.

The kernel counts what it stores and hands out; a sample a second gives the rates. How much each topic got is counted when
its queue entries go to their files, how much each group consumed when its commits go to the log, so both are a second late.
Sizes by topic are estimated from some of the records, sizes by group from the mean record of the topic.
"""

from __future__ import annotations

import datetime
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kappamq.broker.events import SentBack, Tick
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.telemetry.rates import Series
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.errors import BrokerError
from kappamq.native.interface import Kernel
from kappamq.native.layout import ENTRY
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import ViewBrokerStats
from kappamq.state.events import CommitsRecorded, TopicDeleted
from kappamq.store.derived import DerivedWork

WINDOWS_S = (10, 60, 600)
_SAMPLE_S = 1.0
SERIES_MAX = 20_000
COMMITS_MAX = 200_000
_SIZES_LOOKED_AT = 8
_PER_QUEUE = {"QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE", "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"}

Changes = dict[tuple[str, str], dict[int, int]]
"""Commits since the last time: (topic, group) -> queue id -> offset."""


class Sample(NamedTuple):
    at: float
    put_count: int
    put_bytes: int
    get_count: int
    get_bytes: int
    missed: int  # pulls that were told that there is nothing


@dataclass(slots=True)
class Today:
    """A counter as it stood at midnight, and at the midnight before."""

    yesterday_morning: int = 0
    today_morning: int = 0

    def new_day(self, now: int) -> None:
        self.yesterday_morning, self.today_morning = self.today_morning, now


class Stats:
    def __init__(
        self,
        kernel: Kernel,
        clock: Clock,
        cluster: str,
        log_end: int,
        worker: Worker,
        missed: Callable[[], int] = lambda: 0,
    ) -> None:
        self._kernel = kernel
        self._clock = clock
        self._cluster = cluster
        self._log_end = log_end  # records below were stored before we counted
        self._worker = worker
        self._samples: deque[Sample] = deque(maxlen=WINDOWS_S[-1] + 1)
        self._series: OrderedDict[tuple[str, str], Series] = OrderedDict()  # by name and key; longest unused first
        self._committed: OrderedDict[tuple[str, str, int], int] = OrderedDict()  # by topic, group and queue; the same
        self.put_today, self.get_today = Today(), Today()
        self._date = self._today()
        self._missed = missed
        self.sample()

    # -- counting ----------------------------------------------------------------------------------------------------------

    def ticked(self, event: Tick) -> None:
        self.tick()

    def tick(self) -> None:
        """As often as one likes; a sample is taken once a second."""
        if self._clock.liveness() - self._samples[-1].at >= _SAMPLE_S:
            self.sample()

    def sample(self) -> None:
        kernel = self._kernel
        now = self._clock.liveness()
        last = self._samples[-1] if self._samples else None
        new = Sample(now, kernel.put_count, kernel.put_bytes, kernel.get_count, kernel.get_bytes, self._missed())
        self._samples.append(new)
        if last is not None:
            if new.put_count != last.put_count:
                self._add("BROKER_PUT_NUMS", self._cluster, new.put_count - last.put_count, now)
            if new.get_count != last.get_count:
                self._add("BROKER_GET_NUMS", self._cluster, new.get_count - last.get_count, now)
        today = self._today()
        if today != self._date:
            self._date = today
            self.put_today.new_day(new.put_count)
            self.get_today.new_day(new.get_count)

    def _today(self) -> datetime.date:
        return datetime.date.fromtimestamp(self._clock.message_ms() // 1000)

    async def entered(self, work: DerivedWork) -> None:
        """Entries are on their way to their files: count them by topic."""
        if work.entries:
            counted = await self._worker(tally, work.entries, self._log_end)
            now = self._clock.liveness()
            for topic, (count, size) in counted.items():
                self._add("TOPIC_PUT_NUMS", topic, count, now)
                self._add("TOPIC_PUT_SIZE", topic, size, now)

    def committed(self, changes: Changes) -> None:
        """Commits are on their way to the log: count by how much each group went on."""
        now = self._clock.liveness()
        for (topic, group), queues in changes.items():
            count = 0
            for queue_id, offset in queues.items():
                # Unless we know where a consumer began, its first commit says where it is, not how much it has read.
                count += max(0, offset - self._committed.pop((topic, group, queue_id), offset))
                self._committed[topic, group, queue_id] = offset
            if count:
                key = f"{topic}@{group}"
                self._add("GROUP_GET_NUMS", key, count, now)
                self._add("GROUP_GET_SIZE", key, round(count * self._mean_bytes(topic, now)), now)
        self._forget_old_commits()

    def commits_recorded(self, event: CommitsRecorded) -> None:
        self.committed(event.changes)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.forget(event.name)

    def _forget_old_commits(self) -> None:
        while len(self._committed) > COMMITS_MAX:
            self._committed.popitem(last=False)

    def sent_back(self, event: SentBack) -> None:
        self._add("SNDBCK_PUT_NUMS", f"{event.topic}@{event.group}", 1, self._clock.liveness())

    def begin_queried(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer has asked where to begin, and was told."""
        self._committed.setdefault((topic, group, queue_id), offset)
        self._forget_old_commits()

    def _mean_bytes(self, topic: str, now: float) -> float:
        series, sizes = self._series.get(("TOPIC_PUT_NUMS", topic)), self._series.get(("TOPIC_PUT_SIZE", topic))
        if series is not None and sizes is not None:
            count = series.data(now).day.sum
            if count:
                return sizes.data(now).day.sum / count
        return float(self._kernel.get_bytes / self._kernel.get_count) if self._kernel.get_count else 0.0

    def _add(self, name: str, key: str, amount: int, now: float) -> None:
        place = (name, key)
        series = self._series.get(place)
        if series is None:
            series = self._series[place] = Series(now)
            if len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)
        series.add(now, amount)
        self._series.move_to_end(place)

    def forget(self, topic: str) -> None:
        """A deleted topic has no past."""
        for place in [place for place in self._series if topic in (place[1], place[1].partition("@")[0])]:
            del self._series[place]
        for key in [key for key in self._committed if key[0] == topic]:
            del self._committed[key]

    # -- asking ------------------------------------------------------------------------------------------------------------

    def rates(self, of: Callable[[Sample], int]) -> tuple[float, ...]:
        """How much a second, over the last 10, 60 and 600 seconds, or since the start where that is less."""
        newest = self._samples[-1]
        result = []
        for window in WINDOWS_S:
            oldest = self._samples[max(0, len(self._samples) - 1 - window)]
            passed = newest.at - oldest.at
            result.append((of(newest) - of(oldest)) / passed if passed > 0 else 0.0)
        return tuple(result)

    def tps(self, name: str, key: str) -> float:
        """Of the last minute."""
        series = self._series.get((name, key))
        return series.last(self._clock.liveness()).tps if series is not None else 0.0

    def put_tps(self, topic: str) -> float:
        return self.tps("TOPIC_PUT_NUMS", topic)

    def get_tps(self, group: str, topic: str) -> float:
        return self.tps("GROUP_GET_NUMS", f"{topic}@{group}")

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, request: Request[ViewBrokerStats]) -> Frame:
        header = request.header
        series = self._series.get((header.name, header.key))
        if series is None:
            hint = ": ask by topic (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)" if header.name in _PER_QUEUE else ""
            raise BrokerError(f"The stats <{header.name}> <{header.key}> not exist{hint}")
        return request.reply(body=series.data(self._clock.liveness()).encode())


def tally(entries: list[tuple[str, int, int, bytes]], log_end: int) -> dict[str, tuple[int, int]]:
    """Worker: messages and bytes (estimated from some) by topic, of records at or behind `log_end`."""
    found: dict[str, tuple[int, int]] = {}
    for topic, _queue_id, _first, data in entries:
        if len(data) >= ENTRY.size and ENTRY.unpack_from(data)[0] < log_end:
            # after a start: entries that recovery has made
            data = b"".join(
                data[at : at + ENTRY.size]
                for at in range(0, len(data), ENTRY.size)
                if ENTRY.unpack_from(data, at)[0] >= log_end
            )
        count = len(data) // ENTRY.size
        if not count:
            continue
        step = -(-count // _SIZES_LOOKED_AT)
        sizes = [ENTRY.unpack_from(data, at * ENTRY.size)[1] for at in range(0, count, step)]
        known_count, known_bytes = found.get(topic, (0, 0))
        found[topic] = known_count + count, known_bytes + round(sum(sizes) / len(sizes) * count)
    return found

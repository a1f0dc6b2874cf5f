"""The delay levels: a message sent with DELAY=n waits in queue n-1 of a system topic, and is then copied to its real queue.

All messages of a level wait equally long, so each queue is in the order in which its messages are due, and one position per level
is the whole state. Copies and the new position are stored as one group, so that after a crash each message has been
delivered or will be, and never both. The positions are kept in RocketMQ's delayOffset.json, with its meaning.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.parking import Unparking, park
from kappamq.broker.delivery.record_copies import Copying
from kappamq.broker.delivery.sources import Place, Sources
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import GROUP_BYTES_MAX, Appender, Draft
from kappamq.broker.upkeep.slices import Worker
from kappamq.native.layout import FILLER_BYTES
from kappamq.native.pure_record import GroupMember
from kappamq.protocol.bodies.admin import DelayOffsets
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetAllDelayOffsets
from kappamq.protocol.names import SCHEDULE_TOPIC
from kappamq.protocol.records import properties
from kappamq.protocol.timing import number
from kappamq.state.topics import Topics
from kappamq.store.log.clock_steps import ClockStep
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_COLD_MAX = 512  # records read ahead by a worker
_COLD_BYTES_MAX = 2 << 20
_AFTER_REFUSAL_MS = 1000
_AT_ONCE_MS = 0  # whatever the time is: check what is due


class DelayPositions:
    """The position up to which each level is delivered. A fold over the log."""

    file = "delayOffset.json"
    kinds = ("delay",)

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.offsets: dict[int, int] = {}  # level -> the next offset of its queue
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_ALL_DELAY_OFFSET: self._tell}

    def _tell(self, request: Request[GetAllDelayOffsets]) -> Frame:
        return request.reply(body=self.table().encode())

    def position(self, level: int) -> int:
        """The next message of this level."""
        return self.offsets.get(level, 0)

    def table(self) -> DelayOffsets:
        return DelayOffsets(offsets=dict(sorted(self.offsets.items())), data_version=self.version)

    def to_snapshot(self) -> dict[str, Any]:
        return self.table().to_json()

    def from_snapshot(self, table: dict[str, Any]) -> None:
        loaded = DelayOffsets.from_json(table)
        self.offsets, self.version = dict(loaded.offsets), loaded.data_version

    def apply(self, kind: str, change: Any) -> None:
        level, offset = change
        self.offsets[int(level)] = int(offset)
        self.version = self.version.next(self._now_ms())

    def reset(self) -> None:
        self.offsets.clear()
        self.version = DataVersion(timestamp=self._now_ms())


class _Level:
    __slots__ = ("delay_ms", "due", "number", "queue_id", "ready")

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.queue_id = number - 1
        self.delay_ms = delay_ms
        self.due: int | None = None  # nothing of this level is due before; None: nothing waits
        self.ready: deque[bytes | None] = deque()  # due, from the level's position on; None: cannot be read


class Delays:
    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        appender: Appender,
        agenda: Agenda,
        positions: DelayPositions,
        delays_ms: Sequence[int],
        worker: Worker,
    ) -> None:
        self._store = store
        self._unparking = Unparking(topics)
        self._appender = appender
        self._agenda = agenda
        self._positions = positions
        self._worker = worker
        self._sources = Sources(store)
        self._reading = False
        self._steps = 0  # how often the clock was set: work begun before that used another time
        self._copying = Copying("delayed messages", appender)
        self._needed_from = 0
        self._levels = [_Level(place + 1, delay) for place, delay in enumerate(delays_ms)]

    def begin(self) -> None:
        """This node may write: move positions into their queues, and check the messages that wait there."""
        for level in self._levels:
            low, end, _next, _stored = self._store.queue_state(SCHEDULE_TOPIC, level.queue_id)
            at = self.position(level.number)
            if not low <= at <= end:
                self._appender.change("delay", [level.number, min(max(at, low), end)])
            if self.position(level.number) < end:
                level.due = _AT_ONCE_MS

    def position(self, level: int) -> int:
        """The next message of this level."""
        return self._positions.position(level)

    # -- coming in ---------------------------------------------------------------------------------------------------------

    def place(self, draft: Draft, now_ms: int) -> None:
        """A placer: a message with a level waits there. Beyond the last level means the last, as in RocketMQ."""
        number_of_level = number(draft.properties, properties.DELAY)
        if number_of_level is None or number_of_level <= 0 or not self._levels:
            return
        level = self._levels[min(number_of_level, len(self._levels)) - 1]
        draft.properties[properties.DELAY] = str(level.number)
        park(draft, SCHEDULE_TOPIC, level.queue_id)
        self.parked(level.number, now_ms)

    def parked(self, number: int, now_ms: int) -> None:
        """Something was, or is about to be, stored to wait at this level."""
        level = self._levels[number - 1]
        if level.due is None:
            level.due = now_ms + level.delay_ms
            self._agenda.wake()

    # -- going out ---------------------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        if self._reading:
            return None
        return min((level.due for level in self._levels if level.due is not None), default=None)

    def run(self, now_ms: int) -> None:
        level = min((level for level in self._levels if level.due is not None), key=lambda level: level.due or 0)
        if not level.ready:
            self._look(level, now_ms)
        if level.ready:
            self._deliver(level, now_ms)

    def _look(self, level: _Level, now_ms: int) -> None:
        """Find the messages of a level that are due, and read them."""
        at = self.position(level.number)
        places = self._sources.entries(SCHEDULE_TOPIC, level.queue_id, at, self._copying.group_max)
        if places is None:
            self._read_cold(level, at, now_ms, None)
            return
        if not places:
            level.due = None
            if at < self._store.queue_state(SCHEDULE_TOPIC, level.queue_id).next:
                self._agenda.spawn(self, self._wait_for_sight(level, now_ms))
            return
        due = self._due(level, places, now_ms)
        if not due:
            level.due = self._due_of(level, places[0], now_ms)
        elif self._sources.are_warm(due):
            level.ready.extend(self._sources.read(due))
        else:
            self._read_cold(level, at, now_ms, due if len(due) < len(places) else None)

    async def _wait_for_sight(self, level: _Level, now_ms: int) -> None:
        """Something was appended that is not visible yet."""
        level.due = now_ms + _AFTER_REFUSAL_MS  # should the disk fail
        await self._appender.visible(self._store.append_offset)
        level.due = _AT_ONCE_MS

    def _due(self, level: _Level, places: Sequence[Place], now_ms: int) -> list[Place]:
        """Return the first messages if they are due, as many as fit into a group or two."""
        due: list[Place] = []
        total = 0
        for place in places:
            if self._due_of(level, place, now_ms) > now_ms or (due and total + place[1] > _COLD_BYTES_MAX):
                break
            due.append(place)
            total += place[1]
        return due

    def _due_of(self, level: _Level, place: Place, now_ms: int) -> int:
        log_offset, size, due_ms = place
        if size == FILLER_BYTES or size <= 0:
            return 0
        due_ms += self._store.clock_steps.shift_ms(log_offset)  # it was computed by the earlier clock
        # Further away than possible with a correct clock and the same levels: then it has waited long enough.
        return due_ms if due_ms <= now_ms + level.delay_ms else now_ms

    def _read_cold(self, level: _Level, at: int, now_ms: int, due: list[Place] | None) -> None:
        self._reading = True
        steps = self._steps

        async def read() -> None:
            try:
                places = due
                if places is None:
                    end = self._store.queue_state(SCHEDULE_TOPIC, level.queue_id).end
                    count = min(_COLD_MAX, end - at)
                    found = await self._worker(self._sources.read_entries, SCHEDULE_TOPIC, level.queue_id, at, count)
                    places = self._due(level, found, now_ms)
                    if not places:  # nothing found: entries on their way to their file, looked for again in a moment
                        level.due = self._due_of(level, found[0], now_ms) if found else now_ms + _AFTER_REFUSAL_MS
                level.ready.extend(await self._worker(self._sources.read, places))
            finally:
                self._reading = False
                if steps != self._steps:
                    level.due = _AT_ONCE_MS

        self._agenda.spawn(self, read())

    def _deliver(self, level: _Level, now_ms: int) -> None:
        copies: list[GroupMember] = []
        count = total = 0
        self._unparking.begin()
        for record in level.ready:
            size = 0 if record is None else len(record)
            if count and (count >= self._copying.group_max or total + size > GROUP_BYTES_MAX):
                break
            count, total = count + 1, total + size
            if record is None:
                log.error("a message of delay level %d cannot be read: skipped", level.number)
            elif (copy := self._unparking.copy(record)) is not None:
                copies.append(copy)
        offset = self.position(level.number) + count
        level.due = self._copying.store(copies, ("delay", [level.number, offset]), now_ms)
        if level.due is not None:
            return
        for _ in range(count):
            level.ready.popleft()
        level.due = now_ms  # the next ones, if any: looked at in the next slice

    def clock_stepped(self, _step: ClockStep) -> None:
        """The wall clock was set: compute again when each level is due."""
        self._steps += 1
        for level in self._levels:
            if level.due is not None:
                level.due = _AT_ONCE_MS
        self._agenda.wake()

    # -- what the log must keep ----------------------------------------------------------------------------------------------

    @property
    def needed_from(self) -> int:
        return self._needed_from

    async def renew_below(self, log_min: int) -> None:
        """Copy nothing, since no level lasts longer than any sensible retention. Find where the first message waits."""
        self._needed_from = await self._worker(self._first_waiting)

    def _first_waiting(self) -> int:
        """Worker: the log offset of the first record that still waits."""
        first = self._store.log.end
        for level in self._levels:
            found = self._store.entry(SCHEDULE_TOPIC, level.queue_id, self.position(level.number))
            if found is not None:
                first = min(first, found[0])
        return first

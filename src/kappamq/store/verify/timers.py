"""Check the timer files: each unit must match a record of the timer topic, links and slots must match the units.

For past seconds only the units are compared with the log: their slots and links are never read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records.record import RecordError
from kappamq.protocol.records.tags import java_hash
from kappamq.protocol.timing import parked
from kappamq.store.files import Files
from kappamq.store.log.clock_steps import ClockSteps
from kappamq.store.log.log_reader import Found, LogReader
from kappamq.store.timer.acts import acts, fits
from kappamq.store.timer.entries import (
    CANCEL,
    END_MARK,
    PLAIN,
    PRECISION_MS,
    ROLL,
    SLOT,
    SLOTS,
    STAMPED_BYTES,
    UNIT,
    WAIT_AT,
    Slot,
    TimerCheckpoint,
    Unit,
    decode_unit,
    encode_unit,
    read_stamp,
    slot_ms,
)
from kappamq.store.verify.report import Kind, Problem, Report, WriteAgain

TIMERS = WriteAgain("timers")
_CHECK = "timercheck"
_OVER_MS = 60_000  # how far back units that were delivered before a stop are moved (TimerFiles.replace_slot)
_STAMP_AT = 64
_UNITS_AT_ONCE = 1024
_RECORD_BYTES_MAX = 4 << 20  # the largest cost that a damaged unit may claim
_WAIT_MAX = (1 << 31) - 2 * _OVER_MS
_SAVED_LATE_MS = 60_000  # the time in a checkpoint may be that much older than its writing

Clock = Callable[[], ClockSteps]
"""Where in the log the wall clock was set; called for each unit, because that may happen during a check."""


def check_timers(root: Path, log: LogReader, report: Report, files: Files, clock: Clock) -> None:
    """Compare timercheck, timerlog and timerwheel with the log. Files that another broker wrote are not checked."""
    for _ in timer_steps(root, log, report, files, clock):
        pass


def timer_steps(root: Path, log: LogReader, report: Report, files: Files, clock: Clock) -> Iterator[int]:
    """The same in short steps; each yields how many bytes it has read."""
    check = _begin(root, log, report, files, clock)
    if check is not None:
        yield from check.steps()


def is_still_wrong(root: Path, log: LogReader, files: Files, clock: Clock, problem: Problem) -> bool:
    """Check only what a problem names once more. Runs on the thread that writes the timer files."""
    report = Report(root, 1)
    check = _begin(root, log, report, files, clock)
    if check is not None:
        check.recheck(problem.place, problem.offset)
    return not report.ok


def _begin(root: Path, log: LogReader, report: Report, files: Files, clock: Clock) -> _TimerCheck | None:
    data = _read(root / "config" / _CHECK, STAMPED_BYTES, files)
    if data is None:
        return None
    if not read_stamp(data, "").ours:
        if any(data[_STAMP_AT:]):
            report.add(Kind.TIMER, _CHECK, 0, "checksum mismatch", TIMERS)
        return None
    return _TimerCheck(root, log, report, files, clock, TimerCheckpoint.decode(data), read_stamp(data, "").first)


class _TimerCheck:
    def __init__(
        self,
        root: Path,
        log: LogReader,
        report: Report,
        files: Files,
        clock: Clock,
        checkpoint: TimerCheckpoint,
        first: int,
    ) -> None:
        self._root = root
        self._log = log
        self._report = report
        self._files = files
        self._clock = clock
        self._checkpoint = checkpoint
        self._first = first
        self._last: dict[int, Unit] = {}  # slot -> its last unit so far
        self._begun: dict[int, tuple[Unit, int]] = {}  # slot -> its first unit, and the number of units

    def steps(self) -> Iterator[int]:
        start, size = self._first_file()
        if size:
            yield from self._units(max(self._first, start), size)
            yield from self._slots()

    def _first_file(self) -> tuple[int, int]:
        """Start of the first file of units, and the size of each file; 0 if there is none."""
        starts = [int(name) for name in self._files.list(self._root / "timerlog") if len(name) == 20 and name.isdigit()]
        if not starts:
            return 0, 0
        size = self._files.size_of(self._root / "timerlog" / f"{starts[0]:020d}")
        if size < UNIT.size:
            self._add("timerlog", starts[0], f"the file was cut to {size} bytes")
            return starts[0], 0
        return starts[0], size

    def recheck(self, place: str, number: int) -> None:
        start, size = self._first_file()
        if place == "timerwheel":
            self._chain(number * PRECISION_MS)
        elif place == "timerlog" and size and max(self._first, start) <= number < self._checkpoint.log_position:
            data = self._unit_bytes(number)
            unit = decode_unit(data, 0, number) if len(data) == UNIT.size else None
            if unit is None:
                self._add(place, number, "there is no unit")
            elif self._fits_record(unit, data) and unit.slot_ms >= self._checkpoint.read_ms:
                self._chain(unit.slot_ms)

    def _chain(self, start: int) -> None:
        """Check the slot of a second and the links of its units, while nothing is written to them."""
        if start < self._checkpoint.read_ms:
            return  # this second is past by now
        second = start // PRECISION_MS
        data = _read(self._root / "timerwheel", SLOT.size, self._files, second % SLOTS * SLOT.size) or b""
        slot = Slot._make(SLOT.unpack(data)) if len(data) == SLOT.size else None
        if slot is None or slot.second != second or slot.magic:
            self._add("timerwheel", second, "the file is missing or was cut, or the slot belongs to another second")
            return
        position, above, count = slot.last, slot.last + 1, 0
        while True:
            data = self._unit_bytes(position) if position < above else b""
            unit = decode_unit(data, 0, position) if len(data) == UNIT.size else None
            if unit is None or unit.slot_ms != start:
                self._add(
                    "timerwheel", second, f"the links of that second lead to {position}, which is not one of its units"
                )
                return
            above, count = position, count + 1
            if unit.before < 0:
                if (unit.before, slot.first, slot.units) != (-1, position, count):
                    self._add(
                        "timerwheel",
                        second,
                        f"the slot contains {tuple(slot)}, but there are {count} units from {position} on",
                    )
                return
            if unit.before < self._first:
                return  # the older units were in a file that has been deleted
            position = unit.before

    def _add(self, place: str, position: int, meaning: str) -> None:
        self._report.add(Kind.TIMER, place, position, meaning, TIMERS)

    def _units(self, position: int, file_bytes: int) -> Iterator[int]:
        end = self._checkpoint.log_position
        while position < end:
            start = position - position % file_bytes
            room = min(end - start, file_bytes - END_MARK.size) - (position - start)
            if room < UNIT.size:
                position = start + file_bytes
                continue
            path = self._root / "timerlog" / f"{start:020d}"
            data = _read(path, min(room, _UNITS_AT_ONCE * UNIT.size), self._files, position - start) or b""
            if len(data) < UNIT.size:
                self._add("timerlog", position, f"there is no unit, but the timer log extends to {end}")
                return
            for at in range(0, len(data) - UNIT.size + 1, UNIT.size):
                unit = decode_unit(data, at, position + at)
                if unit is None:
                    self._add("timerlog", position + at, "there is no unit")
                else:
                    self._unit(unit, data[at : at + UNIT.size])
                yield UNIT.size + (0 if unit is None else max(0, min(unit.size, _RECORD_BYTES_MAX)))
            position += len(data) // UNIT.size * UNIT.size

    def _fits_record(self, unit: Unit, data: bytes) -> bool:
        """Compare a unit with its record and report differences. Returns whether its links can be checked, too."""
        if unit.log_offset < self._log.min:
            return False  # its record has been deleted, so there is nothing to compare it with
        try:
            found = self._log.record(unit.log_offset)
        except (RecordError, OSError) as error:
            self._add("timerlog", unit.position, f"there is no valid record for the unit: {error}")
            return False
        why = self._why_not(unit, found, data)
        if why:
            self._add("timerlog", unit.position, why)
        return True

    def _unit(self, unit: Unit, data: bytes) -> None:
        if not self._fits_record(unit, data):
            return
        if unit.slot_ms >= self._checkpoint.read_ms:
            before = self._last.get(unit.slot_ms)
            known = -1 if before is None else before.position
            if unit.before != known and not (before is None and 0 <= unit.before < self._first):
                self._add(
                    "timerlog",
                    unit.position,
                    f"the unit links to {unit.before}, but the previous unit of its second is {known}",
                )
            self._last[unit.slot_ms] = unit
            first, count = self._begun.get(unit.slot_ms, (unit, 0))
            self._begun[unit.slot_ms] = first, count + 1

    def _why_not(self, unit: Unit, found: Found, data: bytes) -> str:
        parked_timer = parked(self._log.read(found.offset, found.size))
        if found.record.topic != TIMER_TOPIC or parked_timer is None or unit.size != found.size:
            return f"there is no timer of {unit.size} bytes at log offset {unit.log_offset}"
        if not unit.due_ms:
            return ""  # written by RocketMQ, which does not store the exact time
        steps, kind, due = (
            self._clock(),
            PLAIN | (CANCEL if parked_timer.cancels else 0) | (unit.kind & ROLL),
            unit.due_ms,
        )
        if unit.kind != kind or not fits(unit, parked_timer, steps, self._checkpoint.version_ms + _SAVED_LATE_MS):
            act = acts(parked_timer, found.offset, steps)
            kind = kind & ~ROLL | (ROLL if act.rolls else 0)
            return f"kind {unit.kind}, due at {due}, but according to the record kind {kind}, due at {act.at_ms}"
        topic_hash = 0 if not unit.topic_hash else java_hash(parked_timer.real_topic.decode("utf-8", "replace"))
        wait = slot_ms(due) - unit.written_ms
        if not -_WAIT_MAX < wait < _WAIT_MAX:
            return f"its write time, {unit.written_ms}, is impossible"
        right = encode_unit(unit.before, kind, unit.written_ms, due, found.offset, found.size, topic_hash)
        waits = [(wait + moved).to_bytes(4, "big", signed=True) for moved in (0, -_OVER_MS)]
        if unit.written_ms % PRECISION_MS or data not in [
            right[:WAIT_AT] + some + right[WAIT_AT + 4 :] for some in waits
        ]:
            return "its times or the hash of its topic do not match the record"
        return ""

    def _slots(self) -> Iterator[int]:
        for start, unit in self._last.items():
            yield SLOT.size
            second = start // PRECISION_MS
            data = _read(self._root / "timerwheel", SLOT.size, self._files, second % SLOTS * SLOT.size) or b""
            if len(data) < SLOT.size:
                self._add("timerwheel", second, "the file is missing or was cut")
                return
            slot = Slot._make(SLOT.unpack(data))
            # A running broker may have added units since the checkpoint.
            if slot.second != second or slot.magic or not self._is_of(slot, start):
                self._add(
                    "timerwheel",
                    second,
                    f"the slot contains {tuple(slot)}, but the last unit of that second is at {unit.position}",
                )

    def _is_of(self, slot: Slot, start: int) -> bool:
        """Whether the slot's last unit is one of that second; it may be newer than the checkpoint."""
        last, (first, count) = self._last[start], self._begun[start]
        if slot.last == last.position:
            return first.before >= 0 or (slot.first, slot.units) == (first.position, count)
        data = self._unit_bytes(slot.last) if slot.last > last.position else b""
        unit = decode_unit(data, 0, slot.last) if len(data) == UNIT.size else None
        return unit is not None and unit.slot_ms == start and slot.first <= first.position and slot.units > count

    def _unit_bytes(self, position: int) -> bytes:
        for name in self._files.list(self._root / "timerlog"):
            path = self._root / "timerlog" / name
            if 0 <= position - int(name) < self._files.size_of(path):
                return _read(path, UNIT.size, self._files, position - int(name)) or b""
        return b""


def _read(path: Path, count: int, files: Files, at: int = 0) -> bytes | None:
    try:
        fd = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return files.pread(fd, count, at)
    finally:
        files.close(fd)

"""timerwheel, timerlog/ and config/timercheck together: which record is due for handling in which second.

All of it is derived from the queue of the timer topic, one unit for each of its messages in order, and can be rebuilt from it.
Deliveries are not recorded here; their progress is in the log. Files are written in an order that survives a crash of the process
(units, slots, checkpoint); after a crash of the machine they are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kappamq.errors import StoreDamaged, StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import (
    CHECKPOINT_FILE_BYTES,
    PRECISION_MS,
    STAMPED_BYTES,
    UNIT,
    Slot,
    Stamp,
    TimerCheckpoint,
    Unit,
    encode_unit,
    read_stamp,
    slot_ms,
)
from kappamq.store.timer.log import TimerLog
from kappamq.store.timer.wheel import TimerWheel

_OVER_MS = 60_000


class TimerFiles:
    """For one thread."""

    def __init__(self, root: Path, file_bytes: int, files: Files, boot_id: str) -> None:
        self._root = root
        self._files = files
        self._file_bytes = file_bytes
        self._boot_id = boot_id
        self._built_behind = 0
        self._check_path = root / "config" / "timercheck"
        self._log = TimerLog(root / "timerlog", file_bytes, files)
        self._wheel = TimerWheel(root / "timerwheel", files)
        self._slots: dict[int, Slot] = {}  # changed and not yet written, by second
        self.checkpoint = TimerCheckpoint()

    def open(self, built_behind: int = 0) -> Stamp | None:
        """Open the files, None if there are none. Raises StoreFormatError if they cannot be used: then call `reset`.

        `built_behind`: log offset of the last step of the wall clock that is known."""
        self._built_behind = built_behind
        self._forget()
        data = self._read_checkpoint()
        wheel = self._files.exists(self._root / "timerwheel")
        self._log.open()
        if data is None and not wheel and not self._log.starts:
            self._wheel.open()
            return None
        if data is None or not wheel:
            raise StoreFormatError("timerwheel or config/timercheck is missing")
        self._wheel.open()
        self.checkpoint = TimerCheckpoint.decode(data)
        self._log.go_on_at(self.checkpoint.log_position)
        stamp = read_stamp(data, self._made_by)
        if stamp.ours and self._log.min > stamp.first:
            raise StoreFormatError(f"the timer log begins at {self._log.min}, expected {stamp.first}")
        return stamp

    @property
    def _made_by(self) -> str:
        """Files that were not closed are reused only after the same boot of the machine, and with the same clock."""
        return f"{self._boot_id} {self._built_behind}" if self._built_behind else self._boot_id

    def _read_checkpoint(self) -> bytes | None:
        try:
            fd = self._files.open(self._check_path, writable=False)
        except FileNotFoundError:
            return None
        try:
            return self._files.pread(fd, STAMPED_BYTES, 0)
        finally:
            self._files.close(fd)

    def reset(self, built_behind: int = 0) -> None:
        """Remove everything and begin empty; `built_behind` as for `open`."""
        self._built_behind = built_behind
        self._forget()
        config = self._check_path.parent  # the checkpoint first: it must not cover missing files
        for folder, names in ((config, ["timercheck"]), (self._root, ["timerwheel"]), (self._root / "timerlog", None)):
            for name in self._files.list(folder):
                if names is None or name in names:
                    self._files.remove(folder / name)
        self._wheel.open()
        self.checkpoint = TimerCheckpoint(version=self.checkpoint.version)

    def _forget(self) -> None:
        """Drop what was not written yet."""
        self.close()
        self._slots.clear()
        self._log = TimerLog(self._root / "timerlog", self._file_bytes, self._files)

    # -- writing -------------------------------------------------------------------------------------------------------------

    def add(self, kind: int, stored_ms: int, due_ms: int, log_offset: int, size: int, topic_hash: int) -> int:
        """Add a timer; returns its slot. `commit` writes it."""
        start = slot_ms(due_ms)
        second = start // PRECISION_MS
        slot = self._slots.get(second) or self._wheel.get(start)
        before = -1 if slot is None else slot.last
        position = self._log.append(encode_unit(before, kind, stored_ms, due_ms, log_offset, size, topic_hash))
        first, count = (position, 0) if slot is None or before < 0 else (slot.first, slot.units)
        self._slots[second] = Slot(second, first, position, count + 1)
        return start

    def commit(self, now_ms: int, read_ms: int, queue_offset: int, *, clean: bool = False) -> None:
        """Write what was added; then the files reflect the timer topic up to `queue_offset`, and slots before that of `read_ms` are
        done."""
        self._log.flush()
        self._wheel.put_all(self._slots.values())
        self._slots.clear()
        self.checkpoint = self.checkpoint.next(now_ms, slot_ms(read_ms), self._log.end, queue_offset)
        if clean:
            self._log.sync()
            self._wheel.sync()
        if not self._files.exists(self._check_path):
            self._files.make_folder(self._check_path.parent)
        fd = self._files.open(self._check_path, create=True)
        try:
            if self._files.size(fd) != CHECKPOINT_FILE_BYTES:
                self._files.truncate(fd, CHECKPOINT_FILE_BYTES)
            self._files.pwrite(fd, self.checkpoint.stamped(self._made_by, self._log.min, clean=clean), 0)
            if clean:
                self._files.sync(fd)
        finally:
            self._files.close(fd)

    def replace_slot(self, start: int, units: list[Unit]) -> None:
        """Keep only these units in the slot at `start`: the others were delivered before a stop within that second.

        The old units move to a slot in the past, because RocketMQ rebuilds slots from the units of its log."""
        for unit in list(self.chain(start)):
            self._log.move(unit, start - _OVER_MS)
        self._slots.pop(start // PRECISION_MS, None)
        self._wheel.clear(start)
        for unit in units:
            self.add(unit.kind, unit.written_ms, unit.due_ms, unit.log_offset, unit.size, unit.topic_hash)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def next_used(self, from_ms: int, to_ms: int) -> int | None:
        """The first slot in [from_ms, to_ms) that is not empty."""
        slot = self._wheel.next_used(from_ms, to_ms)
        return None if slot is None else slot.second * PRECISION_MS

    def chain(self, start: int) -> Iterator[Unit]:
        """The units of the second that begins at `start`, the last one first. Raises StoreDamaged."""
        slot = self._wheel.get(start)
        position = -1 if slot is None else slot.last
        low = self._log.min
        while position >= low:  # older units were deleted together with their records
            unit = self._log.unit(position)
            if unit is None or unit.slot_ms != start or not -1 <= unit.before < position:
                raise StoreDamaged(f"the timer log holds no unit of second {start // PRECISION_MS} at {position}")
            yield unit
            position = unit.before

    def units(self, position: int) -> list[Unit]:
        """Some of the written units from `position` on, in order; none at the end."""
        return self._log.units(max(position, self._log.min))

    # -- after a crash, or after another broker ------------------------------------------------------------------------------

    def resume(self, queue_offset: int, log_offset_of: Callable[[int], int | None]) -> int:
        """Take over units behind the checkpoint, which were written before a crash. Returns the queue offset they reach. Raises
        StoreDamaged if they do not match the next messages of the queue."""
        while units := self._log.units(self._log.end):
            for unit in units:
                while (known := log_offset_of(queue_offset)) is not None and known < unit.log_offset:
                    queue_offset += 1  # a malformed message has no unit
                if known != unit.log_offset:
                    raise StoreDamaged(f"the unit at {unit.position} does not belong to message {queue_offset}")
                self._revise(unit)
                self._log.go_on_at(unit.position + UNIT.size)
                queue_offset += 1
        self._log.cut(self._log.end)
        self._write_slots()
        return queue_offset

    def adopt(self) -> Unit | None:
        """RocketMQ's files: its wheel may lag behind its log by more than the checkpoint says. Returns the last unit."""
        start = self.checkpoint.log_position - self._file_bytes
        position = max([self._log.min, *(first for first in self._log.starts if first <= start)])
        last: Unit | None = None
        while units := self._log.units(position):
            for unit in units:
                self._revise(unit)
            last = units[-1]
            position = last.position + UNIT.size
        self._log.cut(position)
        self._write_slots()
        return last

    def _revise(self, unit: Unit) -> None:
        second = unit.slot_ms // PRECISION_MS
        slot = self._slots.get(second) or self._wheel.get(unit.slot_ms)
        if slot is None:
            self._slots[second] = Slot(second, unit.position, unit.position, 1)
        elif slot.last < unit.position:
            self._slots[second] = slot._replace(last=unit.position, units=slot.units + 1)

    def _write_slots(self) -> None:
        self._wheel.put_all(self._slots.values())
        self._slots.clear()

    # -- what stays ----------------------------------------------------------------------------------------------------------

    def delete_below(self, log_min: int) -> int:
        """Delete files whose records are all below `log_min`; returns how many. The next `commit` records it."""
        return self._log.delete_below(log_min)

    def close(self) -> None:
        self._log.close()
        self._wheel.close()

"""timerwheel, timerlog/ and config/timercheck together: which record is to be looked at in which second.

All of it is derived from the queue of the timer topic, one unit for each of its messages in their order, and can be built
again from it. Deliveries leave no trace here: how far they are is a matter of the log. Files are written in an order that
a crash of the process cannot break (units, slots, checkpoint); after a crash of the machine they are built again.
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
        self._check_path = root / "config" / "timercheck"
        self._log = TimerLog(root / "timerlog", file_bytes, files)
        self._wheel = TimerWheel(root / "timerwheel", files)
        self._slots: dict[int, Slot] = {}  # changed and not yet written, by second
        self.checkpoint = TimerCheckpoint()

    def open(self) -> Stamp | None:
        """Open what is there, None if nothing is. Raises StoreFormatError if it cannot be of use: then `reset`."""
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
        self._log.end = self.checkpoint.log_position
        stamp = read_stamp(data, self._boot_id)
        if stamp.ours and self._log.min > stamp.first:
            raise StoreFormatError(f"the timer log begins at {self._log.min}, it began at {stamp.first}")
        return stamp

    def _read_checkpoint(self) -> bytes | None:
        try:
            fd = self._files.open(self._check_path, writable=False)
        except FileNotFoundError:
            return None
        try:
            return self._files.pread(fd, STAMPED_BYTES, 0)
        finally:
            self._files.close(fd)

    def reset(self) -> None:
        """Begin anew, with nothing. The checkpoint goes first: it would vouch for what is no longer there."""
        self._forget()
        config = self._check_path.parent
        for folder, names in ((config, ["timercheck"]), (self._root, ["timerwheel"]), (self._root / "timerlog", None)):
            for name in self._files.list(folder):
                if names is None or name in names:
                    self._files.remove(folder / name)
        self._wheel.open()
        self.checkpoint = TimerCheckpoint(version=self.checkpoint.version)

    def _forget(self) -> None:
        """Whatever was about to be written."""
        self.close()
        self._slots.clear()
        self._log = TimerLog(self._root / "timerlog", self._file_bytes, self._files)

    # -- writing -------------------------------------------------------------------------------------------------------------

    def add(self, kind: int, stored_ms: int, due_ms: int, log_offset: int, size: int, topic_hash: int) -> int:
        """Note what is to be looked at when; returns its slot. In the files after `commit`."""
        start = slot_ms(due_ms)
        second = start // PRECISION_MS
        slot = self._slots.get(second) or self._wheel.get(start)
        before = -1 if slot is None else slot.last
        position = self._log.append(encode_unit(before, kind, stored_ms, due_ms, log_offset, size, topic_hash))
        first, count = (position, 0) if slot is None or before < 0 else (slot.first, slot.units)
        self._slots[second] = Slot(second, first, position, count + 1)
        return start

    def commit(self, now_ms: int, read_ms: int, queue_offset: int, *, clean: bool = False) -> None:
        """Bring what was added to the files, which reflect the timer topic up to `queue_offset` then. The slots before that
        of `read_ms` are done with."""
        self._log.flush()
        for slot in self._slots.values():
            self._wheel.put(slot)
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
            self._files.pwrite(fd, self.checkpoint.stamped(self._boot_id, self._log.min, clean=clean), 0)
            if clean:
                self._files.sync(fd)
        finally:
            self._files.close(fd)

    def replace_slot(self, start: int, units: list[Unit]) -> None:
        """Leave only these to be done in the slot that begins at `start`: the others were delivered before a stop in its middle.

        The units that were there move to a slot that is long over: RocketMQ builds slots again from its log's units."""
        for unit in list(self.chain(start)):
            self._log.move(unit, start - _OVER_MS)
        self._slots.pop(start // PRECISION_MS, None)
        self._wheel.clear(start)
        for unit in units:
            self.add(unit.kind, unit.written_ms, unit.due_ms, unit.log_offset, unit.size, unit.topic_hash)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def next_used(self, from_ms: int, to_ms: int) -> int | None:
        """The first slot in [from_ms, to_ms) that has anything in it."""
        slot = self._wheel.next_used(from_ms, to_ms)
        return None if slot is None else slot.second * PRECISION_MS

    def chain(self, start: int) -> Iterator[Unit]:
        """What is to be looked at in the second that begins at `start`, the last one first. Raises StoreDamaged."""
        slot = self._wheel.get(start)
        position = -1 if slot is None else slot.last
        low = self._log.min
        while position >= low:  # what lies before is gone together with the records it spoke of
            unit = self._log.unit(position)
            if unit is None or unit.slot_ms != start or not -1 <= unit.before < position:
                raise StoreDamaged(f"the timer log holds no unit of second {start // PRECISION_MS} at {position}")
            yield unit
            position = unit.before

    # -- after a crash, or after another broker ------------------------------------------------------------------------------

    def resume(self, queue_offset: int, log_offset_of: Callable[[int], int | None]) -> int:
        """Units behind the checkpoint were written before a crash, and perhaps their slots: take them over. Returns the queue
        offset they reach. Raises StoreDamaged if they are not those of the queue's next messages."""
        while units := self._log.units(self._log.end):
            for unit in units:
                while (known := log_offset_of(queue_offset)) is not None and known < unit.log_offset:
                    queue_offset += 1  # a message that could not be understood has no unit
                if known != unit.log_offset:
                    raise StoreDamaged(
                        f"the unit at {unit.position} speaks of another record than message {queue_offset}"
                    )
                self._revise(unit)
                self._log.end = unit.position + UNIT.size
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
        for slot in self._slots.values():
            self._wheel.put(slot)
        self._slots.clear()

    # -- what stays ----------------------------------------------------------------------------------------------------------

    def delete_below(self, log_min: int) -> int:
        """Delete what only speaks of records below `log_min`. How many files went. The next `commit` tells."""
        return self._log.delete_below(log_min)

    def close(self) -> None:
        self._log.close()
        self._wheel.close()

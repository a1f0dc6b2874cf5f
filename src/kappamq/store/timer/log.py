"""The timer log: units of 52 bytes in files of fixed size, appended in the order of the timer topic's queue."""

from __future__ import annotations

from pathlib import Path

from kappamq.errors import StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import END_MAGIC, END_MARK, UNIT, WAIT_AT, Unit, decode_unit

_WINDOW_BYTES = 64 << 10


class TimerLog:
    """For one thread. What was appended is in the files after `flush`."""

    def __init__(self, folder: Path, file_bytes: int, files: Files) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._files = files
        self._open: dict[int, int] = {}  # start of a file -> descriptor
        self._starts: list[int] = []
        self._buffer = bytearray()
        self._buffer_at = 0
        self._window = (0, b"")
        self.end = 0

    def open(self) -> None:
        """List the files; the caller sets `end`. Raises StoreFormatError if they cannot be a timer log."""
        for name in self._files.list(self._folder):
            start = int(name) if len(name) == 20 and name.isdigit() else -1
            if start < 0 or start % self._file_bytes:
                raise StoreFormatError(f"{self._folder / name} is not a timer log file")
            self._starts.append(start)
        for before, after in zip(self._starts, self._starts[1:], strict=False):
            if after != before + self._file_bytes:
                raise StoreFormatError(f"{self._folder} lacks the file between {before} and {after}")

    @property
    def min(self) -> int:
        """Position of the first unit that still exists."""
        return self._starts[0] if self._starts else self.end

    @property
    def starts(self) -> list[int]:
        return list(self._starts)

    # -- writing -------------------------------------------------------------------------------------------------------------

    def append(self, unit: bytes) -> int:
        """Returns the unit's position."""
        self.make_room()
        if not self._buffer:
            self._buffer_at = self.end
        position = self.end
        self._buffer += unit
        self.end += UNIT.size
        return position

    def make_room(self) -> None:
        """Make `end` the position of the next unit: a file keeps space for an end mark."""
        left = self._file_bytes - self.end % self._file_bytes
        if left < UNIT.size + END_MARK.size:
            if not self._buffer:
                self._buffer_at = self.end
            self._buffer += END_MARK.pack(left, 0, END_MAGIC)
            self.flush()
            self.end += left

    def flush(self) -> None:
        if not self._buffer:
            return
        start = self._buffer_at - self._buffer_at % self._file_bytes
        fd = self._descriptor(start, create=True)
        assert fd is not None
        self._files.pwrite(fd, bytes(self._buffer), self._buffer_at - start)
        self._buffer.clear()
        self._window = (0, b"")

    def move(self, unit: Unit, slot_ms: int) -> None:
        """Assign a written unit to another slot."""
        self.flush()
        start = unit.position - unit.position % self._file_bytes
        fd = self._descriptor(start)
        if fd is not None:
            wait = (slot_ms - unit.written_ms).to_bytes(4, "big", signed=True)
            self._files.pwrite(fd, wait, unit.position - start + WAIT_AT)
            self._window = (0, b"")

    def go_on_at(self, end: int) -> None:
        """Continue at `end`; units behind it are ignored for now."""
        self.end = end

    def cut(self, end: int) -> None:
        """Truncate the log to `end`."""
        for start in reversed(self._starts):
            if start >= end and start > 0:
                self._remove(start)
            elif start + self._file_bytes > end:
                fd = self._descriptor(start)
                if fd is not None:
                    self._files.zero(fd, max(end, start) - start, self._file_bytes)
        self.end = end
        self._buffer.clear()
        self._window = (0, b"")

    def _descriptor(self, start: int, create: bool = False) -> int | None:
        fd = self._open.get(start)
        if fd is None:
            path = self._folder / f"{start:020d}"
            if create and not self._files.exists(path):
                self._files.make_folder(self._folder)
            try:
                fd = self._files.open(path, create=create)
            except FileNotFoundError:
                return None
            if self._files.size(fd) != self._file_bytes:
                self._files.truncate(fd, self._file_bytes)  # new, or a crash came before it was extended
            self._open[start] = fd
            if start not in self._starts:
                self._starts.append(start)
        return fd

    # -- reading -------------------------------------------------------------------------------------------------------------

    def unit(self, position: int) -> Unit | None:
        """The unit at `position`; None if there is none. Reads ahead backwards, the direction of chains."""
        at, data = self._window
        if not at <= position <= at + len(data) - UNIT.size:
            start = position - position % self._file_bytes
            fd = self._descriptor(start)
            if fd is None or position < 0:
                return None
            at = max(start, position + UNIT.size - _WINDOW_BYTES)
            data = self._files.pread(fd, position + UNIT.size - at, at - start)
            self._window = at, data
            if len(data) < position + UNIT.size - at:
                return None
        return decode_unit(data, position - at, position)

    def units(self, position: int) -> list[Unit]:
        """Units from `position` on, as many as one read returns; none at the end."""
        left = self._file_bytes - position % self._file_bytes
        if left < UNIT.size + END_MARK.size:
            position += left
        start = position - position % self._file_bytes
        fd = self._descriptor(start)
        if fd is None:
            return []
        room = self._file_bytes - (position - start) - END_MARK.size
        data = self._files.pread(fd, min(_WINDOW_BYTES, room), position - start)
        found: list[Unit] = []
        for at in range(0, len(data) - UNIT.size + 1, UNIT.size):
            unit = decode_unit(data, at, position + at)
            if unit is None:
                break
            found.append(unit)
        return found

    # -- what stays ----------------------------------------------------------------------------------------------------------

    def delete_below(self, log_min: int) -> int:
        """Delete files whose units all refer to records below `log_min`, but never the last; returns how many."""
        removed = 0
        while len(self._starts) > 1:
            start = self._starts[0]
            last = start + (self._file_bytes - END_MARK.size) // UNIT.size * UNIT.size - UNIT.size
            unit = self.unit(last)
            if unit is None or unit.log_offset >= log_min:
                break
            self._remove(start)
            removed += 1
        return removed

    def _remove(self, start: int) -> None:
        fd = self._open.pop(start, None)
        if fd is not None:
            self._files.close(fd)
        self._files.remove(self._folder / f"{start:020d}")
        self._starts.remove(start)
        self._window = (0, b"")

    def sync(self) -> None:
        self.flush()
        for fd in self._open.values():
            self._files.sync(fd)
        if self._open:
            self._files.sync_folder(self._folder)

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()
        self._starts.clear()

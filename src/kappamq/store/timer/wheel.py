"""The timer wheel: two weeks of seconds in a sparse file of 38 MB, read and written slot by slot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kappamq.errors import StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import PRECISION_MS, SLOT, SLOTS, Slot

WHEEL_BYTES = SLOTS * SLOT.size
_PAGE_BYTES = 4096
_PAGES_MAX = 1024
_SLOTS_OF_PAGE = _PAGE_BYTES // SLOT.size
_LOOK_SLOTS = 4096


class TimerWheel:
    """For one thread. A slot contains its second, because the same place serves another one two weeks later."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._fd: int | None = None
        self._pages: dict[int, bytearray] = {}  # as they are in the file; forgotten when something was written

    def open(self) -> None:
        """Raises StoreFormatError if there is a file that cannot be a wheel."""
        fd = self._files.open(self._path, create=True)
        size = self._files.size(fd)
        if size not in (0, WHEEL_BYTES):
            self._files.close(fd)
            raise StoreFormatError(f"{self._path} has {size} bytes, a timer wheel has {WHEEL_BYTES}")
        if size == 0:
            self._files.truncate(fd, WHEEL_BYTES)
        self._fd = fd

    @property
    def fd(self) -> int:
        assert self._fd is not None, "the timer wheel is not open"
        return self._fd

    def get(self, slot_ms: int) -> Slot | None:
        second = slot_ms // PRECISION_MS
        page, place = divmod(second % SLOTS, _SLOTS_OF_PAGE)
        fields = SLOT.unpack_from(self._page(page), place * SLOT.size)
        return Slot._make(fields) if fields[0] == second else None

    def _page(self, number: int) -> bytearray:
        """Read a page; neighbouring slots are often needed together, so one read serves them all."""
        page = self._pages.get(number)
        if page is None:
            if len(self._pages) >= _PAGES_MAX:
                self._pages.clear()
            page = self._pages[number] = bytearray(self._files.pread(self.fd, _PAGE_BYTES, number * _PAGE_BYTES))
        return page

    def put(self, slot: Slot) -> None:
        self.put_all([slot])

    def put_all(self, slots: Iterable[Slot]) -> None:
        """Write slots; those of one page with one write."""
        changed: dict[int, list[Slot]] = {}
        for slot in slots:
            changed.setdefault(slot.second % SLOTS // _SLOTS_OF_PAGE, []).append(slot)
        for number, of_page in changed.items():
            if len(of_page) == 1:
                (slot,) = of_page
                self._files.pwrite(self.fd, SLOT.pack(*slot), slot.second % SLOTS * SLOT.size)
                continue
            page = self._page(number)
            for slot in of_page:
                SLOT.pack_into(page, slot.second % SLOTS % _SLOTS_OF_PAGE * SLOT.size, *slot)
            self._files.pwrite(self.fd, bytes(page), number * _PAGE_BYTES)
        self._pages.clear()

    def clear(self, slot_ms: int) -> None:
        """Mark this second as done."""
        self._pages.clear()
        self._files.pwrite(self.fd, bytes(SLOT.size), slot_ms // PRECISION_MS % SLOTS * SLOT.size)

    def next_used(self, from_ms: int, to_ms: int) -> Slot | None:
        """The first slot in [from_ms, to_ms) that belongs to its second; skips holes."""
        second, stop = from_ms // PRECISION_MS, to_ms // PRECISION_MS
        if stop - second > SLOTS:
            return self._earliest(second, stop)
        while second < stop:
            place = second % SLOTS
            written = self._files.next_data(self.fd, place * SLOT.size)
            if written is None:
                second += SLOTS - place
                continue
            skipped = written // SLOT.size - place
            if skipped > 0:
                second, place = second + skipped, place + skipped
            count = min(_LOOK_SLOTS, SLOTS - place, stop - second)
            if count <= 0:
                continue
            data = self._files.pread(self.fd, count * SLOT.size, place * SLOT.size)
            for number, found in enumerate(SLOT.iter_unpack(data)):
                if found[0] == second + number and found[2] >= 0:
                    return Slot._make(found)
            second += count
        return None

    def _earliest(self, first: int, stop: int) -> Slot | None:
        """The first slot of seconds [first, stop), more than the wheel has: it is searched once, not once per revolution."""
        found: Slot | None = None
        place = 0
        while place < SLOTS:
            written = self._files.next_data(self.fd, place * SLOT.size)
            if written is None:
                break
            place = max(place, written // SLOT.size)
            data = self._files.pread(self.fd, min(_LOOK_SLOTS, SLOTS - place) * SLOT.size, place * SLOT.size)
            for number, fields in enumerate(SLOT.iter_unpack(data)):
                second = fields[0]
                if first <= second < stop and second % SLOTS == place + number and fields[2] >= 0:
                    found, stop = Slot._make(fields), second  # from here on only an earlier one counts
            place += max(1, len(data) // SLOT.size)
        return found

    def sync(self) -> None:
        if self._fd is not None:
            self._files.sync(self._fd)

    def close(self) -> None:
        self._pages.clear()
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

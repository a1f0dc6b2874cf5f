"""A Java broker's index files, written the slow and obvious way from the rules in reference/store.md, section 4.

Nothing of kappamq is used here: this is what our files are held against."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

ENTRY = struct.Struct(">iqii")
Key = tuple[int, int, int]  # key hash, log offset, store ms


@dataclass
class JavaIndexFile:
    slots: int
    entries: int
    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    count: int = 1
    slot: dict[int, int] = field(default_factory=dict)
    entry: list[bytes] = field(default_factory=lambda: [bytes(20)])

    @property
    def full(self) -> bool:
        return self.count >= self.entries

    def put(self, key: int, log_offset: int, store_ms: int) -> None:
        previous = self.slot.get(key % self.slots, 0)
        if previous <= 0 or previous > self.count:
            previous = 0
        seconds = int((store_ms - self.begin_ms) / 1000)
        seconds = 0 if self.begin_ms <= 0 else min(max(seconds, 0), (1 << 31) - 1)
        self.entry.append(ENTRY.pack(key, log_offset, seconds, previous))
        self.slot[key % self.slots] = self.count
        if self.count <= 1:
            self.begin_offset, self.begin_ms = log_offset, store_ms
        if previous == 0:
            self.used_slots += 1
        self.count += 1
        self.end_offset, self.end_ms = log_offset, store_ms

    def following(self) -> JavaIndexFile:
        return JavaIndexFile(self.slots, self.entries, self.end_ms, self.end_ms, self.end_offset, self.end_offset)

    def image(self, *, counters: bool = True) -> bytes:
        """The file's bytes; without `counters`, as after kill -9 of a broker that had just made the file."""
        used, count = (self.used_slots, self.count) if counters else (0, 0)
        header = struct.pack(">qqqqii", self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, used, count)
        slots = b"".join(struct.pack(">i", self.slot.get(number, 0)) for number in range(self.slots))
        entries = b"".join(self.entry)
        return header + slots + entries.ljust(self.entries * 20, b"\0")


def build(keys: list[Key], slots: int, entries: int) -> list[JavaIndexFile]:
    files: list[JavaIndexFile] = []
    for key in keys:
        if not files:
            files.append(JavaIndexFile(slots, entries))
        elif files[-1].full:
            files.append(files[-1].following())
        files[-1].put(*key)
    return files

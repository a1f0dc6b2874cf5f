"""The bytes of RocketMQ's timer files: slots of the wheel, units of the timer log, the checkpoint beside them.

A slot stands for one second and names the last unit of a chain; each unit names the one before it in its slot. A message that
is due at d milliseconds lies in the slot that begins at `slot_ms(d)`: RocketMQ reads a slot when its second is over, so it
delivers at the second at or after d. The exact d is kept in a field of the unit that RocketMQ reserves and does not read.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

PRECISION_MS: Final = 1000
SLOTS: Final = 2 * 7 * 86_400
"""Two weeks of seconds."""
ROLL_MS: Final = 172_800 * PRECISION_MS
"""Messages that are due later than this are stored again before that: RocketMQ's timerRollWindowSlot."""

SLOT: Final = struct.Struct(">qqqii")  # second, position of the first unit, of the last, count, 0
UNIT: Final = struct.Struct(">iqiqiqiiq")
"""size, position of the unit before, kind, when it was written, ms from then to its slot, log offset and size of the record, hash
of the real topic, when exactly it is due (0: RocketMQ wrote it)."""
WAIT_AT: Final = 24
END_MARK: Final = struct.Struct(">iqi")  # bytes left in the file, 0, magic
END_MAGIC: Final = 0xCBD43194 - (1 << 32)
assert SLOT.size == 32
assert UNIT.size == 52
assert END_MARK.size == 16

PLAIN: Final = 1
ROLL: Final = 2  # at its time it is not delivered but stored again
CANCEL: Final = 4  # not a message but a recall of one in the same slot
_KINDS: Final = 0xF

CHECKPOINT_BYTES: Final = 56
CHECKPOINT_FILE_BYTES: Final = 4096
_CHECKPOINT: Final = struct.Struct(">7q")
_STAMP_AT: Final = 64
_STAMP: Final = struct.Struct(">8sqqII")
_STAMP_NAME: Final = b"kappamq1"
assert _CHECKPOINT.size == CHECKPOINT_BYTES


class Slot(NamedTuple):
    second: int
    first: int
    last: int
    units: int
    magic: int = 0


class Unit(NamedTuple):
    """One timer as the files know it."""

    position: int
    before: int  # position of the one before it in its slot, -1: it is the first
    kind: int  # PLAIN with or without ROLL and CANCEL
    written_ms: int
    slot_ms: int
    log_offset: int
    size: int
    topic_hash: int
    due_ms: int  # when exactly to act; 0: not known


def slot_ms(due_ms: int) -> int:
    """Where the slot for `due_ms` begins; RocketMQ's TIMER_OUT_MS."""
    return (due_ms - 1) // PRECISION_MS * PRECISION_MS


def roll_ms(due_ms: int, stored_ms: int) -> int | None:
    """When a message stored at `stored_ms` is to be stored again, None if it is due earlier."""
    beyond = due_ms - stored_ms - ROLL_MS
    if beyond < 0:
        return None
    return stored_ms + (ROLL_MS // 2 if beyond < ROLL_MS // 3 else ROLL_MS)  # leaves enough time for the next roll


def encode_unit(
    before: int, kind: int, written_ms: int, due_ms: int, log_offset: int, size: int, topic_hash: int
) -> bytes:
    written = written_ms // PRECISION_MS * PRECISION_MS
    return UNIT.pack(UNIT.size, before, kind, written, slot_ms(due_ms) - written, log_offset, size, topic_hash, due_ms)


def decode_unit(data: bytes | memoryview, at: int, position: int) -> Unit | None:
    """The unit at `at` of `data`, None if there is none."""
    size, before, kind, written_ms, wait_ms, log_offset, record_bytes, topic_hash, due_ms = UNIT.unpack_from(data, at)
    if size != UNIT.size or kind & ~_KINDS or not kind & PLAIN or record_bytes <= 0 or log_offset < 0:
        return None
    slot = (written_ms + wait_ms) // PRECISION_MS * PRECISION_MS
    return Unit(position, before, kind, written_ms, slot, log_offset, record_bytes, topic_hash, due_ms)


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """config/timercheck: RocketMQ's seven numbers, followed by our stamp, which RocketMQ neither reads nor writes."""

    read_ms: int = 0  # all earlier slots are done
    log_position: int = 0  # the timer log is complete up to here
    queue_offset: int = 0  # messages of the timer topic below are in the timer log
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    version: int = 0

    def encode(self) -> bytes:
        """The 56 bytes that are sent to slaves."""
        return _CHECKPOINT.pack(
            self.read_ms,
            self.log_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.version_ms,
            self.version,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(*_CHECKPOINT.unpack(data[:CHECKPOINT_BYTES].ljust(CHECKPOINT_BYTES, b"\0")))

    def next(self, now_ms: int, read_ms: int, log_position: int, queue_offset: int) -> TimerCheckpoint:
        return replace(
            self,
            read_ms=read_ms,
            log_position=log_position,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            version_ms=now_ms,
            version=self.version + 1,
        )

    def stamped(self, boot_id: str, first: int, *, clean: bool) -> bytes:
        """The beginning of the file. If another broker changes it, the checksum no longer matches and it is not taken for ours.
        `first` is where the timer log begins."""
        head = self.encode().ljust(_STAMP_AT, b"\0")
        boot = zlib.crc32(boot_id.encode())
        stamp = _STAMP.pack(_STAMP_NAME, int(clean), first, boot, 0)
        return head + stamp[:-4] + zlib.crc32(head + stamp[:-4]).to_bytes(4, "big")


class Stamp(NamedTuple):
    """Which broker wrote the checkpoint, and whether it stopped cleanly."""

    ours: bool
    same_boot: bool
    clean: bool
    first: int = 0  # where the timer log began


STAMPED_BYTES: Final = _STAMP_AT + _STAMP.size


def read_stamp(data: bytes, boot_id: str) -> Stamp:
    if len(data) < STAMPED_BYTES:
        return Stamp(False, False, False)
    name, clean, first, boot, crc = _STAMP.unpack_from(data, _STAMP_AT)
    if name != _STAMP_NAME or crc != zlib.crc32(data[: STAMPED_BYTES - 4]):
        return Stamp(False, False, False)
    return Stamp(True, boot == zlib.crc32(boot_id.encode()), bool(clean), first)

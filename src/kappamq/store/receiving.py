"""Bytes received from another broker's log: how much of them can be appended, and why they cannot.

A copy of a log must continue it byte for byte. What arrives is cut to whole records and whole batches, since a part of a batch must
never become visible; the caller keeps the rest, which is bounded: a record or batch that claims to be longer than the limit
is refused before its bytes have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kappamq.config.store import StoreConfig
from kappamq.errors import ForeignBytes
from kappamq.native.interface import KernelModule
from kappamq.native.layout import BLANK_BYTES, SCAN_BLANK, SCAN_EMPTY, SCAN_MORE, Misnumbered
from kappamq.protocol.records.view import Front
from kappamq.store.log.commit_log import CommitLog

_UNIT_BYTES_MAX: Final = 64 << 20


def bytes_of_unit_max(config: StoreConfig) -> int:
    """The longest record or batch that is accepted: a sender with longer ones has other limits than we do."""
    return max(_UNIT_BYTES_MAX, 2 * config.message_bytes_max)


@dataclass(frozen=True, slots=True)
class WholePart:
    size: int  # bytes of whole records and batches
    records: int
    store_ms: int  # of the last record
    ends_file: bool  # the end mark of the file follows


def whole_part(
    module: KernelModule, log: CommitLog, log_offset: int, data: memoryview, unit_bytes_max: int
) -> WholePart:
    """How much of `data` can be appended within the current log file. Raises ForeignBytes if the bytes cannot continue our log."""
    if log_offset != log.end:
        raise ForeignBytes(
            f"bytes from {log_offset} on were received, but the log ends at {log.end}: ask for them from there on"
        )
    room = log.segment_end - log_offset
    there = data[:room]
    size, why, records, store_ms = module.scan(there, log_offset, True)
    at, left = log_offset + size, room - size
    if why == SCAN_BLANK:
        claimed = Front(there[size:]).size
        if claimed != left:
            raise ForeignBytes(
                f"the end mark received at {at} closes {claimed} bytes, but {left} are left of our log file: both brokers need the same "
                f"size of log files (mappedFileSizeCommitLog)"
            )
        return WholePart(size, records, store_ms, True)
    if why != SCAN_MORE:
        found = "zeros" if why == SCAN_EMPTY else "no good record (its lengths, its position or a checksum are wrong)"
        raise ForeignBytes(
            f"the bytes received at {at} are {found}: nothing was taken of {len(data)} bytes from {log_offset} on"
        )
    rest = there[size:]
    claimed = Front(rest).size
    if left < BLANK_BYTES or claimed > left - BLANK_BYTES or len(rest) == left:
        raise ForeignBytes(
            f"what was received at {at if rest else log_offset} does not end within its log file, of which {left} bytes are left: both "
            f"brokers need the same size of log files (mappedFileSizeCommitLog)"
        )
    if max(claimed, len(rest)) > unit_bytes_max:
        raise ForeignBytes(
            f"the record or batch received at {at} is longer than {unit_bytes_max} bytes: no message can be (maxMessageSize)"
        )
    return WholePart(size, records, store_ms, False)


def misnumbered(log_offset: int, wrong: Misnumbered) -> str:
    return (
        f"the record at {log_offset + wrong.at} is message {wrong.number} of queue {wrong.topic}/{wrong.queue_id}, whose next message is "
        f"{wrong.expected}"
    )

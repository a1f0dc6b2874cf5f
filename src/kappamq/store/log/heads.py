"""Reads the first bytes of a record or an end mark."""

from __future__ import annotations

from typing import Final

from kappamq.native.layout import BLANK_BYTES, MAGIC_BLANK

STORED_MS_BYTES: Final = 80
"""The bytes of a record that `stored_ms` needs."""


def is_end_mark(view: bytes | memoryview) -> bool:
    """Whether a log file ends here and the log continues in the next one."""
    return len(view) >= BLANK_BYTES and int.from_bytes(view[4:8], "big", signed=True) == MAGIC_BLANK


def stored_ms(head: bytes | memoryview) -> int:
    """The store time in the first STORED_MS_BYTES of a record."""
    at = 68 if head[39] & 0x10 else 56
    return int.from_bytes(head[at : at + 8], "big")

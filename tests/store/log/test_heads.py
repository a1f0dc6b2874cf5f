"""The first bytes at a place in the log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kappamq.native.layout import MAGIC_BLANK
from kappamq.store.log.heads import STORED_MS_BYTES, is_end_mark, stored_ms
from tests.store.stores import config, opened


def test_an_end_mark_is_told_from_records_and_zeros() -> None:
    assert is_end_mark(struct.pack(">ii", 4096, MAGIC_BLANK) + bytes(100))
    assert not is_end_mark(bytes(100))
    assert not is_end_mark(struct.pack(">ii", 4096, MAGIC_BLANK)[:7]), "cut short"
    assert not is_end_mark(b"")


@pytest.mark.parametrize("born", [bytes(8), bytes(20)], ids=["IPv4", "IPv6"])
def test_the_store_time_is_read_from_the_first_bytes(tmp_path: Path, born: bytes) -> None:
    with opened(config(tmp_path)) as store:
        sys_flag = 0x10 if len(born) == 20 else 0
        at, _number, _size = store.kernel.append("t", 0, 0, sys_flag, 5, born, 0, 0, b"x", b"", 1_234_567)
        store.write(1_234_567)
        assert stored_ms(store.log.slice(at, STORED_MS_BYTES)) == 1_234_567

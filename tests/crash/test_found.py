"""What the crash harness has found, each as a small test of its own: faster than luck."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.native.layout import BLANK_BYTES, MAGIC_BLANK
from kappamq.store.message_store import MessageStore
from tests.store.stores import BOOT, Writer, config, kernels, make, opened


@pytest.mark.parametrize("kind", kernels())
def test_a_file_is_flushed_with_its_end_mark(tmp_path: Path, kind: str) -> None:
    """Power cut, sync flush: the mark was written after the flush was asked for, so nobody synced it, and recovery took the
    zeros there for the end of the log. 2,519 acknowledged messages in later files were gone (seed 1)."""
    store = make(config(tmp_path, flush="sync"), kind)
    store.open(BOOT)
    asked: list[int] = []
    flusher = store._flusher

    class Asked:
        """Looks at what a sync at this very moment would bring to disk."""

        def request(self, fd: int, offset: int) -> None:
            segment_bytes = store.config.segment_bytes
            if offset % segment_bytes == 0 and offset:
                file = next(one for one in store.log.segments() if one.fd == fd)
                written = bytes(file.view).rstrip(b"\0")
                assert written[-4:] == MAGIC_BLANK.to_bytes(4, "big", signed=True)
                assert len(written) >= BLANK_BYTES
                asked.append(offset)
            flusher.request(fd, offset)

        def __getattr__(self, name: str) -> object:
            return getattr(flusher, name)

    store._flusher = Asked()
    writer = Writer(store)
    while store.log.end < 3 * store.config.segment_bytes:
        writer.send(b"x" * 1000)
        store.write(writer.now_ms)
    assert asked == [store.config.segment_bytes * n for n in (1, 2, 3)]
    store._flusher = flusher
    store.close()


def keys_found(store: MessageStore, count: int) -> int:
    return sum(bool(store.index.query("t", f"key{n}", 1, 0, 1 << 60)) for n in range(count))


@pytest.mark.parametrize("kind", kernels())
def test_keys_behind_the_last_index_write_come_back_after_a_crash(tmp_path: Path, kind: str) -> None:
    """kill -9: catching up began one byte behind the last indexed record, where no record begins, and gave up until the next log
    file: their keys were never found again (seed 1)."""
    settings = config(tmp_path)
    with opened(settings, kind, clean=False) as store:
        while store.catching_up():
            store.catch_up()
        writer = Writer(store)
        for number in range(20):
            writer.send(b"body", properties=f"KEYS\x01key{number}\x02".encode())
            store.write(writer.now_ms)
            if number == 9:
                store.write_derived(store.collect())
    with opened(settings, kind) as store:
        while store.catching_up():
            store.catch_up()
            store.write_derived(store.collect())
        assert keys_found(store, 20) == 20

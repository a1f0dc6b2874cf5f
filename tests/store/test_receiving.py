"""Bytes of another broker's log: taken as they are, in whole units, or refused with a reason and nothing changed."""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.config.store import StoreConfig
from kappamq.errors import ForeignBytes, StoreReadOnly
from kappamq.native.layout import BLANK_BYTES, MAGIC_BLANK, TAIL_CRC_BYTES
from kappamq.store import receiving
from kappamq.store.message_store import MessageStore
from kappamq.store.receiving import bytes_of_unit_max
from tests.store.faulty import FaultyFiles, FilesWithFlusher, SlowFlusher
from tests.store.stores import START_MS, Writer, bodies, check, config, kernels, make, opened

KERNELS = kernels()
pytestmark = pytest.mark.parametrize("kind", KERNELS)


def log_bytes(store: MessageStore, start: int = 0, end: int | None = None) -> bytes:
    """What lies in the log, the unused rest of a file included, as a peer sends it."""
    end = store.log.end if end is None else end
    size, found = store.config.segment_bytes, b""
    while start < end:
        found += bytes(store.log.whole_view(start)[: end - start])
        start = min(end, start - start % size + size)
    return found


@contextmanager
def pair(root: Path, kind: str, **changes: Any) -> Iterator[tuple[Writer, MessageStore]]:
    """A store that is written to, and one that is to receive its log."""
    with opened(config(root / "theirs"), kind) as theirs, opened(config(root / "ours", **changes), kind) as ours:
        yield Writer(theirs), ours


def take(store: MessageStore, data: bytes, start: int = 0) -> int:
    """As a stream does: come again with what is left, until nothing more is taken."""
    while (at := store.log.end) < start + len(data):
        end, _waiters = store.receive(at, memoryview(data)[at - start :])
        if end == at:
            return at
    return store.log.end


def fill(writer: Writer, count: int, size: int = 100) -> None:
    for number in range(count):
        writer.send(b"message %d." % number + b"." * size, queue_id=number % 3, properties=b"KEYS\x01k%d" % number)
    writer.write()


def state_of(store: MessageStore) -> list[Any]:
    queues = [store.kernel.queue_state("t", queue_id) for queue_id in range(4)]
    return [
        queues,
        store.log.end,
        store.kernel.append_offset,
        store.last_ms,
        [mark.offset for mark in store.marks.all()],
    ]


def test_a_log_is_the_same_at_the_other_end(tmp_path: Path, kind: str) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 1000)
        writer.batch([b"a", b"b", b"c"], queue_id=1)
        writer.write()
        theirs = writer.store
        assert theirs.log.end > 2 * theirs.config.segment_bytes, "over several files"
        assert take(ours, log_bytes(theirs)) == theirs.log.end
        assert log_bytes(ours) == log_bytes(theirs)
        check(ours, writer)
        assert ours.arrived_count == 1003, "whose entries are to be written in time"
        assert ours.last_ms == writer.now_ms, "message time goes on from here"
        assert [ours.kernel.queue_state("t", n)[:3] for n in range(3)] == [
            theirs.kernel.queue_state("t", n)[:3] for n in range(3)
        ]
    with opened(config(tmp_path / "ours"), kind) as again:
        check(again, writer)
        assert again.index.query("t", "k7", 10, 0, 1 << 60)
        own = Writer(again)
        own.expected = writer.expected
        own.send(b"promoted")
        own.write()
        check(again, own)


@pytest.mark.parametrize("step", [1, 7, 91, 1000])
def test_pieces_of_any_size_are_cut_to_whole_records_and_batches(tmp_path: Path, kind: str, step: int) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 5)
        writer.batch([b"a", b"b", b"c"])
        writer.write()
        before = writer.store.log.end
        fill(writer, 2)
        data = log_bytes(writer.store)
        ends: set[int] = set()
        for arrived in range(step, len(data) + step, step):
            ends.add(take(ours, data[:arrived]))
        assert ours.log.end == len(data)
        batch_begins = max(end for end in ends | {0} if end < before)
        if step == 1:
            assert ours.kernel_module.scan(data[batch_begins:before], batch_begins, True)[2] == 3, (
                "all of the batch at once"
            )
        check(ours, writer)


@pytest.mark.parametrize("piece", ["with it", "alone", "in two"])
def test_an_end_mark_rolls_the_file(tmp_path: Path, kind: str, piece: str) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 20)
        at = writer.store.log.end
        writer.store.roll()
        fill(writer, 20)
        data, file_end = log_bytes(writer.store), writer.store.config.segment_bytes
        if piece == "with it":
            assert ours.receive(0, data[: at + BLANK_BYTES])[0] == file_end
        else:
            assert ours.receive(0, data[:at])[0] == at
            if piece == "in two":
                assert ours.receive(at, data[at : at + 5])[0] == at
            assert ours.receive(at, data[at : at + BLANK_BYTES])[0] == file_end
        assert ours.receive(file_end, data[file_end:])[0] == len(data)
        assert log_bytes(ours) == data
        check(ours, writer)


def refused(store: MessageStore, at: int, data: bytes, match: str) -> None:
    before, file = state_of(store), bytes(store.log.whole_view(0))
    with pytest.raises(ForeignBytes, match=match):
        store.receive(at, data)
    assert state_of(store) == before
    assert bytes(store.log.whole_view(0)) == file, "not a byte was written"
    assert store.failed is None


def test_what_is_not_at_the_end_is_refused(tmp_path: Path, kind: str) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 3)
        data = log_bytes(writer.store)
        refused(ours, 1, data[1:], "from 1 on were received, but the log ends at 0")
        ours.receive(0, data)
        refused(ours, 0, data, f"but the log ends at {len(data)}")


def test_every_flipped_bit_is_refused_or_left_for_later(tmp_path: Path, kind: str) -> None:
    """The tail checksum covers all of a record but its own name; a length that has grown may look like a record that is not all there
    yet."""
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 1, 30)
        data = log_bytes(writer.store)
        covered = len(data) - TAIL_CRC_BYTES
        before, waiting = state_of(ours), 0
        for bit in range(covered * 8):
            wrong = bytearray(data)
            wrong[bit // 8] ^= 1 << bit % 8
            try:
                assert ours.receive(0, wrong) == (0, []), f"bit {bit}"
                waiting += 1
            except ForeignBytes:
                pass
            assert state_of(ours) == before
        assert 0 < waiting < 16, "of the length"
        assert take(ours, data) == len(data)


def test_bytes_that_lie_are_refused(tmp_path: Path, kind: str) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 3)
        data = log_bytes(writer.store)
        size = int.from_bytes(data[:4], "big")
        refused(ours, 0, data + bytes(200), f"at {len(data)} are zeros")
        refused(ours, 0, data[: size - 1] + b"\x07" + data[size:], "at 0 are no good record")
        refused(ours, 0, data[size:], "its position or a checksum")
        refused(ours, 0, data + struct.pack(">ii", 100, MAGIC_BLANK), "end mark received at .* closes 100 bytes")
        refused(ours, 0, struct.pack(">i", 1 << 30) + data[4:8], "does not end within its log file")
        refused(ours, 0, struct.pack(">i", 17) + data[4:91], "no good record")
        refused(ours, 0, b"GET / HTTP/1.1\r\n\r\n", "no good record")
        assert take(ours, data) == len(data), "the right ones are taken still"
        check(ours, writer)


def test_numbers_that_jump_or_come_again_are_refused(tmp_path: Path, kind: str) -> None:
    with pair(tmp_path, kind) as (writer, ours):
        fill(writer, 6)
        data = log_bytes(writer.store)
        first = ours.receive(0, data)[0]
        for wrong in (1, 5):
            with opened(config(tmp_path / f"other{wrong}"), kind) as other:
                # The same log, but for the numbers that come next.
                other.receive(0, data)
                other.kernel.set_queue("t", 0, 0, wrong)
                Writer(other).send(b"wrong")
                other.write(START_MS)
                refused(
                    ours,
                    first,
                    log_bytes(other, first),
                    f"at {first} is message {wrong} of queue t/0, whose next message is 2: the other",
                )
        fill(writer, 6)
        assert take(ours, log_bytes(writer.store)) == writer.store.log.end
        check(ours, writer)


def test_what_can_never_be_whole_is_not_waited_for(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_UNIT_BYTES_MAX", 4096)
    with pair(tmp_path, kind, message_bytes_max=1024) as (writer, ours):
        fill(writer, 1)
        at = writer.store.log.end
        writer.batch([b"." * 1000] * 5)
        writer.write()
        data = log_bytes(writer.store)
        assert ours.receive(0, data[: at + 4096])[0] == at, "so much of a batch may be on its way"
        refused(ours, at, data[at : at + 4097], f"received at {at} is longer than 4096 bytes")
        writer.send(b"." * 5000)
        writer.write()
        claim = log_bytes(writer.store, len(data))[:8]
        refused(ours, at, claim, "is longer than 4096 bytes")
    assert bytes_of_unit_max(StoreConfig(root=tmp_path)) >= 8 << 20


def test_a_batch_that_would_cross_the_end_of_the_file_is_refused(tmp_path: Path, kind: str) -> None:
    with (
        opened(config(tmp_path / "theirs", segment_bytes=128 << 10), kind) as theirs,
        opened(config(tmp_path / "ours", segment_bytes=64 << 10), kind) as ours,
    ):
        writer = Writer(theirs)
        writer.send(b"." * 16000)
        writer.batch([b"." * 10000] * 7)
        writer.write()
        data = log_bytes(theirs)
        at = ours.receive(0, data[:40_000])[0]
        assert 16_000 < at < 17_000
        refused(ours, at, data[at : 64 << 10], "does not end within its log file")


def test_marks_and_waiters_follow(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path / "theirs"), kind) as theirs:
        writer = Writer(theirs)
        fill(writer, 4)
        data = log_bytes(theirs)
    ours = make(config(tmp_path / "ours", flush="sync"), kind, FilesWithFlusher(SlowFlusher))
    ours.open("this boot")
    flusher = SlowFlusher.made
    ours.marks.written.wait(len(data), "written")
    ours.marks.flushed.wait(len(data), "flushed")
    end, waiters = ours.receive(0, data)
    assert waiters == ["written"]
    assert (ours.marks.written.offset, ours.marks.visible.offset) == (end, 0), "shown when the mode says so"
    assert ours.kernel.queue_state("t", 0)[:3] == (0, 0, 2)
    flusher.sync()
    assert ours.flush_done() == ["flushed"]
    assert ours.kernel.queue_state("t", 0)[:3] == (0, 2, 2)
    check(ours, writer)
    ours.close()


def test_a_disk_that_fails_makes_the_store_read_only(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path / "theirs"), kind) as theirs:
        writer = Writer(theirs)
        fill(writer, 4)
        data = log_bytes(theirs)
    files = FaultyFiles()
    ours = make(config(tmp_path / "ours"), kind, files)
    ours.open("this boot")
    files.fail("pwrite", on="commitlog")
    for _ in range(2):
        with pytest.raises(StoreReadOnly, match="writing the log failed"):
            ours.receive(0, data)
    assert bodies(ours) == []
    ours.close()


def test_without_room_for_the_next_file_the_records_are_taken_and_the_mark_is_not(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path / "theirs"), kind) as theirs:
        writer = Writer(theirs)
        fill(writer, 4)
        at = theirs.log.end
        theirs.roll()
        data = log_bytes(theirs)
    files = FaultyFiles()
    ours = make(config(tmp_path / "ours"), kind, files)
    ours.open("this boot")
    files.fail("allocate", code=errno.ENOSPC, times=2)
    assert ours.receive(0, data)[0] == at
    check(ours, writer)
    with pytest.raises(StoreReadOnly, match="next log file could not be made"):
        ours.receive(at, data[at:])
    assert ours.failed is None
    assert ours.receive(at, data[at:])[0] == len(data)
    ours.close()


def test_a_checksum_that_was_made_to_fit_does_not_help_a_wrong_length(tmp_path: Path, kind: str) -> None:
    """A peer that lies on purpose: the body's checksum fits, the lengths inside do not."""
    with (
        opened(config(tmp_path / "theirs", tail_crc=False), kind) as theirs,
        opened(config(tmp_path / "ours"), kind) as ours,
    ):
        writer = Writer(theirs)
        writer.send(b"hello")
        writer.write()
        data = bytearray(log_bytes(theirs))
        body_at = data.index(b"hello")
        data[body_at - 4 : body_at] = (6).to_bytes(4, "big")
        data[8:12] = (zlib.crc32(data[body_at : body_at + 6]) & 0x7FFFFFFF).to_bytes(4, "big")
        refused(ours, 0, bytes(data), "no good record")

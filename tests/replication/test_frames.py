"""Frames between two brokers: what was said is read, in pieces of any size, and what is not said so is refused."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq import native
from kappamq.replication.frames import (
    PIECE_BYTES_MAX,
    BadStream,
    Frames,
    Kind,
    LogPiece,
    Report,
    frame,
    log_frame,
    text_frame,
    values_of,
)
from tests.store.stores import kernels


def trusted() -> Frames:
    frames = Frames(crc32)
    frames.trust()
    return frames


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=300)), max_size=8), st.integers(1, 50))
def test_frames_arrive_in_pieces(said: list[tuple[Kind, bytes]], size: int) -> None:
    stream = b"".join(frame(kind, content, crc32) for kind, content in said)
    frames = trusted()
    heard = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
    assert heard == said


@pytest.mark.parametrize("kernel", kernels())
def test_checksums_are_those_of_zlib_with_every_kernel(kernel: str) -> None:
    checksum = native.load(kernel).crc32
    for size in (0, 1, 7, 64, 5000):
        assert checksum(bytes(range(256)) * 20 if size == 5000 else b"x" * size) == crc32(
            bytes(range(256)) * 20 if size == 5000 else b"x" * size
        )


def test_a_piece_of_the_log() -> None:
    piece = LogPiece(3, 1000, 1010, 990, 500, 1200, b"0123456789")
    ((kind, content),) = trusted().feed(b"".join(log_frame(piece, crc32)))
    assert kind is Kind.LOG
    read = LogPiece.decode(content, crc32)
    assert (read.term, read.offset, read.visible, read.confirmed, read.log_min, read.end) == (
        3,
        1000,
        1010,
        990,
        500,
        1200,
    )
    assert bytes(read.data) == b"0123456789"


def test_damage_anywhere_in_a_piece_is_noticed() -> None:
    good = b"".join(log_frame(LogPiece(3, 1000, 1010, 990, 500, 1200, b"0123456789"), crc32))
    for at in range(8, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(BadStream):
            for _kind, content in trusted().feed(bad):
                LogPiece.decode(content, crc32)


def test_the_largest_piece_fits() -> None:
    piece = LogPiece(0, 0, 0, 0, 0, PIECE_BYTES_MAX, bytes(PIECE_BYTES_MAX))
    ((_kind, content),) = trusted().feed(b"".join(log_frame(piece, crc32)))
    assert len(LogPiece.decode(content, crc32).data) == PIECE_BYTES_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        LogPiece(-1, 0, 0, 0, 0, 10),
        LogPiece(0, -1, 0, 0, 0, 10),
        LogPiece(0, 5, 0, 0, 0, 10, b"123456"),
        LogPiece(0, 0, 11, 0, 0, 10),
        LogPiece(0, 0, 0, 11, 0, 10),
        LogPiece(0, 5, 0, 0, 6, 10),  # a leader does not send what it has deleted
    ],
)
def test_a_piece_that_cannot_be_is_refused(wrong: LogPiece) -> None:
    with pytest.raises(BadStream, match="cannot be"):
        LogPiece.decode(wrong.head(crc32) + bytes(wrong.data), crc32)


def test_reports() -> None:
    report = Report(1, 2, 400, 300, 500)
    assert Report.decode(report.encode()) == report
    for wrong in (Report(0, 0, 10, 11), Report(0, 0, 10, -1)):
        with pytest.raises(BadStream, match="cannot be"):
            Report.decode(wrong.encode())
    with pytest.raises(BadStream, match="40 bytes"):
        Report.decode(b"short")


def test_a_damaged_frame_is_noticed() -> None:
    good = frame(Kind.REPORT, b"something", crc32)
    for at in range(4, len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(BadStream, match="checksum"):
            list(trusted().feed(bad))


def test_nothing_is_buffered_on_the_word_of_a_length() -> None:
    for length in (0, 4, PIECE_BYTES_MAX + (65 << 20), 0xFFFFFFFF):
        with pytest.raises(BadStream, match=f"a frame of {length} bytes"):
            list(trusted().feed(struct.pack(">IIB", length, 0, 6)))


def test_a_stranger_may_send_greetings_only() -> None:
    frames = Frames(crc32)
    with pytest.raises(BadStream, match="are possible here"):
        list(frames.feed(struct.pack(">IIB", 1 << 20, 0, 6)))


def test_an_unknown_type_is_refused() -> None:
    body = b"\x63"
    with pytest.raises(BadStream, match="unknown type 99"):
        list(trusted().feed(struct.pack(">II", 5, crc32(body)) + body))


def test_greetings_are_json_objects() -> None:
    ((_kind, content),) = trusted().feed(text_frame(Kind.HELLO, {"a": 1}, crc32))
    assert values_of(content) == {"a": 1}
    for wrong in (b"{", json.dumps([1]).encode(), b"[" * 100_000, b"\xff"):
        with pytest.raises(BadStream, match="greeting"):
            values_of(wrong)


def test_a_report_alone_is_read_at_once_and_anything_else_is_for_the_frames() -> None:
    report = Report(1, 2, 400, 300, 500)
    good = frame(Kind.REPORT, report.encode(), crc32)
    frames = trusted()
    assert frames.report(good) == report
    assert frames.report(good + good) is None
    assert frames.report(good[:-1]) is None
    assert frames.report(frame(Kind.RAFT, report.encode(), crc32)) is None
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        assert frames.report(bytes(bad)) is None, "the frames say what is wrong with it"
    with pytest.raises(BadStream, match="cannot be"):
        frames.report(frame(Kind.REPORT, Report(0, 0, 10, 11).encode(), crc32))
    list(frames.feed(good[:5]))
    assert frames.report(good) is None, "it is the rest of another frame"

from __future__ import annotations

import random
import struct

import pytest

from kappamq.replication.classic import HEAD, PIECE_BYTES_MAX, Pieces, Reports, beat, begin_at, pieces
from kappamq.replication.frames import BadStream


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    """As a connection may deliver it."""
    parts = []
    while data:
        size = dice.randint(1, 50)
        parts.append(data[:size])
        data = data[size:]
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_pieces_arrive_however_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    log = dice.randbytes(dice.randint(1, 500))
    sent = b"".join(beat(1000) + head + piece for head, piece in pieces(1000, log))
    received, expected, beats, reader = b"", 1000, 0, Pieces()
    for part in cut(sent, dice):
        for offset, data in reader.feed(part):
            assert offset == expected
            beats += not len(data)
            expected += len(data)
            received += data
    assert received == log
    assert beats == 1


def test_pieces_are_small_enough_for_a_slave() -> None:
    log = bytes(2 * PIECE_BYTES_MAX + 1)
    assert [HEAD.unpack(head) for head, _piece in pieces(7, log)] == [
        (7, PIECE_BYTES_MAX), (7 + PIECE_BYTES_MAX, PIECE_BYTES_MAX), (7 + 2 * PIECE_BYTES_MAX, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("head", [(-1, 5), (5, -1)])
def test_a_piece_that_cannot_be_is_refused(head: tuple[int, int]) -> None:
    with pytest.raises(BadStream, match="cannot be"):
        list(Pieces().feed(HEAD.pack(*head)))


def test_only_the_last_whole_report_counts() -> None:
    reports = Reports()
    assert reports.feed(struct.pack(">q", 5)[:3]) is None
    assert reports.feed(struct.pack(">q", 5)[3:] + struct.pack(">qq", 6, 7) + b"\0\0") == 7
    assert reports.feed(struct.pack(">q", 8)[2:]) == 8
    with pytest.raises(BadStream, match="never negative"):
        reports.feed(struct.pack(">q", -8))


def test_an_empty_slave_begins_with_the_last_file() -> None:
    assert begin_at(0, 100, 300, 350) == 300
    assert begin_at(100, 100, 300, 350) == 100
    assert begin_at(350, 100, 300, 350) == 350


@pytest.mark.parametrize(("reported", "why"), [(99, "empty data directory"), (351, "has lost")])
def test_what_the_master_does_not_have_cannot_be_gone_on_from(reported: int, why: str) -> None:
    with pytest.raises(BadStream, match=why):
        begin_at(reported, 100, 300, 350)

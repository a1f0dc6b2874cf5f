"""What is said while a copy is seeded, and its marker: everything comes back as it went, and nothing else is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Refusal
from kappamq.replication.seeding import COPYING, FILLING, Asking, FilePiece, Marker, Offer, check_asking, is_too_old

ASKING = Asking(cluster="c", name="b", group="", who="1", segment_bytes=1000, delay_levels="1s", reaches=2000)
OFFER = Offer(address="h:1", begin=3000, end=4500, files=2, bytes=99)


def test_questions_and_offers_go_over() -> None:
    assert Asking.of(ASKING.values()) == ASKING
    assert Offer.of(OFFER.values()) == OFFER


@pytest.mark.parametrize(
    "wrong", [{"begin": 5000}, {"files": 100_000}, {"files": 0, "bytes": 1}, {"bytes": -1}, {"end": "x"}, {"terms": 5}]
)
def test_an_offer_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(BadStream):
        Offer.of({**OFFER.values(), **wrong})


def test_when_a_log_cannot_be_continued() -> None:
    assert not is_too_old(0, 0), "an empty copy of a whole log"
    assert is_too_old(0, 3000)
    assert is_too_old(3000, 3000)
    assert not is_too_old(4000, 3000)


@pytest.mark.parametrize(
    ("differs", "text"),
    [
        ({"cluster": "x"}, "brokerClusterName"),
        ({"name": "x"}, "brokerName"),
        ({"group": "x"}, "dLegerGroup"),
        ({"segment_bytes": 5}, "mappedFileSizeCommitLog is 5, ours 1000"),
        ({"delay_levels": "2s"}, "messageDelayLevel"),
        ({"who": "0"}, "each copy needs"),
        ({"group_id": "theirs"}, "another founding"),
    ],
)
def test_a_copy_of_somebody_else_is_told_why(differs: dict[str, object], text: str) -> None:
    ours = replace(ASKING, who="0", group_id="ours")
    check_asking(ASKING, ours)
    with pytest.raises(Refusal, match=text):
        check_asking(replace(ASKING, **differs), ours)  # type: ignore[arg-type]


def test_pieces_of_files_go_over() -> None:
    for piece in (FilePiece("topics.json", 5, 10, b"abcde"), FilePiece("empty.json", 0, 0, b"")):
        came = FilePiece.decode(piece.encode())
        assert (came.name, came.at, came.size, bytes(came.data)) == (piece.name, piece.at, piece.size, piece.data)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "ä", "x" * 201])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(BadStream, match="name"):
        FilePiece.decode(FilePiece(name, 0, 1, b"x").encode())


@pytest.mark.parametrize(("at", "size"), [(-1, 5), (5, 5), (0, 1 << 40), (0, -1), (1 << 62, 5)])
def test_bytes_that_are_not_in_the_file_are_refused(at: int, size: int) -> None:
    with pytest.raises(BadStream, match="cannot be"):
        FilePiece.decode(FilePiece("a", at, size, b"x").encode())
    with pytest.raises(BadStream, match="head"):
        FilePiece.decode(b"xx")
    with pytest.raises(BadStream, match="cannot be"):
        FilePiece.decode(FilePiece("a", 0, 5, b"").encode())  # it would come for ever


def test_a_marker_comes_back() -> None:
    for marker in (
        Marker(state=COPYING, aside="before-seeding-1"),
        Marker(state=FILLING, leader="h:1", begin=5, until=9),
    ):
        assert Marker.decode(marker.encode()) == marker


def test_a_marker_that_was_changed_says_so() -> None:
    good = Marker(state=FILLING, begin=5, until=9).encode()
    for bad in (b"", b"{", b"[]", good[:-9], good.replace(b"9", b"8", 1), Marker(state="x").encode(),
                Marker(state=FILLING, begin=9, until=5).encode()):  # fmt: skip
        with pytest.raises(ValueError, match=r"JSON|format|checksum|says"):
            Marker.decode(bad)

"""The vote file survives what a disk does to it, and whatever else is found there is refused with a reason."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.raft import Ballot, MemberId
from kappamq.replication.vote_file import (
    FILE_BYTES,
    FORMAT,
    MAGIC,
    SLOT_BYTES,
    Vote,
    decode,
    decode_slot,
    encode_slot,
    writes,
)

A, B = MemberId("broker-a", 1), MemberId("broker-b", 7)
OLD = Vote(counter=4, ballot=Ballot(3, None), member=A, group_id="group")
NEW = OLD.with_ballot(Ballot(5, B))


def file_of(vote: Vote) -> bytearray:
    data = bytearray(FILE_BYTES)
    for offset, slot in writes(vote):
        data[offset : offset + len(slot)] = slot
    return data


@given(
    st.builds(
        Vote,
        counter=st.integers(0, 2**63 - 1),
        ballot=st.builds(
            Ballot,
            st.integers(0, 2**63 - 1),
            st.none() | st.builds(MemberId, st.text(max_size=50), st.integers(0, 2**63 - 1)),
        ),
        member=st.builds(MemberId, st.text(max_size=50), st.integers(0, 2**63 - 1)),
        group_id=st.text(max_size=50),
    )
)
def test_what_is_written_is_read(vote: Vote) -> None:
    assert decode(bytes(file_of(vote))) == vote


@pytest.mark.parametrize("sectors", range(9))
def test_every_torn_write(sectors: int) -> None:
    """Each of the two writes may stop at any sector, and sectors may come in any order: here from the front, and from behind."""
    for number in (0, 1):
        for backwards in (False, True):
            data = file_of(OLD)
            for offset, slot in writes(NEW)[:number]:
                data[offset : offset + SLOT_BYTES] = slot
            offset, slot = writes(NEW)[number]
            for sector in range(sectors) if not backwards else range(7, 7 - sectors, -1):
                at = sector * 512
                data[offset + at : offset + at + 512] = slot[at : at + 512]
            found = decode(bytes(data))
            assert found in (OLD, NEW)
            if number == 1:
                assert found == NEW, "the first write was done: whoever saw it may have been told"


def test_a_slot_that_is_damaged_later_has_its_twin() -> None:
    for start in (0, SLOT_BYTES):
        data = file_of(NEW)
        data[start + 60] ^= 1
        assert decode(bytes(data)) == NEW


def test_a_lost_vote_is_said() -> None:
    data = file_of(NEW)
    data[60] ^= 1
    data[SLOT_BYTES + 60] ^= 1
    with pytest.raises(ValueError, match="slot 1: checksum mismatch; slot 2: checksum mismatch"):
        decode(bytes(data))
    with pytest.raises(ValueError, match="slot 1: it is empty"):
        decode(bytes(FILE_BYTES))
    with pytest.raises(ValueError, match="slot 1: it has 0 bytes"):
        decode(b"")


def slot_with(text: bytes, *, magic: bytes = MAGIC, version: int = FORMAT) -> bytes:
    length = struct.pack(">H", len(text))
    head = struct.pack(">4sH", magic, version) + length + struct.pack(">I", zlib.crc32(length + text))
    return (head + text).ljust(SLOT_BYTES, b"\0")


GOOD = {"counter": 1, "term": 2, "votedFor": None, "member": "a", "incarnation": 1, "group": "g"}


@pytest.mark.parametrize(
    ("slot", "reason"),
    [
        (slot_with(b"{}", magic=b"WHAT"), "begins with b'WHAT'"),
        (slot_with(b"{}", version=2), "format 2"),
        (slot_with(b"{"), "not JSON"),
        (slot_with(b"[" * 3000), "not JSON"),
        (slot_with(b"[]"), "not a JSON object"),
        *(
            (slot_with(json.dumps({**GOOD, name: value}).encode()), name if name != "incarnation" else "member")
            for name, value in [
                ("counter", -1),
                ("counter", True),
                ("term", 2**63),
                ("term", "2"),
                ("votedFor", "b"),
                ("votedFor", ["b"]),
                ("votedFor", ["b", -1]),
                ("member", 5),
                ("incarnation", None),
                ("group", None),
            ]
        ),
    ],
)
def test_what_is_no_vote(slot: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_slot(slot)
    assert decode_slot(slot_with(json.dumps(GOOD).encode())).ballot == Ballot(2, None)


@given(st.binary(max_size=FILE_BYTES + 10))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_names_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    with pytest.raises(ValueError, match="has 513 bytes"):
        encode_slot(Vote(counter=1, ballot=Ballot(1, None), member=MemberId("x" * 513, 1), group_id="g"))


def test_a_term_never_goes_back() -> None:
    with pytest.raises(AssertionError, match="5 -> 4"):
        NEW.with_ballot(Ballot(4, None))

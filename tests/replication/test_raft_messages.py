"""What members say goes over and comes back; what no member would say is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.raft import MemberId, Members, TermRecord
from kappamq.raft import messages as raft
from kappamq.replication.frames import BadStream
from kappamq.replication.raft_messages import decode, encode

A, B = MemberId("a", 1), MemberId("b", 170)
RECORDS = (TermRecord(10, 2, Members(frozenset({A, B}), frozenset({MemberId("c", 3)}))),)
MESSAGES: list[raft.Message] = [
    raft.PreVote(A, B, 1, 2, 3),
    raft.PreVoteAnswer(A, B, 1, True),
    raft.Vote(A, B, 1, 2, 3, False),
    raft.VoteAnswer(A, B, 1, False),
    raft.Beat(A, B, 1, 2, 3, 4),
    raft.Position(A, B, 1, 2, 3, 4),
    raft.Diverged(A, B, 1, 2, 3, 4, 5),
    raft.Append(A, B, 1, 2, 10, 13, 1, RECORDS, 4),
    raft.Append(A, B, 1, 2, 10, 13, 1, (), 4),
    raft.Report(A, B, 1, 2, 3, 4),
    raft.Report(MemberId("n" * 64, 1), B, 1, 2, 3, 4),
    raft.TimeoutNow(A, B, 1),
    raft.Join(A, B, 0),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_go_over_and_come_back(message: raft.Message) -> None:
    data = b"xyz" if isinstance(message, raft.Append) else b""
    came, behind, log_min, now_ms = decode(encode(message, data))
    assert log_min == now_ms == 0
    assert came == message
    assert type(came) is type(message)
    assert bytes(behind) == data


def test_where_a_log_begins_and_what_a_clock_shows_is_said_beside_the_message() -> None:
    beat = raft.Beat(A, B, 3, 1, 20, 10)
    assert decode(encode(beat, log_min=1 << 40)) == (beat, b"", 1 << 40, 0)
    assert decode(encode(beat, now_ms=1 << 41)) == (beat, b"", 0, 1 << 41)
    join = raft.Join(A, B, 0)
    assert decode(encode(join, log_min=1 << 40, now_ms=5)) == (join, b"", 1 << 40, 5)
    for wrong in (-1, 1 << 62, True, "5"):
        with pytest.raises(BadStream, match="logMin"):
            decode(encode(join, log_min=wrong))  # type: ignore[arg-type]
        with pytest.raises(BadStream, match="nowMs"):
            decode(encode(join, now_ms=wrong))  # type: ignore[arg-type]


def test_every_message_there_is_was_tried() -> None:
    import typing

    assert {type(message) for message in MESSAGES} == set(typing.get_args(raft.Message))


def packed(values: object, data: bytes = b"") -> bytes:
    head = json.dumps(values).encode()
    return struct.pack(">I", len(head)) + head + data


BEAT = {"kind": "Beat", "source": ["a", 1], "target": ["b", 1], "term": 1, "stream": 0, "sent": 0, "confirmed": 0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00",
        struct.pack(">I", 1 << 30),
        packed([]),
        packed({"kind": "Other"}),
        packed({**BEAT, "more": 1}),
        packed({**BEAT, "term": -1}),
        packed({**BEAT, "term": True}),
        packed({**BEAT, "term": 1 << 62}),
        packed({**BEAT, "source": "a"}),
        packed(BEAT, b"behind"),
        encode(MESSAGES[7], b"too many bytes"),
        packed({"kind": "Append"}),
    ],
)
def test_what_no_member_says_is_refused(content: bytes) -> None:
    with pytest.raises(BadStream):
        decode(content)


PACKED = [encode(message, b"xyz" if isinstance(message, raft.Append) else b"") for message in MESSAGES[4:10]]


@given(st.sampled_from(PACKED), st.integers(0, 60), st.integers(0, 255))
def test_a_changed_byte_makes_another_message_or_none(content: bytes, at: int, byte: int) -> None:
    """Nothing but a refusal, or a message that could have been said: every number within its bounds, every name a text."""
    changed = bytearray(content)
    changed[at % len(content)] = byte
    try:
        said = decode(bytes(changed))
    except BadStream:
        return
    assert decode(encode(said.message, said.data, said.log_min, said.now_ms)) == said


@pytest.mark.parametrize("size", range(4, 60))
def test_a_head_that_is_cut_short_is_refused(size: int) -> None:
    report = encode(raft.Report(A, B, 1, 2, 3, 4))
    with pytest.raises(BadStream):
        decode(struct.pack(">I", size) + report[4 : 4 + size])


def test_numbers_that_nothing_exceeds_and_names_that_are_no_text_are_refused() -> None:
    report = encode(raft.Report(A, B, 1, 2, 3, 4))
    with pytest.raises(BadStream, match="above"):
        decode(report[:-8] + struct.pack(">Q", 1 << 62))
    with pytest.raises(BadStream):
        decode(report.replace(b"b", b"\xff"))


@given(st.binary(max_size=200))
def test_noise_is_refused_or_could_have_been_said(noise: bytes) -> None:
    try:
        said = decode(noise)
    except BadStream:
        return
    assert decode(encode(said.message, said.data, said.log_min, said.now_ms)) == said


@pytest.mark.parametrize("name", ["", "a b", "\ud800", "\x1b[31m", "n" * 65])
@pytest.mark.parametrize("kind", [raft.PreVote, raft.Report])
def test_names_that_no_member_can_have_are_refused(kind: type[raft.Message], name: str) -> None:
    """They could not be saved in a vote or with a term, and a member that cannot save its vote stops taking part."""
    message = next(message for message in MESSAGES if type(message) is kind)._replace(source=MemberId(name, 1))
    try:
        content = encode(message)
    except UnicodeEncodeError:
        return  # no binary head can hold it
    with pytest.raises(BadStream, match=r"a name that no member can have|makes no sense"):
        decode(content)

"""Bytes of the log that a copy with damage in its own log requests from another copy.

The request (`RangeQuestion`) names a range between two record boundaries. The checksums of the bytes on both sides of it show that both
copies have the same log. The answer is a WELCOME, followed by pieces (`RangePiece`) of whole records until the range is complete.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Self

from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Refusal, known_fields

NEIGHBOUR_BYTES: Final = 64
"""How many bytes on each side of the range, at most, must be the same in both logs."""


@dataclass(frozen=True, kw_only=True)
class RangeQuestion:
    cluster: str
    name: str  # name of the brokers
    group: str  # Raft group; "": none
    group_id: str  # which founding of the group
    who: str  # member, or broker id
    segment_bytes: int
    start: int = 0
    end: int = 0
    before: int = 0  # length of the bytes before the range that have this checksum
    before_crc: int = 0
    behind: int = 0  # the same for the bytes behind it
    behind_crc: int = 0
    nonce: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        question = cls(**known_fields(cls, values))
        size = question.segment_bytes
        if (
            not size > 0
            or not question.start < question.end <= question.start - question.start % size + size
            or max(question.before, question.behind) > NEIGHBOUR_BYTES
            or question.before > question.start
        ):
            raise BadStream(f"nobody can ask for the bytes {question.start} to {question.end} of the log")
        return question

    def values(self) -> dict[str, Any]:
        return asdict(self)


def check_question(question: RangeQuestion, ours: RangeQuestion) -> None:
    """Check that the asking broker is a copy of the same log. Raises Refusal, whose text is for the operators of both."""
    for theirs, mine, setting in (
        (question.cluster, ours.cluster, "brokerClusterName"),
        (question.name, ours.name, "brokerName"),
        (question.group, ours.group, "dLegerGroup"),
        (question.group_id, ours.group_id, "founding of the group"),
        (question.segment_bytes, ours.segment_bytes, "mappedFileSizeCommitLog"),
    ):
        if theirs != mine:
            raise Refusal(f"its {setting} is {theirs!r}, ours {mine!r}: it must be the same on all copies")
    if question.who == ours.who:
        raise Refusal(f"both say that they are {ours.who}: a copy does not ask itself")


@dataclass(frozen=True, slots=True)
class RangePiece:
    """Whole records from `offset` on; the last piece of a file also has what follows its last record."""

    HEAD: ClassVar = struct.Struct(">q")

    offset: int
    data: bytes | memoryview

    def encode(self) -> bytes:
        return b"".join((self.HEAD.pack(self.offset), self.data))

    @classmethod
    def decode(cls, content: bytes) -> Self:
        if len(content) <= cls.HEAD.size:
            raise BadStream(f"a piece of the log of {len(content)} bytes: nothing is in it")
        return cls(cls.HEAD.unpack_from(content)[0], memoryview(content)[cls.HEAD.size :])

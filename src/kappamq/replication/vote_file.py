"""The vote file: a member's ballot and identity. Two slots of 4,096 bytes with the same content.

New content goes into the first slot, which is fsynced, and then into the second one, which is fsynced, too; only then may it be sent to
anyone. So a torn write is harmless: the intact slot has either the previous content, which is all that others know of, or the new one.
And if the disk damages a slot later, the other one has the same content: an older vote never passes for the last one.

    4 bytes  "KQVT"
    2        format, 1
    2        length of the text
    4        CRC-32 of length and text
    ...      JSON text; zeros up to 4,096 bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

from kappamq.raft import Ballot, MemberId

MAGIC: Final = b"KQVT"
FORMAT: Final = 1
SLOT_BYTES: Final = 4096
FILE_BYTES: Final = 2 * SLOT_BYTES
NUMBER_MAX: Final = (1 << 63) - 1
NAME_BYTES_MAX: Final = 512
_HEAD = struct.Struct(">4sHHI")
_LENGTH = struct.Struct(">H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """`counter` grows with every write. `member`: the owner of the ballot."""

    counter: int
    ballot: Ballot
    member: MemberId
    group_id: str

    def with_ballot(self, ballot: Ballot) -> Vote:
        assert ballot.term >= self.ballot.term, f"a term never goes back: {self.ballot.term} -> {ballot.term}"
        return replace(self, counter=self.counter + 1, ballot=ballot)


def writes(vote: Vote) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """Return two writes (file offset, bytes): do the first and fsync, then the second and fsync. Raises ValueError for too long a name."""
    slot = encode_slot(vote)
    return (0, slot), (SLOT_BYTES, slot)


def encode_slot(vote: Vote) -> bytes:
    for text in (vote.member.name, vote.group_id, vote.ballot.voted_for.name if vote.ballot.voted_for else ""):
        if len(text.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"a name has {len(text.encode())} bytes, {NAME_BYTES_MAX} are allowed: {text[:40]!r}...")
    voted_for = vote.ballot.voted_for
    values = {
        "counter": vote.counter,
        "term": vote.ballot.term,
        "votedFor": [voted_for.name, voted_for.incarnation] if voted_for is not None else None,
        "member": vote.member.name,
        "incarnation": vote.member.incarnation,
        "group": vote.group_id,
    }
    content = json.dumps(values, ensure_ascii=False).encode()
    head = _HEAD.pack(MAGIC, FORMAT, len(content), zlib.crc32(_LENGTH.pack(len(content)) + content))
    return (head + content).ljust(SLOT_BYTES, b"\0")


def decode(data: bytes) -> Vote:
    """Return the last content of a vote file. Raises ValueError with the reasons if neither slot has one: the vote is lost.

    A member without its vote must not vote: it comes back under a new incarnation."""
    votes, reasons = [], []
    for number, start in enumerate((0, SLOT_BYTES), 1):
        try:
            votes.append(decode_slot(data[start : start + SLOT_BYTES]))
        except ValueError as error:
            reasons.append(f"slot {number}: {error}")
    if not votes:
        raise ValueError("; ".join(reasons))
    return max(votes, key=lambda vote: vote.counter)


def decode_slot(data: bytes) -> Vote:
    """Raises ValueError with the reason."""
    if len(data) != SLOT_BYTES:
        raise ValueError(f"it has {len(data)} bytes instead of {SLOT_BYTES}")
    magic, version, length, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("it is empty" if not any(data) else f"it begins with {magic!r} instead of {MAGIC!r}")
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this version knows {FORMAT}")
    text = data[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(_LENGTH.pack(length) + text) != crc:
        raise ValueError("checksum mismatch")
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    voted_for = values.get("votedFor")
    return Vote(
        counter=_number(values.get("counter"), "counter"),
        ballot=Ballot(
            _number(values.get("term"), "term"), None if voted_for is None else member_from(voted_for, "votedFor")
        ),
        member=member_from([values.get("member"), values.get("incarnation")], "member"),
        group_id=_text(values.get("group"), "group"),
    )


def member_from(value: Any, what: str) -> MemberId:
    """Parse a member written as [name, incarnation]. Raises ValueError."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{what} is no member, which is [name, incarnation]")
    return MemberId(_text(value[0], what), _number(value[1], what))


def _number(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{what} is missing or not an integer")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is missing or not a string")
    return value

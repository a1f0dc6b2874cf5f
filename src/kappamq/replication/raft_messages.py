"""Messages between members of a Raft group, as the content of a frame: a head, and for an `Append` the bytes that it names.
Besides the message, the head has the beginning of the sender's log ("logMin") and its clock ("nowMs"), or 0: the core knows
neither files nor the time of day.

length  u32   of the head
head          the messages of every turn, `Append` without term records, `Report` and `Beat`: kind u8 (1, 2, 3), the length of the
              source u8, source, target, logMin u64, nowMs u64, and the numbers of the message u64, in its order; a member is its
              incarnation u64 and its name (a target's name ends where the numbers begin).
              All others: JSON, {"kind": ..., the fields of the message}; a member is [name, incarnation], a term record
              [start, term, voters, learners]
bytes
"""

from __future__ import annotations

import json
import struct
import typing
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kappamq.config.copies import MEMBER_ID
from kappamq.raft import MemberId, Members, Message, TermRecord
from kappamq.raft import messages as raft
from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import MemberHello
from kappamq.replication.vote_file import member_from

_LENGTH: Final = struct.Struct(">I")
_HEAD_BYTES_MAX: Final = 64 << 10
_NUMBER_MAX: Final = (1 << 62) - 1
_TERMS_AHEAD_MAX: Final = 1 << 20  # how far a member that was away may be behind: a term lasts for most of a second
_CLOCKS_DIFFER_MS: Final = 24 * 60 * 60 * 1000  # incarnations are times
_LOG_MIN: Final = "logMin"
_NOW_MS: Final = "nowMs"
_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in typing.get_args(raft.Message)}
_INCARNATION: Final = struct.Struct(">Q")
_START: Final = struct.Struct(">BB")
_NUMBERS: Final[dict[int, Any]] = {1: raft.Append, 2: raft.Report, 3: raft.Beat}
_NUMBER_OF: Final[dict[type, int]] = {kind: number for number, kind in _NUMBERS.items()}
# logMin, nowMs, and the numbers of the message
_PACKED_NUMBERS: Final = {1: struct.Struct(">8Q"), 2: struct.Struct(">6Q"), 3: struct.Struct(">6Q")}


class Said(NamedTuple):
    message: Message
    data: memoryview
    log_min: int = 0  # where the sender's log begins; 0: not given
    now_ms: int = 0  # the sender's clock; 0: not given


def encode(message: Message, data: bytes | memoryview = b"", log_min: int = 0, now_ms: int = 0) -> bytes:
    """`log_min`, `now_ms`: sent beside the message."""
    head = _packed(message, log_min, now_ms) or _text(message, log_min, now_ms)
    return b"".join((_LENGTH.pack(len(head)), head, data))


def decode(content: bytes) -> Said:
    """Raises BadStream for anything that a member would not send."""
    if len(content) < _LENGTH.size:
        raise BadStream("a message of a member without a length")
    (size,) = _LENGTH.unpack_from(content)
    if not 0 < size <= min(_HEAD_BYTES_MAX, len(content) - _LENGTH.size):
        raise BadStream(f"a message of a member whose head has {size} of {len(content)} bytes")
    data = memoryview(content)[_LENGTH.size + size :]
    head = content[_LENGTH.size : _LENGTH.size + size]
    kind = _NUMBERS.get(head[0])
    try:
        said = _read_packed(kind, head, data) if kind is not None else _read_text(head, data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error) as error:
        raise BadStream(f"a message of a member that makes no sense: {error}") from None
    message = said.message
    if isinstance(message, raft.Append):
        if len(data) != message.end - message.start:
            raise BadStream(f"an append of {message.end - message.start} bytes comes with {len(data)}")
    elif len(data):
        raise BadStream(f"{type(message).__name__} comes with {len(data)} bytes")
    return said


# -- binary heads ----------------------------------------------------------------------------------------------------------


def _packed(message: Message, log_min: int, now_ms: int) -> bytes | None:
    """None for a message that is sent as JSON."""
    number = _NUMBER_OF.get(type(message))
    if number is None:
        return None
    numbers: tuple[Any, ...] = message[2:]
    if isinstance(message, raft.Append):
        if message.records:
            return None
        numbers = (*message[2:7], message.confirmed)
    source, target = _member_bytes(message.source), _member_bytes(message.target)
    return b"".join(
        (_START.pack(number, len(source)), source, target, _PACKED_NUMBERS[number].pack(log_min, now_ms, *numbers))
    )


def _read_packed(kind: Any, head: bytes, data: memoryview) -> Said:
    _kind, size = _START.unpack_from(head)
    form = _PACKED_NUMBERS[head[0]]
    begin, at = _START.size + size, len(head) - form.size
    if at < begin:
        raise ValueError(f"a head of {len(head)} bytes")
    source, target = _member_of(head[_START.size : begin]), _member_of(head[begin:at])
    log_min, now_ms, *numbers = form.unpack_from(head, at)
    if max(log_min, now_ms, *numbers) > _NUMBER_MAX:
        raise ValueError(f"a number above {_NUMBER_MAX}")
    if kind is raft.Append:
        numbers.insert(-1, ())
    return Said(kind(source, target, *numbers), data, log_min, now_ms)


@lru_cache(maxsize=64)
def _member_bytes(member: MemberId) -> bytes:
    return _INCARNATION.pack(member.incarnation) + member.name.encode()


@lru_cache(maxsize=64)
def _member_of(packed: bytes) -> MemberId:
    (incarnation,) = _INCARNATION.unpack_from(packed)
    return _named([packed[_INCARNATION.size :].decode(), incarnation], "a member")


def _named(value: Any, what: str) -> MemberId:
    """A member as another broker names it. What could not be written into our own files must not become part of a ballot or a term."""
    member = member_from(value, what)
    if not MEMBER_ID.fullmatch(member.name):
        raise ValueError(f"{what} has a name that no member can have")
    return member


# -- JSON heads ------------------------------------------------------------------------------------------------------------


def _text(message: Message, log_min: int, now_ms: int) -> bytes:
    values = {name: _written(value) for name, value in message._asdict().items()}
    if log_min:
        values[_LOG_MIN] = log_min
    if now_ms:
        values[_NOW_MS] = now_ms
    return json.dumps({"kind": type(message).__name__, **values}, separators=(",", ":")).encode()


def _read_text(head: bytes, data: memoryview) -> Said:
    values: Any = json.loads(head)
    kind = _KINDS[values.pop("kind")]
    log_min, now_ms = (_number(name, values.pop(name, 0)) for name in (_LOG_MIN, _NOW_MS))
    if values.keys() != set(kind._fields):
        raise ValueError(f"its fields are {', '.join(values)}")
    return Said(kind(**{name: _read(name, value) for name, value in values.items()}), data, log_min, now_ms)


def check_speaker(message: Message, hello: MemberHello, term: int, now_ms: int) -> None:
    """Check that the member of this greeting may send us this message; our term is `term`. Raises BadStream.

    Terms and incarnations are permanent and only grow: one that cannot be exceeded would be the end of the group."""
    source = message.source
    if source.name != hello.member:
        raise BadStream(f"member {hello.member} speaks for {source.name}")
    if hello.incarnation and source.incarnation != hello.incarnation:
        raise BadStream(f"{MemberId(hello.member, hello.incarnation)} speaks for {source}")
    if source.incarnation > now_ms + _CLOCKS_DIFFER_MS:
        raise BadStream(f"the incarnation of {source} is a time that is more than a day ahead: are the clocks right?")
    if message.term > term + _TERMS_AHEAD_MAX:
        raise BadStream(f"{source} speaks of term {message.term}, and this member is in term {term}")


def _written(value: Any) -> Any:
    if isinstance(value, MemberId):
        return list(value)
    if isinstance(value, tuple):
        return [
            [record.start, record.term, _listed(record.members.voters), _listed(record.members.learners)]
            for record in value
        ]
    return value


def _listed(members: frozenset[MemberId]) -> list[list[str | int]]:
    return [list(member) for member in sorted(members)]


def _read(name: str, value: Any) -> Any:
    if name in ("source", "target"):
        return _named(value, name)
    if name in ("granted", "forced"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
        return value
    if name == "records":
        return tuple(_record(record) for record in value)
    return _number(name, value)


def _record(value: Any) -> TermRecord:
    start, term, voters, learners = value
    members = Members(
        frozenset(_named(member, "voter") for member in voters),
        frozenset(_named(member, "learner") for member in learners),
    )
    return TermRecord(_number("start", start), _number("term", term), members)


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} is {value!r:.40}")
    return value

"""What members of a Raft group say to each other, as the content of a frame: a JSON head, and behind an `Append` the bytes it names.
Beside the message the head may say where the log of the one who speaks begins ("logMin"), and what its clock shows ("nowMs", to those
who understand it): the core knows neither files nor the time of day.

length  u32   of the head
head          {"kind": ..., the fields of the message}; a member is [name, incarnation], a term record [start, term, voters, learners]
bytes
"""

from __future__ import annotations

import json
import struct
import typing
from typing import Any, Final, NamedTuple

from kappamq.raft import MemberId, Members, Message, TermRecord
from kappamq.raft import messages as raft
from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import MemberHello
from kappamq.replication.vote_file import member_from

_LENGTH: Final = struct.Struct(">I")
_HEAD_BYTES_MAX: Final = 64 << 10
_NUMBER_MAX: Final = (1 << 62) - 1
_TERMS_AHEAD_MAX: Final = 1 << 20  # a member that was away: a term takes an election, and so most of a second
_CLOCKS_DIFFER_MS: Final = 24 * 60 * 60 * 1000  # incarnations are times
_LOG_MIN: Final = "logMin"
_NOW_MS: Final = "nowMs"
_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in typing.get_args(raft.Message)}


class Said(NamedTuple):
    message: Message
    data: memoryview
    log_min: int = 0  # where the log of the one who speaks begins, if it says so
    now_ms: int = 0  # what its clock shows, if it says so


def encode(message: Message, data: bytes | memoryview = b"", log_min: int = 0, now_ms: int = 0) -> bytes:
    """`log_min`, `now_ms`: said beside the message."""
    values = {name: _written(value) for name, value in message._asdict().items()}
    if log_min:
        values[_LOG_MIN] = log_min
    if now_ms:
        values[_NOW_MS] = now_ms
    head = json.dumps({"kind": type(message).__name__, **values}, separators=(",", ":")).encode()
    return b"".join((_LENGTH.pack(len(head)), head, data))


def decode(content: bytes) -> Said:
    """Raises BadStream for anything that no member would say."""
    if len(content) < _LENGTH.size:
        raise BadStream("a message of a member without a length")
    (size,) = _LENGTH.unpack_from(content)
    if not 0 < size <= min(_HEAD_BYTES_MAX, len(content) - _LENGTH.size):
        raise BadStream(f"a message of a member whose head has {size} of {len(content)} bytes")
    data = memoryview(content)[_LENGTH.size + size :]
    try:
        values: Any = json.loads(content[_LENGTH.size : _LENGTH.size + size])
        kind = _KINDS[values.pop("kind")]
        log_min, now_ms = (_number(name, values.pop(name, 0)) for name in (_LOG_MIN, _NOW_MS))
        if values.keys() != set(kind._fields):
            raise ValueError(f"its fields are {', '.join(values)}")
        message: Message = kind(**{name: _read(name, value) for name, value in values.items()})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadStream(f"a message of a member that makes no sense: {error}") from None
    if isinstance(message, raft.Append):
        if len(data) != message.end - message.start:
            raise BadStream(f"an append of {message.end - message.start} bytes comes with {len(data)}")
    elif len(data):
        raise BadStream(f"{type(message).__name__} comes with {len(data)} bytes")
    return Said(message, data, log_min, now_ms)


def check_speaker(message: Message, hello: MemberHello, term: int, now_ms: int) -> None:
    """Whether the member of this greeting would say that to us, whose term is `term`. Raises BadStream.

    A term, or the incarnation of a member, is kept for ever and only grows: one that nothing exceeds would end the group."""
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
        return member_from(value, name)
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
        frozenset(member_from(member, "voter") for member in voters),
        frozenset(member_from(member, "learner") for member in learners),
    )
    return TermRecord(_number("start", start), _number("term", term), members)


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} is {value!r:.40}")
    return value

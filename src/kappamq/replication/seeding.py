"""How a follower gets what its leader's log does not contain any more: snapshots first, and then a log that begins where the leader's does.

Before a follower opens its store, it asks (`Asking`) whether its log can be continued. The leader's answer (`Offer`) is a WELCOME that
says yes, or how many snapshot files follow; each is sent in pieces (`FilePiece`). Meanwhile the follower's directory contains
a marker file (`Marker`): such a store is incomplete, and may only follow a leader.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Self

from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Refusal, known_fields

FILES_MAX: Final = 1000
FILE_BYTES_MAX: Final = 1 << 30
MARKER_NAME: Final = "kappamq.seeding"
MARKER_BYTES_MAX: Final = 64 << 10
WANTED, COPYING, FILLING = "wanted", "copying", "filling"
_STATES: Final = (WANTED, COPYING, FILLING)
_FORMAT: Final = 1
_WHO_CHARACTERS_MAX: Final = 255
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The question of a broker that has not opened its store yet."""

    cluster: str
    name: str
    group: str  # Raft group; "": a slave
    who: str  # member, or broker id
    segment_bytes: int
    delay_levels: str
    reaches: int  # its log files hold nothing from here on
    wanted: int = 0  # 1: its store is unusable
    nonce: str = ""
    group_id: str = ""  # which founding of the group its data belongs to; "": no data, or unknown

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(**known_fields(cls, values))

    def values(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The leader's answer. The log for its snapshots begins at `begin` and must reach `end`, where the leader's log ended."""

    address: str
    begin: int
    end: int
    files: int  # how many follow; 0: none needed
    bytes: int  # of all of them
    terms: str = ""  # for a Raft group: the content of a terms file with only its base
    proof: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        offer = cls(**known_fields(cls, values))
        if offer.begin > offer.end or offer.files > FILES_MAX or offer.bytes > offer.files * FILE_BYTES_MAX:
            raise BadStream(
                f"an offer that cannot be: {offer.files} files of {offer.bytes} bytes, log from {offer.begin} to {offer.end}"
            )
        return offer

    def values(self) -> dict[str, Any]:
        return asdict(self)


def is_too_old(reaches: int, log_min: int) -> bool:
    """Whether a log that ends at `reaches` cannot be continued by one that begins at `log_min`."""
    return log_min > 0 and reaches <= log_min


def check_asking(asking: Asking, ours: Asking) -> None:
    """Check that the asking broker can be a copy of this one. Raises Refusal, whose text is for the operators of both."""
    for theirs, mine, setting in (
        (asking.cluster, ours.cluster, "brokerClusterName"),
        (asking.name, ours.name, "brokerName"),
        (asking.group, ours.group, "dLegerGroup"),
        (asking.segment_bytes, ours.segment_bytes, "mappedFileSizeCommitLog"),
        (asking.delay_levels, ours.delay_levels, "messageDelayLevel"),
    ):
        if theirs != mine:
            raise Refusal(f"its {setting} is {theirs!r}, ours {mine!r}: it must be the same on all copies")
    if asking.group_id and ours.group_id and asking.group_id != ours.group_id:
        raise Refusal(
            f"it belongs to another founding of group {ours.group} ({asking.group_id}, ours {ours.group_id}): one of the data directories "
            f"is from somewhere else"
        )
    if len(asking.who) > _WHO_CHARACTERS_MAX:
        raise Refusal(f"it says that it is {asking.who:.40}..., which is no broker id and no member of a group")
    if asking.who == ours.who:
        raise Refusal(f"both say that they are {asking.who}: each copy needs a brokerId (dLegerSelfId) of its own")


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a snapshot file from `at` on."""

    HEAD: ClassVar = struct.Struct(">Hqq")

    name: str
    at: int
    size: int  # of the whole file
    data: bytes | memoryview

    def encode(self) -> bytes:
        name = self.name.encode()
        return b"".join((self.HEAD.pack(len(name), self.at, self.size), name, self.data))

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Raises BadStream for anything that a leader would not send, such as a name that leads out of the folder."""
        if len(content) < cls.HEAD.size:
            raise BadStream(f"a piece of a snapshot has a head of {cls.HEAD.size} bytes; this one has {len(content)}")
        length, at, size = cls.HEAD.unpack_from(content)
        name = content[cls.HEAD.size : cls.HEAD.size + length].decode("ascii", "replace")
        data = memoryview(content)[cls.HEAD.size + length :]
        if len(name) != length or not _NAME.fullmatch(name):
            raise BadStream(f"a snapshot file cannot have the name {name[:80]!r}")
        if not 0 <= size <= FILE_BYTES_MAX or not 0 <= at <= at + len(data) <= size or (size and not data):
            raise BadStream(f"bytes {at} to {at + len(data)} of {name}, which has {size}: that cannot be")
        return cls(name, at, size, data)


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The content of the marker file.

    wanted    the leader has said that this store cannot be continued; nothing has been done yet
    copying   the old content of the directory is being moved aside and snapshots arrive: the next start begins again
    filling   the snapshots are complete, the log arrives from `begin` on; the store is complete once it reaches `until`
    """

    state: str
    leader: str = ""  # host:port for its copies, if known
    aside: str = ""  # the folder for the old content of the directory
    begin: int = 0
    until: int = 0

    def encode(self) -> bytes:
        values = {"format": _FORMAT, **asdict(self)}
        return json.dumps({**values, "crc": _crc(values)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ValueError with the reason; the existence of a marker means as much as its content."""
        try:
            values: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON ({error})") from None
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise ValueError("it has an unknown format")
        crc = values.pop("crc", None)
        if crc != _crc(values):
            raise ValueError("checksum mismatch")
        del values["format"]
        try:
            marker = cls(**known_fields(cls, values))
        except BadStream as error:
            raise ValueError(str(error)) from None
        if marker.state not in _STATES or marker.begin > marker.until:
            raise ValueError(f"it says {values}")
        return marker


def _crc(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())

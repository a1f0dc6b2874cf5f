r"""The entries that clients write into the trace topic: who sent, consumed, committed or recalled a message, and how long it took.

The body of a trace message is text: entries that end in \x02, their fields separated by \x01, the first of them the kind.

    Pub             time region group topic id tags keys store-host body-bytes cost kind offset-id success
    SubBefore       time region group request id retries keys
    SubAfter        request id cost success keys outcome [time group]
    EndTransaction  time region group topic id tags keys store-host kind transaction-id state from-check
    Recall          time region group topic id success

A SubBefore and its SubAfter have the same request. The classes below have their fields in the order of the wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Final

ENTRY_END: Final = "\x02"
FIELD_END: Final = "\x01"
NOTHING: Final = "null"
"""How Java writes a missing text. An empty one at the end of an entry would make its reader fail."""

COMMITTED: Final = "COMMIT_MESSAGE"
ROLLED_BACK: Final = "ROLLBACK_MESSAGE"
UNKNOWN: Final = "UNKNOW"  # spelled like this in Java


class MessageKind(IntEnum):
    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class Outcome(IntEnum):
    """The result of consuming a message."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    NOTHING_RETURNED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A producer sent the message, or failed to."""

    name: ClassVar = "Pub"

    time_ms: int
    region: str = ""
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""  # joined by blanks
    store_host: str = ""
    body_bytes: int
    cost_ms: int
    kind: int = MessageKind.NORMAL
    offset_id: str = ""
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeBegun:
    """A consumer received the message."""

    name: ClassVar = "SubBefore"

    time_ms: int
    region: str = ""
    group: str
    request_id: str
    message_id: str
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeEnded:
    """A consumer finished the message, successfully or not."""

    name: ClassVar = "SubAfter"

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str = ""
    outcome: int = Outcome.SUCCESS
    time_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """The producer decided a transaction."""

    name: ClassVar = "EndTransaction"

    time_ms: int
    region: str = ""
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    kind: int = MessageKind.COMMIT
    transaction_id: str = ""
    state: str = UNKNOWN
    from_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A delayed message was recalled, or could not be."""

    name: ClassVar = "Recall"

    time_ms: int
    region: str = ""
    group: str
    topic: str
    message_id: str
    success: bool


Entry = Published | ConsumeBegun | ConsumeEnded | TransactionEnded | Recalled

_KINDS: Final[dict[str, type[Entry]]] = {
    kind.name: kind for kind in (Published, ConsumeBegun, ConsumeEnded, TransactionEnded, Recalled)
}
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SEPARATORS = str.maketrans({FIELD_END: " ", ENTRY_END: " "})
_PUBLISHED_OLD_FIELDS: Final = 12  # before 4.4 there was no offset id


def encode(entry: Entry) -> str:
    """Return the text of one entry, with its end."""
    texts = [entry.name]
    for name, to_text in _WRITTEN[entry.name]:
        texts.append(to_text(getattr(entry, name)))
    return FIELD_END.join(texts) + ENTRY_END


def decode(body: bytes) -> list[Entry]:
    """Return the entries of a trace message; invalid ones and those of unknown kinds are ignored."""
    found = (_entry(text) for text in body.decode("utf-8", "replace").split(ENTRY_END))
    return [entry for entry in found if entry is not None]


def index_keys(entries: Iterable[Entry]) -> list[str]:
    """Return the index keys of a trace message: the ids of the messages in it, then their keys."""
    listed = list(entries)
    ids = dict.fromkeys(entry.message_id for entry in listed if entry.message_id)
    keys = dict.fromkeys(key for entry in listed if not isinstance(entry, Recalled) for key in entry.keys.split())
    return list(ids | keys)


def _entry(text: str) -> Entry | None:
    name, *texts = text.split(FIELD_END)
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if kind is Published and len(texts) == _PUBLISHED_OLD_FIELDS:
        texts.insert(-1, "")
    values: dict[str, str | int | bool] = {}
    for item in fields(kind):
        if not texts:
            if item.default is MISSING:
                return None
            continue
        value = _VALUE[str(item.type)](texts.pop(0))
        if value is None:
            return None
        values[item.name] = value
    return kind(**values)  # type: ignore[arg-type]


def _integer(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _text(value: str) -> str:
    if FIELD_END in value or ENTRY_END in value:
        value = value.translate(_SEPARATORS)
    return value or NOTHING


_TEXT: Final[dict[str, Callable[[Any], str]]] = {
    "str": _text,
    "int": lambda value: str(int(value)),
    "bool": lambda value: "true" if value else "false",
}
_WRITTEN: Final = {
    kind.name: tuple((item.name, _TEXT[str(item.type)]) for item in fields(kind)) for kind in _KINDS.values()
}
_VALUE: Final[dict[str, Callable[[str], str | int | bool | None]]] = {
    "str": lambda text: "" if text == NOTHING else text,
    "int": _integer,
    "bool": lambda text: text.lower() == "true",
}

"""Columns in, batches out, in Python: properties of many messages as text, many messages as the body of one send, and its checksum.

Defines the behaviour of batches.c, and of sends.pxi: what a producer does once per message besides encoding it.
Columns are buffers in Arrow's layout (layout.Column), without an offset of their own.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final
from zlib import crc32

from kappamq.native.layout import PROPERTIES_BYTES_MAX, BadRow, Column, MapInput
from kappamq.native.pure_record import Buffer, split_batch

_FRONT: Final = struct.Struct(">iiiii")
_BATCH_BYTES_MAX: Final = (1 << 31) - 1


def column_of(values: Sequence[str | bytes]) -> Column:
    """Texts or bytes as a column. Raises UnicodeEncodeError for a text that cannot be encoded in UTF-8."""
    pieces = [value if isinstance(value, bytes) else value.encode() for value in values]
    offsets = array("i", [0])
    end = 0
    for piece in pieces:
        end += len(piece)
        if end > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        offsets.append(end)
    return None, offsets.tobytes(), b"".join(pieces)


def property_texts(
    count: int, named: Sequence[tuple[bytes, Column]], mapped: MapInput | None, left_out: Iterable[bytes]
) -> Column:
    """The properties of `count` messages as text, a column: one property per named column, then the pairs of a map column.

    Nulls and empty texts of named columns are left out; names in `left_out` are not taken from the map. Raises BadRow for a
    row that cannot become a message."""
    columns = [(name, _texts(column, count)) for name, column in named]
    maps = _pairs(mapped, count) if mapped is not None else [[]] * count
    skipped = frozenset(left_out)
    pieces: list[bytes] = []
    offsets = array("i", [0])
    end = 0
    for row in range(count):
        text = b""
        for name, values in columns:
            if values[row]:
                text = _with_pair(row, text, name, values[row])
        for name, value in maps[row]:
            if name in skipped:
                continue
            if not name or not value:
                raise BadRow(row, "a property has an empty name or value, which RocketMQ would drop")
            if b"\1" in name or b"\2" in name:
                raise BadRow(row, "a property holds a separator (0x01 or 0x02)")
            text = _with_pair(row, text, name, value)
        pieces.append(text)
        end += len(text)
        if end > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        offsets.append(end)
    return None, offsets.tobytes(), b"".join(pieces)


def batch_body(
    bodies: Column,
    texts: Column,
    rows: Buffer,
    first: int,
    bytes_max: int,
    count_max: int,
    id_prefix: bytes,
    first_id: int,
) -> tuple[bytes, int]:
    """Returns (the body of a batch send, where to continue): members from `rows`[first] on, as many as fit, at least one.

    `rows` are the int32 row numbers in the columns. With an `id_prefix` (10 bytes) each member gets a unique id: the prefix and
    a counter of 6 bytes, `first_id` for row 0."""
    if len(id_prefix) not in (0, 10):
        raise ValueError(f"a prefix of ids has 10 bytes, or none; got {len(id_prefix)}")
    count = len(bodies[1]) // 4 - 1
    all_bodies, all_texts = _texts(bodies, count), _texts(texts, count)
    wanted = memoryview(rows).cast("B").cast("i")
    members: list[bytes] = []
    size = 0
    taken = first
    while taken < len(wanted) and taken - first < count_max:
        row = wanted[taken]
        if not 0 <= row < count:
            raise ValueError("a place does not lie within the data")
        text, body = all_texts[row], all_bodies[row]
        if id_prefix:
            number = (first_id + row) & ((1 << 48) - 1)
            text = b"UNIQ_KEY\1%b\2%b" % ((id_prefix + number.to_bytes(6, "big")).hex().upper().encode(), text)
        if len(text) > PROPERTIES_BYTES_MAX:
            raise BadRow(row, f"its properties take more than {PROPERTIES_BYTES_MAX} bytes")
        length = 22 + len(body) + len(text)
        if members and size + length > bytes_max:
            break
        if size + length > _BATCH_BYTES_MAX:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        members.append(_FRONT.pack(length, 0, 0, 0, len(body)) + body + len(text).to_bytes(2, "big") + text)
        size += length
        taken += 1
    return b"".join(members), taken


def batch_checksum(body: bytes) -> int:
    """The sum of the CRC-32s of the bodies of a batch. Raises ValueError if its lengths are inconsistent."""
    members = split_batch(body, False)
    if members is None:
        raise ValueError("the lengths of a batch do not fit")
    return sum(crc32(content) for _flag, content, _properties in members)


def _texts(column: Column, count: int) -> list[bytes]:
    """The values of a column, a null as an empty text."""
    valid, offsets, data = column
    ends = memoryview(offsets).cast("B").cast("i")
    if count < 0 or len(ends) < count + 1 or (valid is not None and len(valid) * 8 < count):
        raise ValueError(f"a column of {count} rows has {len(ends)} offsets or too few validity bits")
    found: list[bytes] = []
    for row in range(count):
        if valid is not None and not valid[row // 8] >> row % 8 & 1:
            found.append(b"")
            continue
        start, end = ends[row], ends[row + 1]
        if not 0 <= start <= end <= len(data):
            raise ValueError("a place does not lie within the data")
        found.append(bytes(data[start:end]))
    return found


def _pairs(mapped: MapInput, count: int) -> list[list[tuple[bytes, bytes]]]:
    valid, offsets, names, values = mapped
    ends = memoryview(offsets).cast("B").cast("i")
    pair_count = len(names[1]) // 4 - 1
    if len(ends) < count + 1 or (valid is not None and len(valid) * 8 < count):
        raise ValueError(f"a column of {count} rows has {len(ends)} offsets or too few validity bits")
    all_names, all_values = _texts(names, pair_count), _texts(values, pair_count)
    found: list[list[tuple[bytes, bytes]]] = []
    for row in range(count):
        start, end = ends[row], ends[row + 1]
        if valid is not None and not valid[row // 8] >> row % 8 & 1:
            start = end = 0
        if not 0 <= start <= end <= pair_count:
            raise ValueError("a place does not lie within the data")
        found.append(list(zip(all_names[start:end], all_values[start:end], strict=True)))
    return found


def _with_pair(row: int, text: bytes, name: bytes, value: bytes) -> bytes:
    if len(text) + len(name) + len(value) + 2 > PROPERTIES_BYTES_MAX:
        raise BadRow(row, f"its properties take more than {PROPERTIES_BYTES_MAX} bytes")
    if b"\2" in value:
        raise BadRow(row, "a property holds a separator (0x01 or 0x02)")
    return b"%b%b\1%b\2" % (text, name, value)


# -- what a producer does once per message -----------------------------------------------------------------------------

MEMBER_BYTES: Final = 128
"""The most that a message without properties takes in a batch besides its body."""


PLAIN_BYTES_MAX: Final = 4096
"""Larger messages are examined one by one, so that only few bytes of them wait to be examined."""
RETRY_PREFIX: Final = "%RETRY%"


class CallbackSink:
    """Calls a function with (result, None) or (None, error); if it raises, calls `complain` inside the `except`."""

    __slots__ = ("_call", "_complain", "_done")

    def __init__(self, call: Callable[[Any, Any], object], complain: Callable[[], object]) -> None:
        self._call = call
        self._complain = complain
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any) -> None:
        self._tell(result, None)

    def set_exception(self, error: BaseException) -> None:
        self._tell(None, error)

    def _tell(self, result: Any, error: BaseException | None) -> None:
        self._done = True
        try:
            self._call(result, error)
        except Exception:
            self._complain()


class SendEntry:
    """One message from `send` to its result. Until it is settled it counts against `limits`."""

    __slots__ = (
        *("accepted", "born_ms", "deadline", "joins", "key", "limits", "message", "queue"),
        *("plain", "sent", "settled", "sink", "size", "weight"),
    )

    def __init__(
        self,
        message: Any,
        sink: Any,
        limits: Any,
        key: Any,
        queue: Any,
        accepted: float,
        deadline: float,
        born_ms: int,
    ) -> None:
        self.message = message
        self.sink = sink  # has done(), set_result() and set_exception(), like a future
        self.limits = limits
        self.key = key
        self.queue = queue
        self.accepted = accepted  # liveness time, as is `deadline`
        self.deadline = deadline
        self.born_ms = born_ms
        self.size = len(message.body)
        self.sent = False  # a request with it may have been sent
        self.settled = False
        # Its fields allow it to be sent in a batch with others of its queue, with no visible difference.
        self.joins = not (
            message.flag
            or message.delay_level
            or message.delay is not None
            or message.deliver_at is not None
            or message.transaction_id
            or message.topic.startswith(RETRY_PREFIX)
        )
        # An upper estimate of its bytes in a batch. 0: not computed yet, because it has more than a body.
        has_more = message.tags or message.keys or message.properties or message.sharding_key
        self.weight = 0 if has_more else self.size + MEMBER_BYTES
        # The common case: no field needs attention, and any queue will do.
        self.plain = bool(
            self.joins and self.weight and key is None and queue is None and 0 < self.size < PLAIN_BYTES_MAX
        )

    @property
    def limit(self) -> float:
        """How many seconds the message was given."""
        return self.deadline - self.accepted


def quick_messages(cls: type[Any], names: tuple[str, ...]) -> None:
    """Make objects of this class faster if their arguments are plain. `names`: its fields, which are slots, in order.

    The twin does nothing: the constructor of the class defines what its arguments mean, and the fast way must do the same."""


def entries_by_topic(entries: list[SendEntry]) -> tuple[list[tuple[str, list[SendEntry]]], float]:
    """Group consecutive entries of the same topic: [(topic, entries)], and the earliest deadline."""
    found = [(topic, list(part)) for topic, part in groupby(entries, key=lambda entry: str(entry.message.topic))]
    return found, min((entry.deadline for entry in entries), default=math.inf)


def front_entries(
    waiting: deque[SendEntry], bytes_max: int, count_max: int
) -> tuple[list[SendEntry], list[SendEntry], int]:
    """Take entries for one request: the messages at the front that can share a batch, or one that cannot.

    Returns them, those whose callers no longer wait, and the weight of all that were taken."""
    entries: list[SendEntry] = []
    gone: list[SendEntry] = []
    weight = dropped = 0
    while waiting:
        entry = waiting[0]
        if entry.settled or entry.sink.done():
            waiting.popleft()
            dropped += entry.weight
            gone.append(entry)
            continue
        if entries and (
            not (entry.joins and entries[0].joins)
            or weight + entry.weight > bytes_max
            or len(entries) >= count_max
            or entry.message.wait_stored != entries[0].message.wait_stored
        ):
            break
        waiting.popleft()
        weight += entry.weight
        entries.append(entry)
    return entries, gone, weight + dropped


def settle_entries(entries: list[SendEntry], results: list[Any], still_open: set[SendEntry]) -> None:
    """Return what unsettled messages took from their limits, then deliver each result: a receiver may send again at once."""
    if len(entries) != len(results):
        raise ValueError(f"{len(entries)} messages have {len(results)} results")
    fresh: list[tuple[SendEntry, Any]] = []
    limits: Any = None
    size = count = 0
    for entry, result in zip(entries, results, strict=True):
        if entry.settled:
            continue
        entry.settled = True
        if entry.limits is not limits:
            if count:
                limits.give_back(size, count)
            limits, size, count = entry.limits, 0, 0
        size += entry.size
        count += 1
        fresh.append((entry, result))
    if count:
        limits.give_back(size, count)
    for entry, result in fresh:
        still_open.discard(entry)  # only now: a fork notifies those it finds there
        if not entry.sink.done():
            entry.sink.set_result(result)


def unique_ids(beginning: str, first: int, count: int) -> list[str]:
    """Ids that differ in their last four digits, a counter."""
    return [f"{beginning}{number & 0xFFFF:04X}" for number in range(first, first + count)]


def filled_objects(
    cls: type,
    setters: tuple[Any, ...],
    columns: tuple[list[Any], ...],
    shared: tuple[Any, ...],
    count: int,
    spared: bool = False,
) -> list[Any]:
    """Make objects without calling their constructor. `setters`: the descriptors of slots; the first ones get individual values
    from `columns`, the others the `shared` ones. `spared`: their values never refer back to them, so garbage collection need not
    track them; this only matters in the compiled code."""
    if not isinstance(cls, type) or len(columns) + len(shared) != len(setters):
        raise ValueError("one setter for each column and each shared value")
    if not all(hasattr(type(setter), "__set__") for setter in setters):
        raise TypeError("a setter must be the descriptor of a slot")
    if any(len(column) < count for column in columns):
        raise ValueError("a column is too short")
    own = [(setter.__set__, column) for setter, column in zip(setters, columns, strict=False)]
    rest = [(setter.__set__, value) for setter, value in zip(setters[len(columns) :], shared, strict=True)]
    made = []
    for number in range(count):
        target: Any = object.__new__(cls)
        for set_value, column in own:
            set_value(target, column[number])
        for set_value, value in rest:
            set_value(target, value)
        made.append(target)
    return made

"""From records to columns with numpy: for executors without the compiled kernel, because they got the package as a zip.

The semantics are those of `native/pure_columns.py`, byte for byte; it works by column where the twin works by row.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kappamq.native.layout import (
    COLUMN_BODY,
    COLUMN_ID,
    COLUMN_KEYS,
    COLUMN_PROPERTIES,
    COLUMN_TAGS,
    COLUMN_TOPIC,
    PLACE_BYTES,
    PRIVATE_PROPERTIES,
    SYS_STORE_V6,
    Column,
    MapColumn,
)
from kappamq.native.pure_record import Buffer
from kappamq.spark.columns.numpy_places import locate
from kappamq.spark.columns.numpy_spans import copy, ends, joined, offsets, windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kappamq.spark.columns.numpy_spans import Bytes, Ints

__all__ = ["columns", "locate"]

_PAIRS_MAX: Final = 0xFFFF // 4 + 1
_WORD_BYTES: Final = 8
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_OUTSIDE: Final = "a place does not lie within the data"


def columns(data: Buffer, extra: Buffer, places: Buffer, wanted: int) -> dict[int, Column | MapColumn]:
    """Return the `wanted` columns (bits of layout.COLUMN_*) of the records at `places`, as Arrow's buffers.

    Strings that are not UTF-8 get replacement characters, as Java reads them; properties that only the broker uses are left out.
    Raises ValueError if a place points outside of the data."""
    if len(places) % PLACE_BYTES:
        raise ValueError(f"{len(places)} bytes are no places: each takes {PLACE_BYTES}")
    table = np.frombuffer(places, np.int64).reshape(-1, PLACE_BYTES // 8)
    source = _Source(data, extra)
    made: dict[int, Column | MapColumn] = {}
    if wanted & COLUMN_TOPIC:
        made[COLUMN_TOPIC] = _topics(*source.taken(table[:, 10], table[:, 11]))
    if wanted & COLUMN_BODY:
        made[COLUMN_BODY] = None, *source.taken(table[:, 8], table[:, 9])
    if wanted & (COLUMN_ID | COLUMN_KEYS | COLUMN_TAGS | COLUMN_PROPERTIES):
        pairs = _pairs(source.terminated(table[:, 12], table[:, 13]), len(table))
        if wanted & COLUMN_PROPERTIES or pairs.most > _PAIRS_MAX:
            distinct = _distinct(pairs)
        if wanted & COLUMN_ID:
            made[COLUMN_ID] = _message_ids(source, table, pairs)
        if wanted & COLUMN_KEYS:
            made[COLUMN_KEYS] = _texts(pairs, b"KEYS")
        if wanted & COLUMN_TAGS:
            made[COLUMN_TAGS] = _texts(pairs, b"TAGS")
        if wanted & COLUMN_PROPERTIES:
            made[COLUMN_PROPERTIES] = _maps(distinct)
    return made


class _Source:
    """The data followed by the decompressed bodies, as if they were one buffer."""

    def __init__(self, data: Buffer, extra: Buffer) -> None:
        self._first = len(data)
        self._all = np.frombuffer(b"".join((data, extra)) if len(extra) else data, np.uint8)

    def check(self, at: Ints, sizes: Ints) -> None:
        first, size = self._first, len(self._all)
        bad = (sizes < 0) | (at < 0) | (at > size) | (sizes > size - at) | ((at < first) & (sizes > first - at))
        if bad.any():
            raise ValueError(_OUTSIDE)

    def taken(self, at: Ints, sizes: Ints) -> tuple[bytes, bytes]:
        """Offsets and bytes of a column."""
        self.check(at, sizes)
        return offsets(sizes), joined(self._all, at, sizes)

    def terminated(self, at: Ints, sizes: Ints) -> tuple[Bytes, Ints]:
        """Strings, each followed by a 0x02, and the positions of these."""
        self.check(at, sizes)
        bounds = ends(sizes + 1)
        text = np.full(int(bounds[-1]), 2, np.uint8)
        copy(self._all, at, sizes, text, bounds[:-1])
        if not len(text) or text.max() < 0x80:
            return text, bounds[1:] - 1
        rows = [text[start : stop - 1].tobytes() for start, stop in itertools.pairwise(bounds)]
        rows = [row if row.isascii() else row.decode("utf-8", "replace").encode() for row in rows]
        bounds = ends(np.array([len(row) + 1 for row in rows], np.int64))
        return np.frombuffer(b"\2".join([*rows, b""]), np.uint8), bounds[1:] - 1

    def hosts(self, at: Ints, size: int) -> NDArray[np.uint8]:
        """Addresses of one length, a row each."""
        self.check(at, np.full(len(at), size))
        return windows(self._all, f"V{size}")[at].view(np.uint8).reshape(-1, size)


@dataclass(frozen=True)
class _Pairs:
    """The properties of all records, in order: the record of each, and where its name and value are in `text`."""

    text: Bytes
    """A few bytes longer than the strings, so that this many may be read at the position of any name."""
    rows: int
    row: Ints
    name_at: Ints
    name_bytes: Ints
    value_at: Ints
    value_bytes: Ints

    @property
    def most(self) -> int:
        return int(self.counts().max(initial=0))

    def counts(self) -> Ints:
        """The number of properties of each record."""
        return np.bincount(self.row, minlength=self.rows).astype(np.int64)

    def named(self, name: bytes) -> Ints:
        """Return which pairs have this name. It must not end with a zero byte, which numpy would ignore."""
        found = np.flatnonzero(self.name_bytes == len(name))
        return found[windows(self.text, f"S{len(name)}")[self.name_at[found]] == name]

    def only(self, kept: Ints | NDArray[np.bool_]) -> _Pairs:
        return _Pairs(
            self.text, self.rows, self.row[kept], self.name_at[kept], self.name_bytes[kept], self.value_at[kept],
            self.value_bytes[kept],
        )  # fmt: skip

    def values(self, name: bytes) -> tuple[Ints, Ints]:
        """Return position and size of each record's value for a name, the last one if there are several; size 0: none."""
        at, sizes = np.zeros((2, self.rows), np.int64)
        found = self.named(name)
        at[self.row[found]] = self.value_at[found]
        sizes[self.row[found]] = self.value_bytes[found]
        return at, sizes


def _pairs(terminated: tuple[Bytes, Ints], rows: int) -> _Pairs:
    """As Java reads them: a pair with an empty half does not count."""
    text, row_ends = terminated
    marks = np.flatnonzero((text == 1) | (text == 2))
    last_marks = np.flatnonzero(text[marks] == 2)
    end = marks[last_marks]
    start = np.concatenate(([0], end[:-1] + 1))[: len(end)]
    middle = marks[np.concatenate(([0], last_marks[:-1] + 1))[: len(end)]]  # the end itself, where there is no 0x01
    row = np.repeat(np.arange(rows), np.diff(np.searchsorted(end, row_ends), prepend=-1))
    padded = np.concatenate((text, np.zeros(_WORD_BYTES, np.uint8)))
    found = _Pairs(padded, rows, row, start, middle - start, middle + 1, end - middle - 1)
    return found.only((found.name_bytes > 0) & (found.value_bytes > 0))


def _distinct(pairs: _Pairs) -> _Pairs:
    """Return each name once per record: at its first place, with the last value."""
    codes = _codes(pairs)
    in_order = np.sort(codes)
    again = in_order[1:][in_order[1:] == in_order[:-1]]
    if len(again):
        pairs = _without_repeated(pairs, np.unique(pairs.row[np.isin(codes, again)]))
    if pairs.most > _PAIRS_MAX:
        raise ValueError(_OUTSIDE)  # longer than the properties of any record
    return pairs


def _codes(pairs: _Pairs) -> NDArray[np.uint64]:
    """Return a number per pair: equal for equal names in the same record, and almost never otherwise."""
    codes = (pairs.row * 0x10001 + pairs.name_bytes).astype(np.uint64) * _FACTOR
    words = windows(pairs.text, "<u8")
    done = 0
    which = np.arange(len(codes))
    while len(which):
        left = np.minimum(pairs.name_bytes[which] - done, _WORD_BYTES)
        word = words[pairs.name_at[which] + done] & _MASKS[left]
        mixed = (codes[which] ^ word) * _FACTOR
        codes[which] = mixed ^ (mixed >> np.uint64(29))
        done += _WORD_BYTES
        which = which[pairs.name_bytes[which] > done]
    return codes


def _without_repeated(pairs: _Pairs, rows: Ints) -> _Pairs:
    """Compare the names of these records one by one: some occur twice, or their codes are equal by chance."""
    value_at, value_bytes = pairs.value_at.copy(), pairs.value_bytes.copy()
    kept = np.ones(len(pairs.row), np.bool_)
    firsts, lasts = np.searchsorted(pairs.row, rows), np.searchsorted(pairs.row, rows, "right")
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        known: dict[bytes, int] = {}
        for number in range(first, last):
            at = int(pairs.name_at[number])
            before = known.setdefault(pairs.text[at : at + int(pairs.name_bytes[number])].tobytes(), number)
            if before != number:
                value_at[before], value_bytes[before] = value_at[number], value_bytes[number]
                kept[number] = False
    return _Pairs(
        pairs.text, pairs.rows, pairs.row, pairs.name_at, pairs.name_bytes, value_at, value_bytes
    ).only(kept)  # fmt: skip


def _topics(bounds: bytes, text: bytes) -> Column:
    if not text.isascii():
        stops = np.frombuffer(bounds, np.int32).tolist()
        names = {text[start:stop] for start, stop in itertools.pairwise(stops)}
        if any(name.decode("utf-8", "replace").encode() != name for name in names):
            raise ValueError(_OUTSIDE)  # the topic of a record is always a string
    return None, bounds, text


def _texts(pairs: _Pairs, name: bytes) -> Column:
    """The column is null where there is no value."""
    at, sizes = pairs.values(name)
    is_valid = sizes > 0
    valid = None if is_valid.all() else np.packbits(is_valid, bitorder="little").tobytes()
    return valid, offsets(sizes), joined(pairs.text, at, sizes)


def _message_ids(source: _Source, table: Ints, pairs: _Pairs) -> Column:
    """Return the unique id, or address and log offset of the record in hexadecimal digits."""
    at, sizes = pairs.values(b"UNIQ_KEY")
    text = pairs.text
    is_long = table[:, 5] & SYS_STORE_V6 != 0
    for host_bytes, rows in ((8, (sizes == 0) & ~is_long), (20, (sizes == 0) & is_long)):
        if not rows.any():
            continue
        log_offsets = table[rows, 4].astype(">i8").view(np.uint8).reshape(-1, 8)
        raw = np.concatenate((source.hosts(table[rows, 14], host_bytes), log_offsets), axis=1)
        digits = np.frombuffer(raw.tobytes().hex().upper().encode(), np.uint8)
        size = 2 * (host_bytes + 8)
        at[rows] = len(text) + np.arange(len(raw)) * size
        sizes[rows] = size
        text = np.concatenate((text, digits))
    return None, offsets(sizes), joined(text, at, sizes)


def _maps(pairs: _Pairs) -> MapColumn:
    shown = np.ones(len(pairs.row), np.bool_)
    for name in PRIVATE_PROPERTIES:
        shown[pairs.named(name)] = False
    pairs = pairs.only(shown)
    names, values = (pairs.name_at, pairs.name_bytes), (pairs.value_at, pairs.value_bytes)
    return (
        offsets(pairs.counts()), offsets(names[1]), joined(pairs.text, *names), offsets(values[1]), joined(pairs.text, *values)
    )  # fmt: skip

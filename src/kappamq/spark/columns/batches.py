"""From stored bytes to Arrow record batches: one pass of the kernel (or of numpy) per batch, whatever the number of records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kappamq.errors import ProtocolError
from kappamq.native.layout import (
    COLUMN_BODY,
    COLUMN_ID,
    COLUMN_KEYS,
    COLUMN_PROPERTIES,
    COLUMN_TAGS,
    COLUMN_TOPIC,
    SYS_COMPRESSED,
)
from kappamq.protocol import address
from kappamq.protocol.records import compression
from kappamq.protocol.records.record import BORN_HOST_AT, SYS_BORN_IPV6, SYS_STORE_IPV6
from kappamq.spark.columns import record_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS: Final = 10_000
"""Records per batch: fewer cost Spark more per row, many more fall out of the processor's cache."""
BYTES: Final = 8 << 20
UNPACKED_BYTES: Final = 64 << 20
"""A batch ends with the body that reaches this size: a few bytes may decompress to very many."""

AT, SIZE, QUEUE_ID, QUEUE_OFFSET, LOG_OFFSET, SYS_FLAG, BORN_MS, STORE_MS, BODY_AT, BODY_BYTES = range(10)
STORE_HOST_AT: Final = 14
DAMAGED: Final = 15
_GATHERED: Final = {
    "topic": COLUMN_TOPIC, "body": COLUMN_BODY, "msgId": COLUMN_ID, "keys": COLUMN_KEYS, "tags": COLUMN_TAGS,
    "properties": COLUMN_PROPERTIES,
}  # fmt: skip
_NUMBERS: Final = {
    "queueId": (QUEUE_ID, np.int32), "queueOffset": (QUEUE_OFFSET, np.int64), "logOffset": (LOG_OFFSET, np.int64),
    "size": (SIZE, np.int32),
}  # fmt: skip
_HOSTS: Final = ("bornHost", "storeHost")
_MS_MAX: Final = (1 << 63) // 1000 - 1
_MAP: Final = pa.map_(pa.string(), pa.string())

Keeps = Callable[["NDArray[np.int64]", str], bool]
"""Called with the place of a record and what is wrong with it; returns whether to keep it as a row."""
TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(), "brokerName": pa.string(), "queueId": pa.int32(), "queueOffset": pa.int64(), "msgId": pa.string(),
    "keys": pa.string(), "tags": pa.string(), "bornTimestamp": pa.timestamp("us", "UTC"),
    "storeTimestamp": pa.timestamp("us", "UTC"), "properties": _MAP, "body": pa.binary(), "logOffset": pa.int64(),
    "size": pa.int32(), "bornHost": pa.string(), "storeHost": pa.string(), "damage": pa.string(),
}  # fmt: skip


class Batches:
    """Makes batches of the wanted columns."""

    def __init__(self, columns: Sequence[str], required: Collection[str] = ()) -> None:
        """`required` columns are declared as never null: Spark compares that with its own schema."""
        self.schema = pa.schema([pa.field(name, TYPES[name], name not in required) for name in columns])
        self._columns = tuple(columns)
        self._wanted = sum(_GATHERED.get(name, 0) for name in columns)
        kernel = record_columns.load()
        self._locate: Callable[..., Any] = kernel.locate
        self._gather: Callable[..., Any] = kernel.columns

    def locate(self, data: bytes) -> NDArray[np.int64]:
        """Return a row of numbers for each record in `data`, all of it. Raises ProtocolError if it holds a bad record."""
        places, _count, consumed, _why = self._locate(data, -1, True, len(data))
        table = np.frombuffer(places, dtype=np.int64).reshape(-1, 16)
        if consumed != len(data):
            raise ProtocolError(f"no record begins at byte {consumed} of the {len(data)} bytes that the broker sent")
        return table

    def make(self, data: bytes, places: NDArray[np.int64], broker: str) -> pa.RecordBatch:
        """Return the records at `places` as one batch, for columns without a body: bodies stay as they are stored."""
        return self._made(data, b"", places, broker)

    def make_each(self, data: bytes, places: NDArray[np.int64], broker: str, keeps: Keeps) -> Iterator[pa.RecordBatch]:
        """Yield the records at `places` as a batch, or as several if compressed bodies become more than UNPACKED_BYTES.

        `keeps` is called for each body that cannot be decompressed, and returns whether to keep the record, with its body as stored."""
        packed = np.flatnonzero(places[:, SYS_FLAG] & SYS_COMPRESSED) if "body" in self._columns else ()
        if not len(packed):
            yield self._made(data, b"", places, broker)
            return
        places = places.copy()
        kept = np.ones(len(places), np.bool_)
        extra: list[bytes] = []
        first = size = 0
        for row in packed:
            if size >= UNPACKED_BYTES:
                yield self._made(data, b"".join(extra), places[first:row][kept[first:row]], broker)
                extra, first, size = [], int(row), 0
            start, length, flag = (int(places[row, field]) for field in (BODY_AT, BODY_BYTES, SYS_FLAG))
            try:
                body = compression.decompress(data[start : start + length], flag, compression.BODY_BYTES_MAX)
            except ProtocolError as error:
                kept[row] = keeps(places[row], str(error))
                continue
            places[row, BODY_AT], places[row, BODY_BYTES] = len(data) + size, len(body)
            extra.append(body)
            size += len(body)
        yield self._made(data, b"".join(extra), places[first:][kept[first:]], broker)

    def _made(self, data: bytes, extra: bytes, places: NDArray[np.int64], broker: str) -> pa.RecordBatch:
        flat = np.ascontiguousarray(places).reshape(-1).view(np.uint8)  # in bytes, as the twin counts them
        made = self._gather(data, extra, flat, self._wanted)
        arrays = [
            _hosts(name, data, places) if name in _HOSTS else self._column(name, made, places, broker)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, made: dict[int, Any], places: NDArray[np.int64], broker: str) -> pa.Array:
        count = len(places)
        if name == "properties":
            offsets, *pairs = made[COLUMN_PROPERTIES]
            size = len(pairs[0]) // 4 - 1
            keys = pa.Array.from_buffers(pa.string(), size, [None, pa.py_buffer(pairs[0]), pa.py_buffer(pairs[1])])
            items = pa.Array.from_buffers(pa.string(), size, [None, pa.py_buffer(pairs[2]), pa.py_buffer(pairs[3])])
            entries = pa.StructArray.from_arrays([keys, items], fields=[_MAP.key_field, _MAP.item_field])
            return pa.Array.from_buffers(_MAP, count, [None, pa.py_buffer(offsets)], children=[entries])
        if name in _GATHERED:
            valid, offsets, data = made[_GATHERED[name]]
            buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
            return pa.Array.from_buffers(TYPES[name], count, buffers)
        if name == "brokerName":
            text = broker.encode()
            ends = np.arange(count + 1, dtype=np.int32) * len(text)
            return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])
        if name == "damage":
            return pa.nulls(count, pa.string())
        if name in _NUMBERS:
            field, kind = _NUMBERS[name]
            return pa.array(places[:, field].astype(kind))
        times = np.clip(places[:, BORN_MS if name == "bornTimestamp" else STORE_MS], -_MS_MAX, _MS_MAX) * 1000
        return pa.Array.from_buffers(TYPES[name], count, [None, pa.py_buffer(np.ascontiguousarray(times))])


class Piece(NamedTuple):
    """Stored records that answer a question for the messages [start, stop) of a queue; some of these may be missing."""

    data: bytes
    start: int
    stop: int


def only(places: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the wanted rows of `places`. Usually that is all of them: then nothing is copied."""
    return places if wanted.all() else places[wanted]


def _hosts(name: str, data: bytes, places: NDArray[np.int64]) -> pa.Array:
    """Return the addresses of clients or brokers as text. There are few different ones: each is formatted once."""
    is_born = name == "bornHost"
    at = places[:, AT] + BORN_HOST_AT if is_born else places[:, STORE_HOST_AT]
    is_long = places[:, SYS_FLAG] & (SYS_BORN_IPV6 if is_born else SYS_STORE_IPV6) != 0
    texts = np.empty(len(places), dtype=object)
    for size, rows in ((8, ~is_long), (20, is_long)):
        if not rows.any():
            continue
        taken = np.frombuffer(data, np.uint8)[at[rows, None] + np.arange(size)]
        found = pa.Array.from_buffers(pa.binary(size), len(taken), [None, pa.py_buffer(taken)]).dictionary_encode()
        known = [
            address.join(address.unpack_ip(host[:-4]), int.from_bytes(host[-4:], "big"))
            for host in found.dictionary.to_pylist()
        ]
        texts[rows] = np.array(known, dtype=object)[found.indices.to_numpy()]
    return pa.array(texts, pa.string())


def joined(pieces: Iterable[Piece], rows: int = ROWS, size: int = BYTES) -> Iterator[Piece]:
    """Join answers of pulls to batches of a good size. If one does not begin at the end of the last, a new batch begins."""
    held: list[bytes] = []
    start = stop = held_bytes = 0
    for piece in pieces:
        if held and (piece.start != stop or piece.stop - start > rows or held_bytes + len(piece.data) > size):
            yield Piece(b"".join(held), start, stop)
            held = []
        if not held:
            start, held_bytes = piece.start, 0
        held.append(piece.data)
        stop = piece.stop
        held_bytes += len(piece.data)
    if held:
        yield Piece(b"".join(held), start, stop)

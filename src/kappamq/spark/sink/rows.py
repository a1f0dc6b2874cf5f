"""Rows in, messages out: which columns a table may have to be written, and Arrow arrays as the kernel takes them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kappamq import native
from kappamq.errors import ConfigError
from kappamq.native.layout import BadRow, Column, MapInput
from kappamq.protocol.records import properties
from kappamq.spark.columns.schema import COLUMNS
from kappamq.spark.suggestions import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

WRITTEN: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "keys": ("string", "array<string>"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "brokerName": ("string",),
    "queueId": ("int",),
    "delayLevel": ("int",),
    "deliverAt": ("timestamp",),
}
"""name -> types that it may have. All but body may be missing or null."""
_FILLED_BY_BROKER: Final = tuple(name for name in COLUMNS if name not in WRITTEN)
_LEFT_OUT: Final = tuple(sorted(name.encode() for name in properties.RESERVED))
"""RocketMQ's own properties: a map that was read from a topic contains them, but columns set them."""


def check_written(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError if rows of this schema cannot be messages."""
    names = {field.name for field in schema.fields}
    no_body = "" if "body" in names else ". The required column body is missing, too"
    for field in schema.fields:
        if field.name in _FILLED_BY_BROKER:
            raise ConfigError(
                f"column {field.name} cannot be written, since the broker sets it: drop {', '.join(_FILLED_BY_BROKER)}"
            )
        if field.name not in WRITTEN:
            raise ConfigError(
                f"column {field.name!r} cannot be written{nearest(field.name, WRITTEN)}; the columns are {', '.join(WRITTEN)}{no_body}"
            )
        found = field.dataType.simpleString()
        if found not in WRITTEN[field.name]:
            raise ConfigError(f"column {field.name} must be {' or '.join(WRITTEN[field.name])}, not {found}: cast it")
    if "body" not in names:
        raise ConfigError("the required column body is missing")
    if (topic is None) == ("topic" not in names):
        both = "both the option topic and a column topic are given" if topic else "no topic is given"
        raise ConfigError(f"{both}: give either the option topic or a column topic")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch of rows as columns for the kernel."""

    bodies: Column
    texts: Column
    count: int


def prepare(batch: pa.RecordBatch, message_bytes_max: int) -> Prepared:
    """Raises BadRow for a row that cannot be a message."""
    bodies = column(batch.column("body"))
    lengths = pc.binary_length(batch.column("body"))
    _refuse(pc.is_null(lengths), "its body is null")
    _refuse(pc.equal(lengths, 0), "its body is empty: RocketMQ stores no message without one")
    _refuse(pc.greater(lengths, message_bytes_max), f"its body has more than {message_bytes_max} bytes")
    names = set(batch.schema.names)
    named = [
        (name.encode(), column(_joined(batch.column(source), source)))
        for source, name in (
            ("keys", properties.KEYS),
            ("tags", properties.TAGS),
            ("shardingKey", properties.SHARDING_KEY),
        )
        if source in names
    ]
    mapped = map_input(batch.column("properties")) if "properties" in names else None
    build: Callable[..., Column] = native.load().property_texts
    return Prepared(bodies, build(batch.num_rows, named, mapped, _LEFT_OUT), batch.num_rows)


def column(array: pa.Array) -> Column:
    """Return a string or binary array as buffers without an offset."""
    if array.type not in (pa.string(), pa.binary()):
        array = array.cast(pa.binary())
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])  # copies, so that it begins at 0
    valid, offsets, data = array.buffers()
    count = len(array)
    none = bytes(4 * (count + 1))
    return (
        valid if array.null_count else None,
        memoryview(offsets)[: 4 * (count + 1)] if offsets is not None else none,
        data if data is not None else b"",
    )  # type: ignore[return-value]


def map_input(array: pa.Array) -> MapInput:
    """Return a map array as buffers without an offset."""
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    valid, offsets = array.buffers()[:2]
    return (
        valid if array.null_count else None,
        memoryview(offsets)[: 4 * (len(array) + 1)],
        column(array.keys),
        column(array.items),
    )  # type: ignore[return-value]


def _joined(array: pa.Array, name: str) -> pa.Array:
    """Join keys: they may be an array of strings; RocketMQ stores them separated by blanks. Raises BadRow for a null among them."""
    if not pa.types.is_list(array.type):
        return array
    null = pc.index(pc.is_null(array.flatten()), True).as_py()
    if null >= 0:
        row = pc.list_parent_indices(array)[null].as_py()
        raise BadRow(row, f"a null is among its {name}: leave it out, for example with array_compact({name})")
    # Where Spark knows that no element is null its type says so, and binary_join does not take that type.
    return pc.binary_join(array.cast(pa.list_(pa.string())), " ")


def _refuse(wrong: pa.Array, why: str) -> None:
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise BadRow(row, why)


def by_value(array: pa.Array) -> Mapping[Any, pa.Array]:
    """Return the row numbers (int32) for each value of a column; None for rows without one."""
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(-1)
    values = [None, *encoded.dictionary.to_pylist()]
    order = pc.array_sort_indices(codes).cast(pa.int32())
    counts = {item["values"]: item["counts"] for item in pc.value_counts(codes).to_pylist()}
    found: dict[Any, pa.Array] = {}
    start = 0
    for code in sorted(counts):
        found[values[code + 1]] = order.slice(start, counts[code])
        start += counts[code]
    return found

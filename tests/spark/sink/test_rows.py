"""Arrow arrays as the kernel takes them, and schemas that can be written."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql import types

from kappamq.errors import ConfigError
from kappamq.native.layout import BadRow
from kappamq.spark.sink.rows import by_value, check_written, column, map_input, prepare

STRING, BINARY, INT = types.StringType(), types.BinaryType(), types.IntegerType()


def schema(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def test_schemas_that_can_be_written() -> None:
    texts = types.ArrayType(STRING)
    check_written(schema(body=STRING, keys=texts, tags=STRING, queueId=INT), "orders")
    check_written(schema(body=BINARY, keys=STRING, topic=STRING), None)


@pytest.mark.parametrize(
    ("given", "topic", "told"),
    [
        (schema(body=BINARY, msgId=STRING), "t", "column msgId cannot be written, since the broker sets it"),
        (schema(value=STRING), "t", r"column 'value' cannot be written; .*\. The required column body is missing, too"),
        (schema(body=BINARY, tag=STRING), "t", r"column 'tag' cannot be written \(did you mean tags\?\)"),
        (schema(body=INT), "t", "column body must be binary or string, not int"),
        (schema(tags=STRING), "t", "required column body is missing"),
        (schema(body=STRING), None, "no topic is given"),
        (schema(body=STRING, topic=STRING), "t", "both the option topic and a column topic"),
    ],
)
def test_schemas_that_cannot(given: types.StructType, topic: str | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_written(given, topic)


def texts(made: tuple[object, ...]) -> list[bytes]:
    valid, offsets, data = made
    ends = list(memoryview(offsets).cast("B").cast("i"))  # type: ignore[arg-type]
    raw = bytes(memoryview(data))  # type: ignore[arg-type]
    bits = None if valid is None else bytes(memoryview(valid))  # type: ignore[arg-type]
    return [
        raw[ends[row] : ends[row + 1]] if bits is None or bits[row // 8] >> row % 8 & 1 else b"(null)"
        for row in range(len(ends) - 1)
    ]


def test_slices_begin_at_their_own_first_row() -> None:
    array = pa.array(["a", None, "ccc", "", "e"])
    assert texts(column(array)) == [b"a", b"(null)", b"ccc", b"", b"e"]
    assert texts(column(array[1:4])) == [b"(null)", b"ccc", b""]
    assert texts(column(array.cast(pa.large_string())[2:])) == [b"ccc", b"", b"e"]
    assert texts(column(array[:0])) == []
    maps = pa.array([[("a", "1")], None, [("b", "2"), ("c", "3")]], pa.map_(pa.string(), pa.string()))
    valid, offsets, names, values = map_input(maps[1:])
    ends = list(memoryview(offsets).cast("B").cast("i"))
    assert [texts(names)[at:end] for at, end in pairwise(ends)] == [[], [b"b", b"c"]]
    assert texts(values)[ends[1] : ends[2]] == [b"2", b"3"]
    assert valid is not None


def test_rows_by_value() -> None:
    found = by_value(pa.array(["x", None, "y", "x"]))
    assert {value: rows.to_pylist() for value, rows in found.items()} == {None: [1], "x": [0, 3], "y": [2]}
    assert by_value(pa.array([], pa.string())) == {}


def test_what_cannot_be_a_message_is_named() -> None:
    for body, why in ((None, "null"), (b"", "empty"), (b"x" * 11, "more than 10 bytes")):
        with pytest.raises(BadRow, match=f"row 1 cannot be a message: .*{why}"):
            prepare(pa.record_batch({"body": pa.array([b"ok", body], pa.binary())}), 10)


def test_a_null_among_keys_is_named() -> None:
    """Joined, it would make all keys of the row disappear."""
    kind = pa.list_(pa.string())
    keys = pa.array([["a", None], None, [], ["b"], ["c", None]], kind)
    batch = pa.record_batch({"body": pa.array([b"x"] * 5), "keys": keys})
    for first, row in ((0, 0), (1, 3), (4, 0)):
        with pytest.raises(BadRow, match=f"row {row} cannot be a message: a null is among its keys: leave it out"):
            prepare(batch.slice(first), 10)
    made = prepare(batch.slice(1, 3), 10)
    assert texts(made.texts) == [b"", b"", b"KEYS\1b\2"]

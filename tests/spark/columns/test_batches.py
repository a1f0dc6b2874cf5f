"""Arrow batches hold what a client that decodes each record would show."""

from __future__ import annotations

import datetime
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from kappamq import native
from kappamq.errors import ProtocolError
from kappamq.protocol.records import compression
from kappamq.protocol.records.record import Record
from kappamq.spark.columns import numpy_columns, record_columns
from kappamq.spark.columns.batches import QUEUE_OFFSET, Batches, Piece, joined
from kappamq.spark.columns.schema import COLUMNS, OPTIONAL

RECORDS = [
    Record(topic="tea", body=b"first", queue_id=3, queue_offset=7, born_ms=1_700_000_000_001, stored_ms=1_700_000_000_002,
           properties="TAGS\1green\2KEYS\1a b\2UNIQ_KEY\1ID1\2"),
    Record(topic="tea", body=compression.compress(b"second" * 100), sys_flag=compression.COMPRESSED, queue_id=3, queue_offset=8,
           log_offset=500, stored_ms=(1 << 63) - 1, tail_crc=True),
    Record(topic="grün", body=b"", queue_id=3, queue_offset=9, properties="x\1y\2"),
]  # fmt: skip
DATA = b"".join(record.encode() for record in RECORDS)


def test_every_column() -> None:
    batches = Batches(tuple(COLUMNS))
    (batch,) = batches.make_each(DATA, batches.locate(DATA), "broker-a", never)
    batch.validate(full=True)
    rows = batch.drop_columns(["storeTimestamp"]).to_pylist(maps_as_pydicts="strict")
    assert [row["body"] for row in rows] == [b"first", b"second" * 100, b""]
    assert [row["topic"] for row in rows] == ["tea", "tea", "grün"]
    assert [row["msgId"] for row in rows] == ["ID1", RECORDS[1].offset_id, RECORDS[2].offset_id]
    assert [(row["keys"], row["tags"]) for row in rows] == [("a b", "green"), (None, None), (None, None)]
    assert [row["properties"] for row in rows][1:] == [{}, {"x": "y"}]
    assert [(row["queueId"], row["queueOffset"], row["brokerName"]) for row in rows] == [
        (3, number, "broker-a") for number in (7, 8, 9)
    ]
    born = datetime.datetime.fromtimestamp(1_700_000_000.001, datetime.UTC)
    assert rows[0]["bornTimestamp"] == born
    stored = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
    assert stored[0] == 1_700_000_000_002_000
    assert stored[1] > 1 << 62, "a time beyond what a timestamp can hold stays in its range"


@pytest.mark.parametrize("other", [native.load("twin"), numpy_columns], ids=["twin", "numpy"])
def test_without_the_compiled_kernel_batches_are_the_same(other: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors that got the package as a zip have no compiled kernel."""
    columns = tuple(COLUMNS)

    def batch() -> pa.RecordBatch:
        batches = Batches(columns)
        (made,) = batches.make_each(DATA, batches.locate(DATA), "broker-a", never)
        return made

    compiled = batch()
    may_be_null = {name for name in columns if compiled.column(name).null_count}
    assert may_be_null <= OPTIONAL, "Spark would read nulls where the schema says that there are none"
    monkeypatch.setattr(record_columns, "load", lambda: other)
    assert batch().equals(compiled)


def test_hosts_of_both_lengths() -> None:
    six = bytes(15) + b"\1"
    records = [
        Record(
            topic="tea", body=b"x", born_host=b"\x0a\0\0\1", born_port=1, store_host=b"\x0a\0\0\2", store_port=10911
        ),
        Record(topic="tea", body=b"x", born_host=six, born_port=2, store_host=b"\x0a\0\0\2", store_port=10911),
        Record(topic="tea", body=b"x", born_host=b"\x0a\0\0\1", born_port=3, store_host=six, store_port=10911),
        Record(topic="tea", body=b"x", born_host=six, born_port=2, store_host=six, store_port=10911),
    ]
    data = b"".join(record.encode() for record in records)
    batches = Batches(("storeHost", "bornHost"))
    batch = batches.make(data, batches.locate(data), "")
    batch.validate(full=True)
    assert batch["bornHost"].to_pylist() == ["10.0.0.1:1", "[::1]:2", "10.0.0.1:3", "[::1]:2"]
    assert batch["storeHost"].to_pylist() == ["10.0.0.2:10911", "10.0.0.2:10911", "[::1]:10911", "[::1]:10911"]
    assert batches.make(data, batches.locate(data)[:0], "").num_rows == 0


@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone_and_of_nothing(name: str) -> None:
    batches = Batches((name,))
    places = batches.locate(DATA)
    (whole,) = Batches(tuple(COLUMNS)).make_each(DATA, places, "b", never)
    (alone,) = batches.make_each(DATA, places, "b", never)
    assert alone.column(0).equals(whole.column(name))
    assert batches.make(DATA, places[:0], "b").num_rows == 0


def test_the_types_are_those_that_spark_expects() -> None:
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    known = {
        "string": types.StringType(), "int": types.IntegerType(), "bigint": types.LongType(), "binary": types.BinaryType(),
        "timestamp": types.TimestampType(), "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }  # fmt: skip
    for required in ((), COLUMNS.keys() - OPTIONAL):
        fields = [types.StructField(name, known[kind], name not in required) for name, kind in COLUMNS.items()]
        expected = to_arrow_schema(types.StructType(fields), timezone="UTC")
        assert Batches(tuple(COLUMNS), required).schema.equals(expected)


def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(ProtocolError, match=f"no record begins at byte {len(DATA)}"):
        Batches(("body",)).locate(DATA + b"garbage")


def never(place: Any, why: str) -> bool:
    raise AssertionError(why)


def test_a_body_that_cannot_be_unpacked_stays_or_goes() -> None:
    wrong = Record(topic="tea", body=b"not packed", sys_flag=compression.COMPRESSED, queue_offset=10).encode()
    data = DATA + wrong + DATA
    batches = Batches(("body",))
    told: list[tuple[int, str]] = []

    def keeps(place: Any, why: str) -> bool:
        told.append((int(place[QUEUE_OFFSET]), why))
        return len(told) == 1

    bodies = [b"first", b"second" * 100, b""]
    (batch,) = batches.make_each(data, batches.locate(data), "b", keeps)
    assert batch.column(0).to_pylist() == [*bodies, b"not packed", *bodies]
    (batch,) = batches.make_each(data, batches.locate(data), "b", keeps)
    assert batch.column(0).to_pylist() == bodies * 2
    assert [offset for offset, _why in told] == [10, 10]
    assert "cannot be decompressed" in told[0][1]


def test_a_batch_ends_where_unpacked_bodies_become_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.spark.columns.batches.UNPACKED_BYTES", 1000)
    packed = compression.compress(bytes(600))
    records = [Record(topic="tea", body=packed, sys_flag=compression.COMPRESSED, queue_offset=n) for n in range(5)]
    records.insert(3, Record(topic="tea", body=b"plain"))
    data = b"".join(record.encode() for record in records)
    batches = Batches(("body", "queueOffset"))
    made = list(batches.make_each(data, batches.locate(data), "b", never))
    assert [batch.column("queueOffset").to_pylist() for batch in made] == [[0, 1], [2, 0, 3], [4]]
    assert [len(body) for batch in made for body in batch.column("body").to_pylist()] == [600, 600, 600, 5, 600, 600]
    # Bodies that nobody wants are not unpacked.
    batches = Batches(("queueOffset",))
    assert [batch.num_rows for batch in batches.make_each(data, batches.locate(data), "b", never)] == [6]


def test_small_answers_are_joined() -> None:
    pieces = [Piece(b"a", 0, 1), Piece(b"b", 1, 2), Piece(b"c", 2, 4), Piece(b"d", 4, 13)]
    assert list(joined(pieces, rows=3)) == [(b"ab", 0, 2), (b"c", 2, 4), (b"d", 4, 13)]
    assert list(joined([Piece(b"aaaa", 0, 1), Piece(b"bb", 1, 2), Piece(b"c", 2, 3)], size=4)) == [
        (b"aaaa", 0, 1),
        (b"bbc", 1, 3),
    ]
    assert list(joined([Piece(b"a", 0, 1), Piece(b"b", 5, 6)])) == [(b"a", 0, 1), (b"b", 5, 6)], "not over a gap"
    assert list(joined([])) == []

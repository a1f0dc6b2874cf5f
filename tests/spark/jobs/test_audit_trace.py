"""Trace messages become rows, whatever anybody has written there."""

from __future__ import annotations

import pyarrow as pa

from kappamq.protocol import trace
from kappamq.protocol.records import ids
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Published, Recalled
from kappamq.spark.jobs.audit_trace import TRACE_TYPES, batches, rows_of

PLACE = ids.offset_id(b"\x0a\0\0\1", 10911, 4711)


def published(message_id: str, offset_id: str, *, time_ms: int = 5) -> bytes:
    entry = Published(
        time_ms=time_ms, group="kitchen", topic="tea", message_id=message_id, body_bytes=3, cost_ms=1, offset_id=offset_id, success=True
    )  # fmt: skip
    return trace.encode(entry).encode()


def test_a_message_that_was_sent() -> None:
    (row,) = rows_of(published("ID", PLACE))
    assert (row["event"], row["message_id"], row["trace_topic"], row["success"]) == ("sent", "ID", "tea", True)
    assert (row["host"], row["log_offset"]) == ("10.0.0.1:10911", 4711)


def test_a_batch_of_a_java_client_is_one_entry() -> None:
    other = ids.offset_id(bytes(15) + b"\1", 10911, 9)
    first, second = rows_of(published("A,B", f"{PLACE},{other}"))
    assert (first["message_id"], first["log_offset"]) == ("A", 4711)
    assert (second["message_id"], second["host"], second["log_offset"]) == ("B", "[::1]:10911", 9)
    assert [row["log_offset"] for row in rows_of(published("A,B,C", PLACE))] == [None] * 3, "nobody knows whose it is"


def test_consuming() -> None:
    common = {"request_id": "R", "message_id": "ID"}
    body = trace.encode(ConsumeBegun(time_ms=7, group="drinkers", retry_times=2, **common))  # type: ignore[arg-type]
    body += trace.encode(ConsumeEnded(cost_ms=1, success=False, **common))  # type: ignore[arg-type]
    begun, ended = rows_of(body.encode())
    assert (begun["event"], begun["trace_group"], begun["retry_times"], begun["time_ms"]) == ("begun", "drinkers", 2, 7)
    assert (ended["event"], ended["trace_group"], ended["success"], ended["request_id"]) == ("ended", None, False, "R")


def test_nonsense_and_other_things_are_left_out() -> None:
    recalled = trace.encode(Recalled(time_ms=1, group="g", topic="t", message_id="i", success=True)).encode()
    assert rows_of(recalled + b"\xff\x01Pub\x02\x02Sub") == []
    (row,) = rows_of(published("ID", "no id", time_ms=10**18 * 9))
    assert (row["host"], row["log_offset"]) == (None, None)


def test_batches_for_spark() -> None:
    huge = published("ID", PLACE).replace(b"Pub\x015\x01", b"Pub\x019999999999999999999\x01")
    given = pa.RecordBatch.from_pylist([{"body": published("A", PLACE)}, {"body": None}, {"body": huge}])
    (made,) = batches([given])
    assert made.schema.names == list(TRACE_TYPES)
    assert made["message_id"].to_pylist() == ["A", "ID"]
    assert made["time_ms"].to_pylist() == [5, 2**63 - 1]
    (nothing,) = batches([given.slice(1, 1)])
    assert nothing.num_rows == 0

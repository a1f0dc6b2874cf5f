"""Trace messages as rows: one row for each message and event that producers and consumers traced. Does not use Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from kappamq.errors import ProtocolError
from kappamq.protocol import address, trace
from kappamq.protocol.records import ids
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Entry, Published

SENT: Final = "sent"
BEGUN: Final = "begun"
ENDED: Final = "ended"

TRACE_TYPES: Final = {
    "event": "string",
    "time_ms": "bigint",
    "trace_group": "string",
    "trace_topic": "string",
    "message_id": "string",
    "request_id": "string",
    "success": "boolean",
    "retry_times": "int",
    "host": "string",
    "log_offset": "bigint",
}
"""The columns as a Spark schema. `host` and `log_offset`: the broker that reported the message as stored, and the place."""
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_SCHEMA: Final = pa.schema(
    [
        pa.field(name, {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_()}[kind])
        for name, kind in TRACE_TYPES.items()
    ]
)


def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For Spark's mapInArrow: batches with a column `body` in, rows out."""
    for batch in given:
        rows = [row for body in batch.column("body").to_pylist() if body for row in rows_of(body)]
        yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def rows_of(body: bytes) -> list[dict[str, Any]]:
    """Return the events in one trace message; those that an audit does not need are left out."""
    return [row for entry in trace.decode(body) for row in _rows(entry)]


def _rows(entry: Entry) -> Iterator[dict[str, Any]]:
    if isinstance(entry, Published):
        # A batch of a Java client is one entry: its ids are separated by commas.
        names = entry.message_id.split(",")
        places = entry.offset_id.split(",")
        for number, name in enumerate(names):
            host, log_offset = _place(places[number] if len(places) == len(names) else "")
            yield {
                "event": SENT, "time_ms": _bounded(entry.time_ms), "trace_group": entry.group, "trace_topic": entry.topic,
                "message_id": name, "success": entry.success, "host": host, "log_offset": log_offset,
            }  # fmt: skip
    elif isinstance(entry, ConsumeBegun):
        yield {
            "event": BEGUN, "time_ms": _bounded(entry.time_ms), "trace_group": entry.group, "message_id": entry.message_id,
            "request_id": entry.request_id, "retry_times": _bounded(entry.retry_times, _INT_MAX),
        }  # fmt: skip
    elif isinstance(entry, ConsumeEnded):
        yield {
            "event": ENDED, "time_ms": _bounded(entry.time_ms) or None, "trace_group": entry.group or None,
            "message_id": entry.message_id, "request_id": entry.request_id, "success": entry.success,
        }  # fmt: skip


def _place(offset_id: str) -> tuple[str | None, int | None]:
    try:
        found = ids.parse_offset_id(offset_id)
    except ProtocolError:
        return None, None  # older clients do not report it
    return address.join(address.unpack_ip(found.host), found.port), found.log_offset


def _bounded(number: int, most: int = _LONG_MAX) -> int:
    """Bound a number: anybody may write anything to the trace topic."""
    return max(-most, min(number, most))

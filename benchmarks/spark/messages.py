"""Messages to read: unique bodies that no compression makes smaller, with tags, keys and properties as applications have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE: Final = 10_000
TAGS: Final = ("paid", "open", "sent")


def batches(body: int, count: int, *, only_body: bool = False, seed: int = 1) -> Iterator[pa.RecordBatch]:
    """`count` rows as the sink takes them."""
    import numpy as np
    import pyarrow as pa

    dice = np.random.default_rng(seed)
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        ends = np.arange(size + 1, dtype=np.int32) * body
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(dice.bytes(size * body))]
        columns: dict[str, pa.Array] = {"body": pa.Array.from_buffers(pa.binary(), size, buffers)}
        if not only_body:
            numbers = range(first, first + size)
            columns["tags"] = pa.array([TAGS[n % len(TAGS)] for n in numbers])
            columns["keys"] = pa.array([f"order-{n}" for n in numbers])
            columns["properties"] = pa.array(
                [[("customer", str(n % 5_000)), ("region", "north")] for n in numbers],
                pa.map_(pa.string(), pa.string()),
            )
        yield pa.record_batch(columns)


def send(nameservers: str, topic: str, body: int, count: int, queues: int) -> None:
    """Create the topic and fill it; returns when the broker has acknowledged everything."""
    from kappamq.client import Admin
    from kappamq.spark import connection
    from kappamq.spark.sink.options import WriteOptions
    from kappamq.spark.sink.sink import write_rows

    with Admin(nameservers) as admin:
        admin.create_topic(topic, queues=queues)
    try:
        written = write_rows(WriteOptions(nameservers=nameservers, topic=topic), batches(body, count))
    finally:
        connection.close_all()
    assert written.rows == count, f"{count} messages were to be written, {written.rows} were"

"""The rows of one task: Arrow batches in, batches of messages out, to an outlet (an outbox, or a stage)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from kappamq.errors import ConfigError
from kappamq.message import Message, MessageQueue
from kappamq.native.layout import BadRow

if TYPE_CHECKING:
    import pyarrow as pa

    from kappamq.spark.sink.options import WriteOptions
    from kappamq.spark.sink.outbox import Parcel, Single

BATCH_BYTES: Final = 256 << 10
BATCH_MEMBERS: Final = 1000
ADDED_BYTES: Final = len("WAIT\1true\2")
"""The property of a batch, which the broker adds to each of its members."""


class Outlet(Protocol):
    """Takes messages; keeps the order of those for one queue."""

    def send(self, parcel: Parcel | Single) -> None: ...

    def close(self) -> None:
        """Return when everything has arrived. Raises permanent errors."""
        ...

    def settle(self) -> None:
        """The task has failed: return when nothing is in flight any more."""
        ...


def send_all(sender: RowSender, batches: Iterator[pa.RecordBatch]) -> int:
    """Send the rows of a task; returns how many, when all have arrived. Raises ConfigError that names a bad row, NoSuchTopic."""
    try:
        rows = each(batches, sender.write)
        sender.close()
    except Exception:
        sender.settle()
        raise
    return rows


def each(batches: Iterator[pa.RecordBatch], take: Callable[[pa.RecordBatch, int], None]) -> int:
    """Hand over each batch and the number of its first row; returns how many rows there were. Raises ConfigError for a BadRow."""
    rows = 0
    for batch in batches:
        try:
            take(batch, rows)
        except BadRow as error:
            shown = str(batch.slice(error.row, 1).to_pylist()[0])[:300]
            raise ConfigError(
                f"row {rows + error.row} of this task cannot be a message: {error.why}. The row: {shown}"
            ) from None
        rows += batch.num_rows
    return rows


class RowSender:
    def __init__(
        self,
        options: WriteOptions,
        producer: Any,
        batches: Outlet,
        singles: Outlet,
        members_max: int = BATCH_MEMBERS,
    ) -> None:
        """`singles` takes messages that cannot be in a batch; it may be the same outlet."""
        from kappamq import native

        self._options = options
        self._producer = producer
        self._batches = batches
        self._singles = singles
        self._members_max = members_max
        self._batch_body = native.load().batch_body
        # This prefix is unique: 2 bytes of the process and 8 random ones; 6 more bytes count the rows.
        self._id_prefix = (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(8)
        self._queues: dict[str, list[MessageQueue]] = {}
        self._existing: set[str] = set()
        self._turn = secrets.randbelow(1 << 16)  # else small tasks would all write to the first queue of a broker

    def write(self, batch: pa.RecordBatch, first_row: int) -> None:
        import numpy as np

        from kappamq.spark.sink.outbox import Parcel
        from kappamq.spark.sink.rows import by_value, prepare
        from kappamq.spark.topic.topics import check_exists

        if not batch.num_rows:
            return
        names = set(batch.schema.names)
        limit: int = self._producer.inner.config.message_bytes_max
        prepared = prepare(batch, limit)
        topics = by_value(batch.column("topic")) if "topic" in names else None
        for topic in topics or (self._options.topic,):
            # Once per task, not once per process: a topic that was deleted meanwhile must not be made again by a send.
            if topic and topic not in self._existing:  # a row without one is reported below
                check_exists(self._options.nameservers, topic, self._options.tls)
                self._existing.add(topic)
        later = self._send_later(batch) if names & {"delayLevel", "deliverAt"} else np.zeros(batch.num_rows, np.bool_)
        for topic, rows in (topics or {self._options.topic: np.arange(batch.num_rows, dtype=np.int32)}).items():
            if topic is None:
                raise BadRow(int(rows[0].as_py()), "its topic is null")
            numbers = np.asarray(rows)
            numbers = numbers[~later[numbers]]
            for queue, chosen in self._by_queue(topic, batch, numbers):
                at = 0
                while at < len(chosen):
                    row, first = int(chosen[at]), at
                    body, at = self._batch_body(
                        prepared.bodies,
                        prepared.texts,
                        chosen,
                        at,
                        min(BATCH_BYTES, limit - ADDED_BYTES),
                        self._members_max,
                        self._id_prefix,
                        first_row,
                    )
                    # A batch is cut before it is too large, unless its first row alone is too large.
                    size = len(body) + ADDED_BYTES
                    if size > limit:
                        raise BadRow(row, f"it takes {size} bytes with its properties, and the limit is {limit}")
                    self._batches.send(Parcel(topic, body, queue, at - first))

    def close(self) -> None:
        """Wait until everything has arrived. Raises permanent errors."""
        for outlet in dict.fromkeys((self._batches, self._singles)):
            outlet.close()

    def settle(self) -> None:
        """Wait for everything in flight, whether it succeeds or not."""
        for outlet in dict.fromkeys((self._batches, self._singles)):
            outlet.settle()

    def _by_queue(self, topic: str, batch: pa.RecordBatch, rows: Any) -> Iterator[tuple[MessageQueue | None, Any]]:
        """Group rows that name a queue or broker, or share a sharding key, by queue; the others go to any queue."""
        import numpy as np

        names = set(batch.schema.names)
        if not names & {"queueId", "brokerName", "shardingKey"}:
            yield None, rows
            return
        lanes: dict[MessageQueue | None, list[int]] = {}
        wanted = {
            name: batch.column(name).to_pylist() for name in ("queueId", "brokerName", "shardingKey") if name in names
        }
        for row in rows.tolist():
            values = {name: values[row] for name, values in wanted.items()}
            lanes.setdefault(self._queue(topic, row, **values), []).append(row)
        for queue, chosen in lanes.items():
            yield queue, np.array(chosen, dtype=np.int32)

    def _queue(
        self,
        topic: str,
        row: int,
        queueId: int | None = None,
        brokerName: str | None = None,
        shardingKey: str | None = None,
    ) -> MessageQueue | None:
        from kappamq.client.producer.selection import by_key

        if queueId is None and brokerName is None:
            return by_key(self._known(topic), shardingKey) if shardingKey else None
        fitting = self._known(topic)
        if brokerName is not None:
            fitting = [queue for queue in fitting if queue.broker == brokerName]
        if queueId is None:
            if not fitting:
                brokers = ", ".join(sorted({queue.broker for queue in self._known(topic)}))
                raise BadRow(
                    row, f"{topic} has no queue on broker {brokerName} that can be written; it has on {brokers}"
                )
            if shardingKey:
                return by_key(fitting, shardingKey)
            self._turn += 1
            return fitting[self._turn % len(fitting)]
        chosen = [queue for queue in fitting if queue.queue_id == queueId]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise BadRow(row, f"{topic} has queue {queueId} on {len(chosen)} brokers: name one in a column brokerName")
        where = f" on broker {brokerName}" if brokerName is not None else ""
        raise BadRow(row, f"{topic} has no queue {queueId}{where} that can be written")

    def _known(self, topic: str) -> list[MessageQueue]:
        if topic not in self._queues:
            self._queues[topic] = list(self._producer.queues(topic))
        return self._queues[topic]

    def _send_later(self, batch: pa.RecordBatch) -> Any:
        """Send delayed rows, which cannot be in a batch, one by one; returns which they are."""
        import numpy as np

        names = set(batch.schema.names)
        empty = [None] * batch.num_rows
        levels = batch.column("delayLevel").to_pylist() if "delayLevel" in names else empty
        times = batch.column("deliverAt").to_pylist() if "deliverAt" in names else empty
        later = np.array([bool(level) or time is not None for level, time in zip(levels, times, strict=True)], np.bool_)
        for row in np.flatnonzero(later):
            self._singles.send(self._single(batch, int(row), levels[row], times[row]))
        return later

    def _single(self, batch: pa.RecordBatch, row: int, level: int | None, time: Any) -> Single:
        from kappamq.protocol.records import properties
        from kappamq.spark.sink.outbox import Single

        values = batch.slice(row, 1).to_pylist(maps_as_pydicts="lossy")[0]
        topic = values.get("topic") or self._options.topic
        if not topic:
            raise BadRow(row, "its topic is null")
        body, keys = values["body"], values.get("keys") or ()
        own = {
            name: value for name, value in (values.get("properties") or {}).items() if name not in properties.RESERVED
        }
        try:
            message = Message(
                topic,
                body.encode() if isinstance(body, str) else body,
                tags=values.get("tags") or "",
                keys=tuple(keys.split(" ") if isinstance(keys, str) else keys),
                properties=own,
                sharding_key=values.get("shardingKey") or "",
                delay_level=level or 0,
                deliver_at=time,
            )
        except (TypeError, ValueError) as error:
            raise BadRow(row, str(error)) from None
        queue = self._queue(topic, row, values.get("queueId"), values.get("brokerName"), values.get("shardingKey"))
        return Single(message, queue)

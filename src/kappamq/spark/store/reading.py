"""The tasks of the format `kappamq.store`: read ranges of the log and yield Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kappamq.errors import StoreDamaged
from kappamq.native.layout import SCAN_BLANK, SCAN_EMPTY, SCAN_MORE
from kappamq.protocol.names import is_dlq_topic, is_retry_topic, is_system_topic
from kappamq.protocol.records.record import SYS_COMMITTED, SYS_TRANSACTION
from kappamq.spark.columns import record_columns
from kappamq.spark.columns.batches import AT, DAMAGED, ROWS, SIZE, SYS_FLAG, Batches, only
from kappamq.spark.columns.selection import Selection
from kappamq.spark.store.options import OnDamage, StoreOptions
from kappamq.store.log.stretches import Stretch, Stretches
from kappamq.store.reader import StoreReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

READ_BYTES: Final = 7 << 19
"""A little less than ROWS records of 100 bytes: one batch. Together with its columns, small enough for the processor's cache."""
RECORD_BYTES_MAX: Final = 1 << 30
"""A record that claims more is damaged."""
DELETED_MEANWHILE: Final = "deleted by retention while it was read"
"""The one value of the column `damage` that is not damage: retention deleted the range as configured."""


class StretchReader:
    """Reads stretches of one store for one task."""

    def __init__(self, options: StoreOptions, columns: Sequence[str], required: Collection[str] = ()) -> None:
        self._options = options
        self._reader = StoreReader(Path(options.path))
        self._log = self._reader.log
        self._stretches = Stretches(self._reader)
        self._selection = Selection(options)
        self._batches = Batches(columns, required)
        self._looked_at = Batches(self._selection.columns)
        self._topics = Batches(("topic",))
        self._locate = record_columns.load().locate

    def read(self, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
        try:
            for stretch in stretches:
                yield from self._read(stretch)
        finally:
            self._reader.close()

    def _read(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        at, more = stretch.start, 1
        while at < stretch.stop:
            count = more * min(READ_BYTES, stretch.stop - at)
            data = self._log.read(at, count)
            if not data and (later := self._first_existing(at)) is not None:
                stop = min(later, stretch.stop)
                yield from self._gap(at, stop)
                at, more = stop, 1
                continue
            places, rows, consumed, why = self._locate(data, at, True, len(data))
            if rows:
                table = np.frombuffer(places, dtype=np.int64).reshape(-1, 16)
                table = table[: np.searchsorted(table[:, AT], stretch.stop - at)]
                for part in np.array_split(table, -(-len(table) // ROWS)):
                    yield from self._batch(data, part, at)
                at, more = at + consumed, 1
            elif why == SCAN_BLANK:
                at += self._log.segment_bytes - at % self._log.segment_bytes
            elif why == SCAN_MORE and len(data) == count and count < RECORD_BYTES_MAX:
                more *= 4  # a record longer than what was read, or a stretch that does not end with one
            else:
                behind = self._stretches.next_boundary(at + 1)
                stop = stretch.stop if behind is None else min(behind, stretch.stop)
                text = "nothing was ever written there" if why == SCAN_EMPTY else "these bytes are no record"
                yield from self._damage(at, stop, text)
                at, more = stop, 1

    def _batch(self, data: bytes, places: NDArray[np.int64], start: int) -> Iterator[pa.RecordBatch]:
        damaged = places[:, DAMAGED] != 0
        for row in np.flatnonzero(damaged):
            at, size = int(places[row, AT]), int(places[row, SIZE])
            yield from self._damage(start + at, start + at + size, "checksum mismatch")
        places = only(places, ~damaged)
        if not self._options.system:
            transaction = places[:, SYS_FLAG] & SYS_TRANSACTION
            places = only(places, (transaction == 0) | (transaction == SYS_COMMITTED))
        places = only(places, self._of_wanted_topics(data, places))
        if self._selection.columns and len(places):
            places = only(places, self._selection.rows(self._looked_at.make(data, places, "")))
        bad: list[tuple[int, int, str]] = []

        def leave_out(place: NDArray[np.int64], why: str) -> bool:
            at, size = int(place[AT]), int(place[SIZE])
            bad.append((start + at, start + at + size, why))
            return False

        for batch in self._batches.make_each(data, places, "", leave_out) if len(places) else ():
            if batch.num_rows:
                yield batch
        for first, last, why in bad:
            yield from self._damage(first, last, why)

    def _of_wanted_topics(self, data: bytes, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        topics = self._topics.make(data, places, "").column(0)
        if same := self._topic_of_all(topics):
            return np.full(len(places), self._is_wanted(same))
        names = topics.dictionary_encode()
        wanted = [self._is_wanted(name) for name in names.dictionary.to_pylist()]
        return np.array(wanted, dtype=np.bool_)[np.asarray(names.indices)] if wanted else np.zeros(0, np.bool_)

    @staticmethod
    def _topic_of_all(topics: pa.StringArray) -> str | None:
        """Return the topic if all have the same one, which is usual and much faster to check than each record."""
        count = len(topics)
        if not count:
            return None
        name: str = topics[0].as_py()
        text = name.encode()
        offsets, data = topics.buffers()[1:]
        ends = np.frombuffer(offsets, dtype=np.int32)
        same = bool((np.diff(ends) == len(text)).all()) and data.to_pybytes() == text * count
        return name if same else None

    def _is_wanted(self, topic: str) -> bool:
        return self._options.wants(topic) and self._is_shown(topic)

    def _is_shown(self, topic: str) -> bool:
        if self._options.system or topic in self._options.topics:
            return True
        return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))

    def _damage(self, start: int, stop: int, why: str) -> Iterator[pa.RecordBatch]:
        """Report a stretch that cannot be read: as an error, or as a separate row."""
        if self._options.on_damage is OnDamage.FAIL:
            raise StoreDamaged(
                f"bytes {start} to {stop} of the log in {self._options.path}: {why}. `kappamq store verify` lists all damage; "
                f"the option onDamage=rows makes a row of each such stretch instead"
            )
        yield self._row(start, stop, why)

    def _gap(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Retention deleted the range meanwhile: that is not damage, so it is not an error."""
        log.warning(
            "bytes %d to %d of the log in %s were deleted by retention while they were read; reading continues after them. If you need "
            "them, keep log files longer (fileReservedTime)",
            *(start, stop, self._options.path),
        )
        if self._options.on_damage is OnDamage.ROWS:
            yield self._row(start, stop, DELETED_MEANWHILE)

    def _row(self, start: int, stop: int, why: str) -> pa.RecordBatch:
        values: dict[str, Any] = {"logOffset": start, "size": stop - start, "damage": why}
        arrays = [pa.array([values.get(field.name)], field.type) for field in self._batches.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._batches.schema)

    def _first_existing(self, at: int) -> int | None:
        self._log.refresh()
        return self._log.min if self._log.min > at else None

"""A stream that cannot be read, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from kappamq.errors import KappaError
from kappamq.spark.failures import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa


@without_traceback
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose options or schema are wrong, or that its format cannot read: any call of Spark raises the error."""

    def __init__(self, error: KappaError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error

"""Which rows of a batch match: tags, keys and SQL92 conditions, evaluated on the executor.

The broker may send more than requested, since it compares only hashes of tags. So every row is checked here again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kappamq.errors import ConfigError
from kappamq.filters.sql import Sql
from kappamq.filters.words import BadExpression
from kappamq.protocol.records.tags import Subscription, keys_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Filters(Protocol):
    """The options that filter messages."""

    @property
    def tags(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def filter(self) -> str | None: ...


class Selection:
    """The conditions on a message to become a row. Compiled once per task."""

    def __init__(self, options: Filters) -> None:
        self._tags = Subscription.parse(options.tags)
        self._keys = frozenset(options.keys)
        self._sql = compile_filter(options.filter)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the conditions need."""
        wanted = {"tags": bool(self._tags.tags), "keys": bool(self._keys), "properties": self._sql is not None}
        return tuple(name for name, needed in wanted.items() if needed)

    def rows(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows of `batch`, which has these columns, match."""
        wanted = np.ones(batch.num_rows, dtype=np.bool_)
        if self._tags.tags:
            found = pc.is_in(batch.column("tags"), value_set=pa.array(sorted(self._tags.tags)))
            wanted &= np.asarray(found)
        if self._keys:
            keys = batch.column("keys").to_pylist()
            wanted &= np.fromiter((not self._keys.isdisjoint(keys_of(text)) for text in keys), np.bool_, len(keys))
        if self._sql is not None:
            rows: list[Any] = batch.column("properties").to_pylist(maps_as_pydicts="lossy")
            wanted &= np.fromiter((self._sql.matches(row.get) for row in rows), np.bool_, len(rows))
        return wanted


def compile_filter(text: str | None) -> Sql | None:
    """Compile a condition. Raises ConfigError, which says where it is wrong."""
    if text is None:
        return None
    try:
        return Sql(text)
    except BadExpression as error:
        raise ConfigError(f"filter={text!r}: {error}") from None

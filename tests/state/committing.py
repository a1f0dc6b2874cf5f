"""`Metadata.commit` for a single table, without a store: what is not refused is recorded and applied as a replay would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kappamq.errors import KappaError
from kappamq.state.metadata import Commit, Table

AnyTable = TypeVar("AnyTable", bound=Table)
Record = Callable[[str, Any], int]


def committing(make: Callable[[Commit], AnyTable], record: Record = lambda kind, change: 0) -> AnyTable:
    """The table that `make` builds; its changes go to `record`, which may refuse them."""

    def commit(kind: str, change: Any, *, anyway: bool = False) -> int:
        end = 0
        try:
            end = record(kind, change)
        except KappaError:
            if not anyway:
                raise
        assert kind in table.kinds
        table.apply(kind, msgspec.json.decode(msgspec.json.encode(change)))
        table.dirty = True
        return end

    table = make(commit)
    return table

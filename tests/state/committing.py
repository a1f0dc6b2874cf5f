"""`Metadata.commit` for a single table, without a store: what is not refused is recorded and applied as a replay would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kappamq.clock import VirtualClock
from kappamq.errors import KappaError
from kappamq.state.metadata import Commit, Table
from kappamq.store.message_store import MessageStore
from tests.store.stores import make_room

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


class Directly:
    """As much of LogWriter as metadata needs: no sockets, no gate."""

    def __init__(self, store: MessageStore, clock: VirtualClock) -> None:
        self._store = store
        self._clock = clock

    def append(self, append: Callable[[], tuple[int, int, int]], *, own: bool = False) -> tuple[int, int, int]:
        while True:
            try:
                return append()
            except self._store.kernel_module.SegmentFull:
                make_room(self._store, self._clock.message_ms())

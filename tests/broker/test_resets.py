"""Resets that consumers have not heard of yet: a fold over the log, told to each queue once."""

from __future__ import annotations

from typing import Any

from kappamq.broker.resets import PendingResets
from kappamq.errors import NotAvailable


def test_the_table_is_a_fold() -> None:
    recorded: list[tuple[str, Any]] = []

    def record(kind: str, change: Any) -> int:
        recorded.append((kind, change))
        return 0

    table = PendingResets(record)
    table.add("g", "t", {0: 5, 1: 6})
    table.add("h", "t", {0: 1})
    table.add("g", "u", {0: 2})
    assert table.take("g", "t", 0, 9) == 5
    assert table.get("g", "t", 0) == 5, "told, but nobody knows yet whether it was heard"
    assert table.take("g", "t", 0, 5) is None
    assert table.get("g", "t", 0) is None
    table.forget(topic="u")
    table.forget(topic="u")
    again = PendingResets(record)
    for kind, change in recorded:
        assert kind in PendingResets.kinds
        again.apply(kind, change)
    loaded = PendingResets(record)
    loaded.from_snapshot(table.to_snapshot())
    for copy in (again, loaded):
        assert copy._pending == table._pending == {("g", "t"): {1: 6}, ("h", "t"): {0: 1}}
        assert copy.dirty


def test_a_full_disk_does_not_stop_a_pull() -> None:
    def record(kind: str, change: Any) -> int:
        if kind != "reset":
            raise NotAvailable("the disk is full")
        return 0

    table = PendingResets(record)
    table.add("g", "t", {0: 5})
    assert table.take("g", "t", 0, 9) == 5
    assert table.take("g", "t", 0, 5) is None
    assert table.get("g", "t", 0) is None


def test_who_does_not_obey_is_not_told_for_ever() -> None:
    table = PendingResets(lambda kind, change: 0)
    table.add("g", "t", {0: 5})
    assert [table.take("g", "t", 0, 9) for _ in range(3)] == [5, None, None]
    table.add("g", "t", {0: 5})
    assert table.take("g", "t", 0, 9) == 5, "a new reset is told anew"
    table.forget(group="g")
    assert not table._told

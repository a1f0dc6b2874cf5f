"""Addresses by cluster and by owner."""

from __future__ import annotations

from kappamq.nameserver.liveness import Live, Liveness
from kappamq.protocol.bodies.all import DataVersion


def live(owner: str, heard: float = 0.0) -> Live[str]:
    return Live("b", owner, heard, 10.0, DataVersion(), "ha", [])


def test_put_replaces_the_owner() -> None:
    table: Liveness[str] = Liveness()
    key = ("c", "a:1")
    table.put(key, live("old"))
    table.put(key, live("new"))
    assert len(table) == 1
    assert key in table
    assert list(table) == [key]
    assert table.owned_by("old") == []
    assert table.owned_by("new") == [key]


def test_pop_forgets_the_owner_too() -> None:
    table: Liveness[str] = Liveness()
    for address in ("a:1", "a:2"):
        table.put(("c", address), live("one"))
    assert table.pop(("c", "a:1")) is not None
    assert table.owned_by("one") == [("c", "a:2")]
    assert table.pop(("c", "a:2")) is not None
    assert table.pop(("c", "a:2")) is None
    assert table.owned_by("one") == []
    assert table.get(("c", "a:2")) is None


def test_silent_means_longer_than_the_time_limit() -> None:
    table: Liveness[str] = Liveness()
    table.put(("c", "a:1"), live("one", heard=0.0))
    table.put(("c", "a:2"), live("two", heard=5.0))
    assert table.silent(10.0) == []
    assert table.silent(10.5) == [("c", "a:1")]
    assert table.silent(16.0) == [("c", "a:1"), ("c", "a:2")]

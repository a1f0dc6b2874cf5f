"""Where members are is a table: what was said last counts, and everybody who reads the log knows it."""

from __future__ import annotations

from typing import Any

from kappamq.state.member_places import MemberPlaces


def test_what_was_said_last_counts() -> None:
    said: list[tuple[str, Any]] = []

    def commit(kind: str, change: Any) -> None:
        said.append((kind, change))
        places.apply(kind, change)

    places = MemberPlaces(commit)
    assert places.place("n3") is None
    places.set("n3", None)
    assert said == [], "it is so already"
    places.set("n3", "a:1")
    places.set("n3", "b:2")
    places.set("n3", "b:2")
    places.set("n4", "c:3")
    places.set("n4", None)
    assert len(said) == 4
    assert places.dirty
    assert (places.place("n3"), places.place("n4")) == ("b:2", None)
    other = MemberPlaces(commit)
    for kind, change in said:
        other.apply(kind, change)
    assert other.to_snapshot() == places.to_snapshot() == {"places": {"n3": "b:2"}}
    other.reset()
    assert other.place("n3") is None
    other.from_snapshot(places.to_snapshot())
    assert other.place("n3") == "b:2"

from __future__ import annotations

from kappamq.replication.held import Held


def test_held_is_the_report_of_the_last_one_that_is_awaited() -> None:
    held = Held(2, 1000)
    held.report("a", 500, 500)
    assert held.missing() == "1 of 2 slaves that are awaited are connected"
    held.report("b", 300, 500)
    held.report("c", 400, 500)
    assert (held.held(), held.missing()) == (400, None)


def test_what_was_held_stays_held() -> None:
    held = Held(1, 1000)
    held.report("a", 500, 500)
    held.lost("a")
    assert (held.held(), held.missing()) == (500, "0 of 1 slaves that are awaited are connected")
    held.report("b", 100, 500)
    assert (held.held(), held.missing()) == (500, None)


def test_who_is_too_far_behind_counts_as_absent() -> None:
    held = Held(1, 1000)
    held.report("a", 500, 1500)
    assert held.missing() is None
    held.grown(1501)
    assert held.missing() == "0 of 1 slaves that are awaited are connected, 1 too far behind"
    held.report("a", 1501, 1501)
    assert held.missing() is None


def test_who_is_too_far_behind_stays_absent_when_another_goes() -> None:
    held = Held(1, 1000)
    held.report("far", 0, 5000)
    held.report("near", 5000, 5000)
    held.lost("near")
    assert held.missing() == "0 of 1 slaves that are awaited are connected, 1 too far behind"


def test_nobody_is_missing_where_nobody_is_awaited() -> None:
    held = Held(0, 1000)
    held.lost("a")
    assert held.missing() is None

from __future__ import annotations

import pytest

from kappamq.raft.log import Log
from kappamq.raft.members import Members
from kappamq.raft.terms import TermRecord, Terms

BASE = TermRecord(0, 0, Members())


def log(end: int = 100, confirmed: int = 40) -> Log:
    return Log(Terms(BASE, [TermRecord(60, 2, Members())]), end, confirmed)


@pytest.mark.parametrize(("end", "confirmed"), [(100, 101), (60, 40), (100, -1)])
def test_parts_that_contradict_each_other(end: int, confirmed: int) -> None:
    with pytest.raises(ValueError):
        log(end, confirmed)


def test_a_flush_of_before_a_cut_is_none() -> None:
    one = log()
    one.appended(150)
    one.cut(80)
    assert (one.end, one.flushed, one.generation) == (80, 80, 1)
    one.cutting = False
    one.appended(130)
    assert not one.was_flushed(120, 0), "it covered other bytes"
    assert one.was_flushed(110, 1)
    assert not one.was_flushed(110, 1), "no news"
    assert one.flushed == 110
    with pytest.raises(AssertionError, match="ends at 130 and cannot be flushed up to 131"):
        one.was_flushed(131, 1)


def test_no_cut_below_confirmed_none_at_the_end_and_one_at_a_time() -> None:
    one = log()
    with pytest.raises(AssertionError, match="confirmed up to 40"):
        one.cut(39)
    with pytest.raises(AssertionError, match="refusing to cut"):
        one.cut(100)
    one.cut(40)
    assert one.terms.records == ()
    with pytest.raises(AssertionError, match="one cut at a time"):
        one.cut(40)
    with pytest.raises(AssertionError, match="while the log is being cut"):
        one.appended(50)


def test_confirmed_and_end_only_grow() -> None:
    one = log()
    one.confirm(70)
    with pytest.raises(AssertionError, match="from 70 to 69"):
        one.confirm(69)
    with pytest.raises(AssertionError, match="from 70 to 101"):
        one.confirm(101)
    with pytest.raises(AssertionError, match="already reaches 100"):
        one.appended(99)
    with pytest.raises(AssertionError, match="does not follow 100"):
        one.record_appended(TermRecord(110, 3, Members()), 120)
    one.record_appended(TermRecord(100, 3, Members()), 120)
    assert (one.end, one.last_term) == (120, 3)

"""Term lists: what they say of a log, and that two of them find where their logs part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.raft.members import MemberId, Members
from kappamq.raft.terms import TermRecord, Terms

ONE = Members(frozenset({MemberId("A", 1)}))
TWO = ONE.with_learner(MemberId("B", 1))
BASE = TermRecord(0, 0, ONE)


def terms(*starts: tuple[int, int]) -> Terms:
    return Terms(BASE, [TermRecord(start, term, ONE) for start, term in starts])


def test_the_term_before_an_offset() -> None:
    log = terms((10, 1), (30, 4))
    assert [log.term_before(offset) for offset in (0, 10, 11, 30, 31, 99)] == [0, 0, 1, 1, 4, 4]
    assert terms((0, 1)).term_before(0) == 0


def test_the_end_of_a_term() -> None:
    log = terms((10, 1), (30, 4), (40, 4), (50, 7))
    assert [log.end_of(term, 60) for term in (0, 1, 2, 4, 6, 7, 9)] == [
        (0, 10),
        (1, 30),
        (1, 30),
        (4, 50),
        (4, 50),
        (7, 60),
        (7, 60),
    ]
    trimmed = Terms(TermRecord(40, 4, ONE))
    assert trimmed.end_of(2, 60) == (4, 40), "all that is known is later"


def test_what_cannot_follow() -> None:
    log = terms((10, 2))
    with pytest.raises(AssertionError, match="cannot follow one at 10"):
        log.append(TermRecord(10, 3, ONE))
    with pytest.raises(AssertionError, match="term 1 at 20 cannot follow term 2"):
        log.append(TermRecord(20, 1, ONE))


@pytest.mark.parametrize(
    ("starts", "follows"),
    [
        ([], True),
        ([(20, 2)], True),
        ([(20, 2), (25, 5)], True),
        ([(19, 2)], False),
        ([(30, 2)], False),
        ([(20, 1)], False),
        ([(20, 6)], False),
        ([(25, 3), (25, 3)], False),
        ([(22, 3), (25, 2)], False),
    ],
)
def test_what_a_leader_of_term_5_can_have_from_20_to_30(starts: list[tuple[int, int]], follows: bool) -> None:
    records = tuple(TermRecord(start, term, ONE) for start, term in starts)
    assert terms((10, 2)).may_follow(records, 20, 30, 5) is follows
    assert not terms((10, 2)).may_follow((), 20, 19, 5)


def test_a_cut_brings_the_members_of_before() -> None:
    log = terms((10, 1))
    log.append(TermRecord(20, 1, TWO))
    log.append(TermRecord(30, 2, TWO))
    assert [record.start for record in log.between(10, 30)] == [10, 20]
    assert log.between(31, 99) == ()
    log.cut(30)
    assert (log.last.term, log.last.members) == (1, TWO)
    log.cut(20)
    assert log.last.members == ONE
    log.cut(0)
    assert log.last == BASE
    trimmed = terms((10, 1), (30, 4))
    trimmed.trim(20)
    with pytest.raises(AssertionError, match="cannot cut to 19: the log begins at 20"):
        trimmed.cut(19)


def test_deleted_bytes_leave_their_term_and_members() -> None:
    log = terms((10, 1))
    log.append(TermRecord(20, 3, TWO))
    log.trim(20)
    assert log.base == TermRecord(20, 1, ONE)
    assert [record.start for record in log.records] == [20]
    log.trim(25)
    assert (log.base, log.records) == (TermRecord(25, 3, TWO), ())
    log.trim(5)
    assert log.base.start == 25, "nothing comes back"


@given(st.data())
def test_two_logs_find_where_they_part(data: st.DataObject) -> None:
    """As a follower and a leader do it: each answer leads to an earlier position, and the first that fits is common to both."""
    common = data.draw(st.lists(st.integers(1, 3), max_size=4))
    common.sort()
    logs = []
    for later in (st.sampled_from([4, 6, 8]), st.sampled_from([5, 7, 9])):
        logs.append(common + sorted(data.draw(st.lists(later, max_size=5))))
    follower, leader = (Terms(BASE), Terms(BASE))
    for terms_, units in ((follower, logs[0]), (leader, logs[1])):
        for offset, term in enumerate(units):
            if term > terms_.last.term:
                terms_.append(TermRecord(offset, term, ONE))
    end = len(logs[0])
    for _ in range(10):
        last_term = follower.term_before(end)
        point_term, point_end = leader.end_of(last_term, len(logs[1]))
        if point_term == last_term and end <= point_end:
            break
        term, term_end = follower.end_of(point_term, end)
        shorter = min(term_end, point_end) if term == point_term else term_end
        assert shorter < end
        follower.cut(shorter)
        end = shorter
    assert end == len(common), "neither more nor less than what is the same"

import pytest

from kappamq.raft.members import MemberId, Members
from kappamq.raft.messages import Append
from kappamq.raft.terms import TermRecord

A, B = MemberId("A", 1), MemberId("B", 1)
RECORDS = (TermRecord(20, 2, Members()), TermRecord(40, 3, Members()))


def test_an_append_that_ends_earlier_has_only_the_records_that_begin_in_it() -> None:
    append = Append(A, B, 3, 1, 10, 50, 1, RECORDS, 5)
    assert append.ending(50) is append
    assert append.ending(40).records == RECORDS[:1]
    assert append.ending(41).records == RECORDS
    assert (append.ending(20).end, append.ending(20).records) == (20, ())


def test_an_append_does_not_end_later_than_its_term_records_are_known() -> None:
    append = Append(A, B, 3, 1, 10, 50, 1, RECORDS, 5)
    with pytest.raises(AssertionError, match="cannot end at 51"):
        append.ending(51)

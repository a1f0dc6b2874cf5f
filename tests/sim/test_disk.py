from __future__ import annotations

from random import Random

import pytest

from kappamq.raft import Ballot, Members, TermRecord
from kappamq.sim.disk import Disk, piece_after

BASE = TermRecord(0, 0, Members())


def disk(*sizes: int) -> Disk:
    made = Disk(BASE)
    for number, size in enumerate(sizes):
        made.append(piece_after(made.end, size, 1, made.chain, number))
    return made


def test_pieces() -> None:
    one = disk(3, 2, 4)
    assert (one.end, one.ends) == (9, [3, 5, 9])
    assert one.chain_at(0) == 0
    assert one.chain_at(5) == one.pieces[1].chain
    assert (one.term_before(5), one.term_before(4), one.term_before(99)) == (1, None, None)
    assert one.chain_at(4) is one.chain_at(99) is None
    assert [piece.end for piece in one.between(3, 9)] == [5, 9]
    assert [piece.end for piece in one.between(3, 8)] == [5]
    assert [piece.end for piece in one.between(5, 6)] == [9], "one at least"
    with pytest.raises(AssertionError, match="does not follow 9"):
        one.append(piece_after(8, 1, 1, 0, 0))


def test_the_chain_stands_for_all_bytes_before() -> None:
    one, same, other = disk(3, 2), disk(3, 2), disk(2, 3)
    assert one.chain == same.chain != other.chain


def test_a_crash_keeps_what_was_flushed_and_any_prefix_of_the_rest() -> None:
    ends, ballots = set(), set()
    for seed in range(60):
        one = disk(3, 2, 4)
        one.synced = 3
        one.unsaved = Ballot(2, None)
        one.crash(Random(seed))
        assert one.synced == one.end, "what a start finds is made durable"
        ends.add(one.end)
        ballots.add(one.ballot)
    assert ends == {3, 5, 9}
    assert ballots == {Ballot(0, None), Ballot(2, None)}


def test_a_crash_in_a_cut_leaves_the_old_tail_or_the_new_end() -> None:
    ends = set()
    for seed in range(20):
        one = disk(3, 2, 4)
        one.synced, one.cutting = 9, 3
        one.crash(Random(seed))
        ends.add(one.end)
    assert ends == {3, 9}


def test_cut_and_trimmed() -> None:
    one = disk(3, 2, 4)
    with pytest.raises(AssertionError, match="4 is not the end"):
        disk(3, 2).shorten(4)
    middle = one.chain_at(5)
    one.synced = 9
    one.trim(5, BASE._replace(start=5))
    assert (one.chain_at(5), one.chain_at(3), one.end) == (middle, None, 9)
    one.shorten(5)
    assert (one.end, one.synced, one.chain) == (5, 5, middle)
    assert one.terms().base.start == 5

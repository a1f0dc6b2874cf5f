"""Reading along, against what a start reads; in pieces of any size (test_half_log.py plays whole lives)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.transactions.half_fold import HalfFold
from kappamq.broker.transactions.open_transactions import Outcome
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from tests.broker.half_life import HalfLife
from tests.broker.transacting import COMMIT, ROLLBACK
from tests.broker.transactions.test_half_log import java_half, java_op


def bodies(life: HalfLife, fold: HalfFold) -> list[bytes]:
    return [life.log.load(half).body for half in fold.halves._live.values()]


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_what_is_ended_after_it_was_read_is_open_no_more(tmp_path: Path, count: int) -> None:
    life = HalfLife(tmp_path)
    a, b, c = (life.begin(body) for body in (b"a", b"b", b"c"))
    life.write()
    fold = life.new_fold()
    while fold.read_on(count):
        pass
    assert bodies(life, fold) == [b"a", b"b", b"c"]
    assert (life.end(a, COMMIT), life.end(c, ROLLBACK)) == (0, 0)
    life.begin(b"d")
    life.write()
    assert fold.is_behind
    fold.read_all()
    assert not fold.is_behind
    assert bodies(life, fold) == [b"b", b"d"]
    outcomes = [ended[0] for ended in map(fold.halves.ended, (a.log_offset, c.log_offset)) if ended is not None]
    assert outcomes == [Outcome.COMMITTED, Outcome.ROLLED_BACK]
    assert fold.halves.get(b.log_offset) is not None
    life.store.close(clean=False)


def test_a_copy_takes_the_place_of_what_was_read(tmp_path: Path) -> None:
    life = HalfLife(tmp_path)
    life.join("pg")
    begun = life.begin(b"x")
    life.write()
    fold = life.new_fold()
    fold.read_all()
    life.pass_time(6000)
    life.write()
    fold.read_all()
    half = fold.halves.get(begun.log_offset)
    assert half is not None
    assert (half.checks, half.queue_offset, len(fold.halves)) == (1, 1, 1)
    assert fold.halves.counts == {"t": 1}
    life.store.close(clean=False)


def test_a_copy_of_java_ends_with_its_original(tmp_path: Path) -> None:
    life = HalfLife(tmp_path)
    life.appender.append(java_half(b"x"))
    life.appender.append(java_half(b"x", TRAN_PREPARED_QUEUE_OFFSET="0"))
    life.write()
    fold = life.new_fold()
    fold.read_all()
    assert bodies(life, fold) == [b"x", b"x"], "nothing says yet that these are one"
    life.appender.append(java_op(b"0,"))
    life.write()
    fold.read_all()
    assert bodies(life, fold) == []
    life.store.close(clean=False)


def test_a_copy_of_something_that_is_no_message(tmp_path: Path) -> None:
    """In the store of a Java broker a producer may have chosen what stands there."""
    life = HalfLife(tmp_path)
    life.appender.append(java_half(b"x", TRAN_PREPARED_QUEUE_OFFSET="9" * 4301))
    life.write()
    fold = life.new_fold()
    fold.read_all()
    assert bodies(life, fold) == [b"x"]
    life.store.close(clean=False)


def test_it_is_outdated_when_the_clock_was_set(tmp_path: Path) -> None:
    life = HalfLife(tmp_path)
    fold = life.new_fold()
    assert not fold.is_outdated
    life.store.clock_steps = ClockSteps().plus(ClockStep(10, 1000, 5))
    assert fold.is_outdated
    life.store.close(clean=False)

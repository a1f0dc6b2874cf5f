"""The parts of an expression on their own. What they mean together is test_sql.py's."""

from __future__ import annotations

import pytest

from kappamq.filters import conditions
from kappamq.filters.conditions import Kind, Mismatch, Operand


def number(value: int) -> Operand:
    return Operand(Kind.INT32, 3, value)


A = Operand(Kind.PROPERTY, 7, "a")


def test_a_property_is_no_truth_but_may_be_unknown() -> None:
    assert conditions.truth(A)({"a": "true"}.get) is False
    assert conditions.truth(A)({}.get) is None


@pytest.mark.parametrize("operand", [number(1), Operand(Kind.TEXT, 3, "x"), conditions.minus(A, 3)])
def test_no_condition(operand: Operand) -> None:
    with pytest.raises(Mismatch, match="is no condition") as caught:
        conditions.truth(operand)
    assert caught.value.position == 3


def test_depth_is_that_of_the_deepest() -> None:
    inner = conditions.equal(A, number(1))
    assert inner.depth == 1
    assert conditions.all_of([inner, conditions.negation(conditions.negation(inner))]).depth == 4


def test_minus_counts_as_not_written_down() -> None:
    assert conditions.minus(number(5), 0).value == -5
    conditions.between(A, conditions.minus(number(3), 0), conditions.minus(number(5), 0))
    with pytest.raises(Mismatch, match="the smaller bound comes first"):
        conditions.between(A, number(5), number(3))


def test_a_condition_below_minus_may_still_fail() -> None:
    below = conditions.minus(conditions.ordered(A, ">", number(1)), 0)
    unknown = conditions.is_null(below).condition
    assert unknown is not None
    assert unknown({"a": "2"}.get) is True
    with pytest.raises(ValueError):
        unknown({"a": "two"}.get)


def test_the_first_that_decides_ends_it() -> None:
    fails = conditions.ordered(A, ">", number(1))
    for joined in (
        conditions.any_of([Operand(Kind.BOOLEAN, 0, True), fails]),
        conditions.negation(conditions.all_of([Operand(Kind.BOOLEAN, 0, False), fails])),
    ):
        assert joined.condition is not None
        assert joined.condition({"a": "two"}.get) is True

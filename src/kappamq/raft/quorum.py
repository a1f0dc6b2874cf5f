"""Majorities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

_T = TypeVar("_T")


def is_majority(some: AbstractSet[_T], voters: AbstractSet[_T]) -> bool:
    """Whether `some` contains more than half of `voters`; false if there are no voters."""
    return 2 * len(some & voters) > len(voters)


def held_by_majority(voters: Collection[_T], held: Mapping[_T, int]) -> int:
    """The largest offset that more than half of `voters` hold. A voter that is missing in `held` holds nothing; without voters it is 0."""
    offsets = sorted(held.get(voter, 0) for voter in voters)
    return offsets[(len(offsets) - 1) // 2] if offsets else 0

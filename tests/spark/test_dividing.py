"""Reads are divided so that all cores have as much to do, and tasks are not too small for what each costs."""

from __future__ import annotations

import os

import pytest

from kappamq.spark.dividing import task_count


@pytest.mark.parametrize(
    ("total", "cores", "count"),
    [
        (0, 2, 1),
        (19, 2, 1),  # not worth a second task
        (20, 2, 2),
        (100, 2, 2),
        (100, 8, 8),
        (55, 8, 5),
        (201, 2, 4),  # three would keep one core waiting
        (500, 2, 6),
        (500, 8, 8),
    ],
)
def test_each_core_has_something_to_do(total: int, cores: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert task_count(total, least=10, most=100) == count


def test_as_many_as_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert task_count(5, least=10, most=100, at_least=7) == 7
    assert task_count(1000, least=10, most=100, at_least=7) == 10


def test_where_nobody_knows_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert task_count(1000, least=10, most=100) == 10

"""The figures of the shop, where they can be looked at without Spark; tests/cli/shop/test_command.py runs the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kappamq.cli.shop.sales import Figures, Sale, Sales, latest
from kappamq.errors import KappaError


def message(queue: int, offset: int, what: str, orders: int) -> tuple[int, int, bytes]:
    return (
        queue,
        offset,
        json.dumps({"what": what, "orders": orders, "pieces": 2 * orders, "cents": 100 * orders}).encode(),
    )


def test_the_last_sums_of_each_thing_count() -> None:
    messages = [message(1, 3, "tea", 9), message(0, 0, "pot", 2), message(1, 2, "tea", 4), message(0, 1, "pot", 12)]
    assert latest(messages) == (Sale("pot", 12, 24, 1200), Sale("tea", 9, 18, 900))
    assert latest([]) == ()


@pytest.mark.parametrize(
    ("counted", "archived", "sold", "problems"),
    [
        (10, 10, 10, 0),
        (30, 30, 10, 0),  # with those of earlier runs
        (9, 10, 10, 1),
        (11, 10, 10, 1),
        (9, 9, 10, 1),
        (8, 9, 10, 2),
    ],
)
def test_figures_that_do_not_agree_are_told(counted: int, archived: int, sold: int, problems: int) -> None:
    figures = Figures((Sale("tea", counted, 1, 1),), archived, Path("archive"))
    assert len(figures.problems(sold)) == problems


def test_nothing_was_started(tmp_path: Path) -> None:
    sales = Sales("127.0.0.1:1", "orders", tmp_path)
    with pytest.raises(KappaError, match="never started"):
        sales.finish()
    sales.stop()

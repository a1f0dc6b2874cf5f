"""Consuming, tiny: it shows that every way still works and that the figures are there, not what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench import TOY, Bench
from benchmarks.clients import compare, consume, sender
from benchmarks.clients.meter import Meter
from benchmarks.clients.peers import loads
from benchmarks.clients.reader import WAYS
from tests.needs import needs


@pytest.mark.slow
def test_every_way_of_consuming_is_measured(tmp_path: Path) -> None:
    bench = Bench(replace(TOY, runs=1), disk=tmp_path, quiet=True)
    figures = consume.measure(bench, consume.COUNTS["toy"], list(WAYS))
    assert [figure.what for figure in figures] == list(WAYS)
    assert all(figure.value is not None and figure.value > 0 for figure in figures)


@pytest.mark.slow
def test_another_tree_is_measured_in_turns(tmp_path: Path) -> None:
    bench = Bench(replace(TOY, runs=1), disk=tmp_path, quiet=True)
    figures = consume.measure(bench, consume.COUNTS["toy"], ["poll"], consume.HERE)
    assert [figure.what for figure in figures] == ["poll", "poll, old / new"]


@pytest.mark.slow
def test_every_way_of_our_own_client_is_compared(tmp_path: Path) -> None:
    bench = Bench(replace(TOY, runs=1), disk=tmp_path, quiet=True)
    ways = [*sender.WAYS, "poll", "listener in threads"]
    figures = compare.measure(bench, compare.COUNTS["toy"], ways)
    assert [figure.what for figure in figures] == [*ways, "poll / listener in threads"]
    assert all(figure.value is not None and figure.value > 0 for figure in figures)
    assert "p50" in next(figure.note for figure in figures if figure.what == "send and wait")


@pytest.mark.interop
@needs("maven")
def test_the_official_client_is_compared_with_the_same_broker(tmp_path: Path) -> None:
    bench = Bench(replace(TOY, runs=1), disk=tmp_path, quiet=True)
    ways = ["callback", "listener in threads", *compare.JAVA]
    figures = {figure.what: figure for figure in compare.measure(bench, compare.COUNTS["toy"], ways)}
    for what in ("callback / java send, rate", "listener in threads / java consume, rate"):
        value = figures[what].value
        assert value is not None
        assert value > 0


def test_every_other_client_has_a_server_and_every_goal_names_ways_that_are_there() -> None:
    assert {way.split()[0] for way in loads.WAYS} == set(compare.SERVER_OF)
    assert set(compare.SERVER_OF.values()) == set(compare.SERVERS)
    known = {*sender.WAYS, *WAYS, *loads.WAYS, *compare.JAVA}
    assert all({goal.ours, goal.theirs} <= known for goal in compare.GOALS)


def test_the_first_tenth_is_not_counted() -> None:
    meter = Meter(100)
    assert not meter.see(9, 9)
    assert not meter.see(6, 6)
    assert meter.see(90, 90)
    result = meter.result()
    assert (result["messages"], result["body_bytes"]) == (105, 105)
    assert result["cpu_us"] >= 0
    assert meter.done.is_set()

"""Every benchmark, at toy size: it still runs, and it still measures what it says. Figures are not judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scenarios
from benchmarks.bench import TOY, Bench, Figure
from tests.needs import needs

pytestmark = [needs("compiler"), pytest.mark.slow]

EXPECTED = {
    "echo": {"broker / echo"},
    "kernel": {"twin / native, 32x1", "twin / native, 8x64", "twin / native, 8x8 batches of 32"},
    "variants": {"8x64, one write per request, 100 B", "8x64, binary headers, 100 B", "pulls of 32, 8x1, 100 B"},
    "flush": {"sync / async"},
    "queues": {"many / 8 queues", "160 queues, ready after kill -9", "160 queues, RssAnon when ready"},
    "groups": {"20 groups, memory of one", "heartbeat, broker CPU", "20 groups read all, pulls of 32"},
    "holding": {"client with 160 idle queues, CPU", "a message of 100 B that waits", "a message of 1000 B that waits"},
    "push": {"end to end, coroutine listener, p50", "end to end, thread listener, p99"},
    "rebalance": {"5 members, 16 queues, all come", "5 members, 16 queues, one leaves"},
    "transactions": {"4x16, 100 B, async flush", "one transaction, broker CPU, sync flush", "questions to producers"},
    "timers": {"2,000 pending, RssAnon", "enqueue rate", "due rate", "500 due in 0.3 s, late p99"},
    "hostile": {"p99.9, added by hostile peers", "CPU of the longest turn", "p99.9 alone"},
    "shapes": {"2 brokers, 8x64", "2 brokers / 1, 8x64", "with a synchronous slave / alone, 32x1"},
    "raft": {"raft / a synchronous slave, rate", "a follower / alone, RssAnon", "raft of 3, CPU"},
    "filling": {"unpaced", "p99 of sends, beside / before"},
    "idle": {"kappamq up, ready", "kappamq up, RssAnon", "kappamq up, CPU"},
}


def check(figures: list[Figure], expected: set[str]) -> None:
    named = {figure.what: figure for figure in figures}
    assert expected <= named.keys()
    for figure in figures:
        assert figure.value is not None or figure.note, f"{figure.what} was not measured and does not say why"
        if figure.value is not None and "CPU" not in figure.what and figure.scenario != "hostile":
            assert figure.value > 0


@pytest.mark.parametrize("name", EXPECTED)
def test_runs(name: str, tmp_path: Path) -> None:
    check(scenarios.load(name)(Bench(TOY, disk=tmp_path, quiet=True)), EXPECTED[name])


@needs("root")
def test_backlog_runs(tmp_path: Path) -> None:
    figures = scenarios.load("backlog")(Bench(TOY, disk=tmp_path, quiet=True))
    check(figures, {"cold / smaller of tail and disk", "ready after kill -9, page cache dropped", "beside / alone"})


def test_all_scenarios_are_tested() -> None:
    assert set(scenarios.ALL) == {*EXPECTED, "backlog"}

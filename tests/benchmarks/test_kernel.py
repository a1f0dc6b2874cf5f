"""benchmarks.kernel at toy size: it runs, and both kernels do the same work."""

from __future__ import annotations

import pytest

from benchmarks import kernel
from kappamq.native import load


def kinds() -> tuple[str, ...]:
    try:
        load("native")
    except ImportError:
        return ("twin",)
    return ("twin", "native")


def test_every_scenario_does_the_same_work_with_each_kernel() -> None:
    results = kernel.measure(messages=128, runs=1, kinds=kinds())
    for name in kernel.scenarios(1):
        rows = [result for result in results if result.scenario == name]
        assert len(rows) == len(kinds())
        assert len({row.fingerprint for row in rows}) == 1, name
        assert all(row.microseconds > 0 for row in rows)


def test_the_command_prints_a_line_per_scenario(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kernel", "--messages", "64", "--runs", "1", "--kernel", "twin"])
    kernel.main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(kernel.scenarios(1))

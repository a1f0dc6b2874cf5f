"""benchmarks.columns at toy size: it runs, and all do the same work."""

from __future__ import annotations

import pytest

from benchmarks import columns


def test_all_do_the_same_work() -> None:
    results = columns.measure(rows=50, runs=1)
    for scenario in columns.SCENARIOS:
        found = [result for result in results if result.scenario == scenario]
        assert [result.kind for result in found] == list(columns.kinds())
        assert len({result.fingerprint for result in found}) == 1, scenario


def test_the_command_prints_a_line_per_scenario(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["columns", "--rows", "10", "--runs", "1"])
    columns.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(columns.SCENARIOS)
    assert "NOT THE SAME WORK" not in "".join(lines)

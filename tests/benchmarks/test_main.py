"""The command itself: options reach the scenarios, and the exit code says what --strict asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import scenarios
from benchmarks.bench import Bench, Figure
from benchmarks.loader import LoadFailed


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Bench]]:
    calls: list[tuple[str, Bench]] = []

    def load(name: str) -> object:
        def run(bench: Bench) -> list[Figure]:
            calls.append((name, bench))
            return [Figure(name, "ratio", 0.5, "x", at_least=0.7)]

        return run

    monkeypatch.setattr(scenarios, "load", load)
    return calls


def test_all_scenarios_by_default(seen: list[tuple[str, Bench]], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert [name for name, _ in seen] == list(scenarios.ALL)
    assert seen[0][1].size.runs >= 5
    assert seen[0][1].size.backlog == 50_000_000
    assert "NO" in capsys.readouterr().out


def test_options_reach_the_scenario(seen: list[tuple[str, Bench]], tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    arguments = ["--quick", "--backlog", "7", "--runs", "3", "--disk", str(tmp_path), "--kernel", "twin"]
    assert command.main(["backlog", *arguments, "--json", str(written)]) == 0
    ((name, bench),) = seen
    assert name == "backlog"
    assert (bench.size.backlog, bench.size.runs, bench.disk, bench.kernel) == (7, 3, tmp_path, "twin")
    assert json.loads(written.read_text())["figures"][0]["value"] == 0.5


def test_a_missed_goal_is_an_error_if_asked_for(seen: list[tuple[str, Bench]]) -> None:
    assert command.main(["echo", "--strict"]) == 1


def test_one_that_fails_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(bench: Bench) -> list[Figure]:
        raise LoadFailed("the broker closed connection 3")

    monkeypatch.setattr(scenarios, "load", lambda name: run)
    assert command.main(["echo", "idle"]) == 1
    assert capsys.readouterr().out.count("the broker closed connection 3") == 2


def test_an_unknown_scenario_is_named(seen: list[tuple[str, Bench]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "nonsense" in capsys.readouterr().err


def test_a_backlog_too_large_for_the_disk_is_refused_with_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from benchmarks.bench import TOY
    from benchmarks.scenarios import backlog

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    bench = Bench(replace(TOY, backlog=10**12), disk=tmp_path, quiet=True)
    (figure,) = backlog.run(bench)
    assert figure.value is None
    assert "GiB of disk" in figure.note
    assert "--backlog" in figure.note

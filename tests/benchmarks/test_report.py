"""Tables, JSON and the marked section of the README."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Figure

FIGURES = [
    Figure.median("kernel", "twin / native", [2.0, 1.5, 4.0], "x", at_least=1.7),
    Figure("idle", "RssAnon", 93.5, "MB", at_most=80),
    Figure("backlog", "50,000,000 messages", None, note="needs root"),
    Figure("echo", "bare echo", 123456.0, "requests/CPU s"),
]


def test_a_figure_is_the_median_and_knows_its_goal() -> None:
    assert FIGURES[0].value == 2.0
    assert [figure.holds for figure in FIGURES] == [True, False, None, None]
    assert [figure.goal for figure in FIGURES] == [">= 1.7", "<= 80", "", ""]
    assert report.failures(FIGURES) == [FIGURES[1]]


def test_the_table_says_what_was_missed_and_what_was_not_measured() -> None:
    lines = report.text(FIGURES).splitlines()
    assert len(lines) == 2 + len(FIGURES)
    assert "1.5 - 4" in lines[2]
    assert lines[2].split()[-1] == "yes"
    assert "NO" in lines[3].split()
    assert "not measured" in lines[4]
    assert "needs root" in lines[4]
    assert "123,456" in lines[5]


def test_json_keeps_the_samples(tmp_path: Path) -> None:
    report.write_json(tmp_path / "out.json", FIGURES, "make bench")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["command"] == "make bench"
    assert written["figures"][0]["samples"] == [2.0, 1.5, 4.0]
    assert written["figures"][1]["holds"] is False


def test_only_the_marked_section_of_the_readme_changes(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Figures\n\nBefore.\n")
    report.update_section(readme, "make bench", "make bench", FIGURES[:1])
    report.update_section(readme, "make peer", "make peer", FIGURES[3:])
    text = readme.read_text() + "\nAfter.\n"
    readme.write_text(text)
    report.update_section(readme, "make bench", "make bench", FIGURES[1:2])
    changed = readme.read_text()
    assert changed.startswith("# Figures\n\nBefore.\n")
    assert changed.endswith("\nAfter.\n")
    assert "RssAnon" in changed
    assert "twin / native" not in changed
    assert "bare echo" in changed
    assert changed.count("<!-- results of `make bench` -->") == 1

"""Old tree beside new, tiny: both trees are this one, so it shows that the comparison runs and not what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import versus
from benchmarks.__main__ import main
from tests.needs import needs


@needs("compiler")
@pytest.mark.slow
def test_both_trees_are_measured_in_turns(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    arguments = ["--rounds", "2", "--seconds", "0.1", "--size", "toy", "--disk", str(tmp_path), "--json", str(written)]
    assert (
        main(["versus", str(versus.HERE), "send, 1x1", "pulls", "max offset", "flush, sync", "idle", *arguments]) == 0
    )
    figures = {figure["what"]: figure for figure in json.loads(written.read_text())["figures"]}
    assert len(figures) == 5 * 3
    for figure in figures.values():
        assert len(figure["samples"]) == 2
        assert figure["value"] > 0
    assert figures["send, 1x1, new / old"]["goal"] == "<= 1.03"


def test_the_ratio_is_taken_within_a_round() -> None:
    rounds = [
        {versus.OLD: 1.0, versus.NEW: 2.0},
        {versus.OLD: 10.0, versus.NEW: 10.0},
        {versus.OLD: 4.0, versus.NEW: 6.0},
    ]
    old, new, ratio = versus.figures(versus.FIGURES[0], rounds)
    assert (old.value, new.value, ratio.value) == (4.0, 6.0, 1.5)
    assert sorted(ratio.samples) == [1.0, 1.5, 2.0]
    assert ratio.holds is False


def test_a_folder_that_is_no_tree_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versus", str(tmp_path)]) == 2
    assert "is no tree of this project" in capsys.readouterr().err


def test_a_tree_that_python_does_not_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(versus.NotATree, match="and not"):
        versus.check_source(tmp_path / "src", "twin")


def test_names_that_no_figure_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versus", str(versus.HERE), "no such"]) == 2
    assert "kernel, 32x1" in capsys.readouterr().err

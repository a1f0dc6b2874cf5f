from __future__ import annotations

import pytest

from kappamq.sim.command import main


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code, "".join(capsys.readouterr())


def test_histories(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--seeds", "3")
    assert code == 0
    assert text.startswith("3 histories from seed 0: no failures")
    code, text = told(capsys, "--seed", "7")
    assert text.startswith("1 histories from seed 7")


def test_a_failure_says_how_to_have_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--seeds", "50", "--mutant", "shows-written")
    assert code == 1
    assert "again: python -m kappamq.sim --seed 0 --mutant shows-written" in text
    assert "stopped after 5 failures" in text
    code, again = told(capsys, "--seed", "0", "--mutant", "shows-written")
    assert code == 1
    assert again.splitlines()[0] == text.splitlines()[0]


def test_mutants_that_are_not_found_are_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kappamq.sim import command, mutants

    some = {"good": mutants.Mutant("does nothing wrong"), "bad": mutants.MUTANTS["shows-written"]}
    monkeypatch.setattr(command, "MUTANTS", some)
    code, text = told(capsys, "--mutants", "--seeds", "1")
    assert code == 1
    assert "NOT FOUND in 1 histories" in text
    assert "1 of 2 found" in text


def test_arguments_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--seeds", "0")
    assert code == 2
    assert "--seeds must be 1 or more" in text

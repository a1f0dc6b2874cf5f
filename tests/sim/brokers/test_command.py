from __future__ import annotations

import pytest

from kappamq.sim.brokers import command
from tests.sim.test_command import told


def test_mutants_of_brokers_have_names() -> None:
    assert "vote-unsynced" in command.names()
    assert command.what("vote-unsynced") == "the vote is not durable when it is given"


def test_histories_and_planted_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--brokers", "--seeds", "1")
    assert code == 0
    assert text.startswith("1 histories from seed 0: no failures")
    code, text = told(capsys, "--brokers", "--seed", "0", "--mutant", "vote-unsynced")
    assert code == 1
    assert "nothing of it is on disk" in text
    assert "again: python -m kappamq.sim --seed 0 --brokers --mutant vote-unsynced" in text
    code, text = told(capsys, "--brokers", "--mutant", "unheard-of")
    assert code == 2
    assert "--mutant --brokers knows ack-before-fsync" in text

"""What may pass is tried again, with growing pauses and an end; what cannot is raised at once."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError, KappaError, NoPermission, NotConnected
from kappamq.spark import patience as module
from kappamq.spark.patience import Patience


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only pauses move."""
    made: list[float] = []
    monkeypatch.setattr(module.time, "sleep", made.append)
    monkeypatch.setattr(module.time, "monotonic", lambda: sum(made))
    return made


def test_pauses_grow_and_end(pauses: list[float]) -> None:
    patience = Patience("reading", 60.0)
    with pytest.raises(NotConnected, match="away"):
        while True:
            patience.wait_after(NotConnected("away"))
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert 50 < sum(pauses) <= 60


def test_what_worked_makes_it_patient_again(pauses: list[float]) -> None:
    patience = Patience("reading", 10.0)
    for _ in range(20):
        patience.wait_after(NotConnected("away"))
        patience.begin_anew()
    assert pauses == [0.1] * 20


@pytest.mark.parametrize("error", [ConfigError("wrong"), NoPermission("not you"), KappaError("?")])
def test_what_never_passes_is_raised_at_once(pauses: list[float], error: KappaError) -> None:
    with pytest.raises(type(error)):
        Patience("reading").wait_after(error)
    assert pauses == []


def test_none_at_all(pauses: list[float]) -> None:
    with pytest.raises(NotConnected):
        Patience("asking", 0.0).wait_after(NotConnected("away"))
    assert pauses == []

"""A log that strangers cannot fill."""

from __future__ import annotations

import pytest

from kappamq.nameserver.repeated_warnings import NAMES_MAX, PERIOD_S, RepeatedWarnings


def test_each_name_is_warned_about_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings()
    for number in range(1000):
        warnings.warn("a", f"trouble {number}", now=number / 100)
    warnings.warn("b", "other trouble", now=10.0)
    assert caplog.messages == ["trouble 0", "other trouble"]
    warnings.warn("a", "trouble again", now=PERIOD_S)
    assert caplog.messages[2:] == ["suppressed 999 more warnings about broker name a", "trouble again"]


def test_what_was_left_out_is_told_although_nothing_more_happens(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings()
    for name in ("a", "a", "a", "b"):
        warnings.warn(name, f"trouble with {name}", now=5.0)
    warnings.settle(now=5.0 + PERIOD_S - 1)
    assert len(caplog.messages) == 2
    for _ in range(2):
        warnings.settle(now=5.0 + PERIOD_S)
        assert caplog.messages[2:] == ["suppressed 2 more warnings about broker name a"]


def test_any_number_of_names_takes_bounded_memory_and_log(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings()
    for number in range(NAMES_MAX + 500):
        warnings.warn(f"n{number}", "trouble", now=0.0)
    assert len(caplog.messages) == NAMES_MAX
    warnings.settle(now=PERIOD_S)
    assert caplog.messages[NAMES_MAX:] == [
        f"suppressed 500 warnings about further broker names (more than {NAMES_MAX} names)"
    ]
    assert not warnings._told

"""Durations, and a clock whose message time moves only when it is told to."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from kappamq.errors import ConfigError
from kappamq.testing.clock import KitClock, duration_ms


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("2h", 7_200_000), ("1h30m", 5_400_000), ("1d", 86_400_000), ("250ms", 250), ("1.5s", 1500), ("1m 5s", 65_000),
        (3, 3000), (0.25, 250), (timedelta(minutes=2), 120_000), ("0s", 0),
    ],
)  # fmt: skip
def test_durations(duration: Any, ms: int) -> None:
    assert duration_ms(duration) == ms


@pytest.mark.parametrize("wrong", ["", "2", "h", "2 weeks", "-2h", "2h!", -1, timedelta(days=-1)])
def test_what_is_no_duration(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        duration_ms(wrong)


def test_it_stands_still() -> None:
    clock = KitClock()
    now, alive = clock.message_ms(), clock.liveness()
    while clock.liveness() <= alive:
        pass
    assert clock.message_ms() == now
    clock.not_before(now + 5)
    clock.not_before(now)
    assert clock.message_ms() == now + 5


def test_advance_is_the_brokers_affair() -> None:
    clock = KitClock()
    with pytest.raises(ConfigError, match="is not running"):
        clock.advance("1s")
    passed: list[int] = []

    def pass_ms(ms: int) -> Future[Any]:
        passed.append(ms)
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    clock.pass_ms = pass_ms
    clock.advance("1s")
    assert passed == [1000]

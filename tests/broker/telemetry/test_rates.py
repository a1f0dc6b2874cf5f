"""Sums over the last minute, hour and day."""

from __future__ import annotations

import pytest

from kappamq.broker.telemetry.rates import DAY, HOUR, MINUTE, Series


def test_a_steady_flow() -> None:
    series = Series(1000.0)
    for second in range(3600 * 30):
        series.add(1000.0 + second, 5)
    now = 1000.0 + 3600 * 30 - 1
    data = series.data(now)
    for item in (data.minute, data.hour, data.day):
        assert item.tps == pytest.approx(5, rel=0.15)
        assert item.average == 5
    assert 250 <= data.minute.sum <= 300
    assert 15_000 <= data.hour.sum <= 18_000
    assert 23 * 18_000 <= data.day.sum <= 24 * 18_000


def test_what_is_old_is_forgotten() -> None:
    series = Series(0.0)
    series.add(5.0, 100)
    assert series.last(6.0).sum == 100
    assert series.last(6.0).tps == pytest.approx(100 / 6)
    assert series.last(59.0).sum == 100
    assert series.last(61.0).sum == 0
    assert (series.last(61.0, HOUR).sum, series.last(61.0, DAY).sum) == (100, 100)
    assert series.last(3700.0, HOUR).sum == 0
    assert series.last(90_000.0, DAY).sum == 0
    assert series.last(90_000.0).average == 0.0


def test_it_stays_small() -> None:
    series = Series(0.0)
    for second in range(0, 200_000, 7):
        series.add(float(second), 1)
    assert [len(buckets) for buckets in series._levels] == [MINUTE[1], HOUR[1], DAY[1]]


def test_the_first_moment_is_no_division_by_zero() -> None:
    series = Series(10.0)
    series.add(10.0, 3)
    assert series.last(10.0).tps == 3.0

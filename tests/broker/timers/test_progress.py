"""How far timers are: a table like others."""

from __future__ import annotations

import pytest

from kappamq.broker.timers.progress import FOREVER, Late, TimerMetrics, TimerProgress

T = 1_700_000_000_000


def test_progress_is_a_fold() -> None:
    progress = TimerProgress()
    progress.apply("timer", {"due": [T, 500]})
    assert progress.key == (T, 500)
    assert progress.is_done(T, 500)
    assert progress.is_done(T - 1, 9999)
    assert not progress.is_done(T, 501)
    assert not progress.is_done(T + 1, 400)
    progress.apply("timer", {"moved": 450})
    assert progress.is_done(T + 1, 449)
    assert not progress.is_done(T + 1, 450)
    progress.apply("timer", {"due": [T + 1000, FOREVER], "late": [3, 9, T], "foreign": T})
    assert progress.late == Late(3, 9, T)
    again = TimerProgress()
    again.from_snapshot(progress.to_snapshot())
    assert again.to_snapshot() == progress.to_snapshot()
    again.apply("timer", again.after(T + 1000, FOREVER, {"tea+a": T + 3000}))
    again.apply("timer", again.after(T + 1000, FOREVER, {"tea+b": T + 5000}))
    assert again.after(T + 3000, 7, {}) == {"due": [T + 3000, 7]}, "no more is said than is new"
    progress.from_snapshot(again.to_snapshot())
    for due, recalls in ((3000, {"tea+a", "tea+b"}), (3001, {"tea+b"}), (5000, {"tea+b"}), (5001, set())):
        progress.apply("timer", progress.after(T + due, 7, {}))
        assert progress.recalls.keys() == recalls, "until the second of their message is over"
    again.apply("timer", {"late": None})
    assert again.late is None
    assert (again.key, again.foreign_ms, again.moved_below) == ((T + 1000, FOREVER), T, 450)


def test_metrics_in_rocketmqs_form() -> None:
    metrics = TimerMetrics(lambda: T)
    metrics.add("tea", 3)
    metrics.add("coffee", 1)
    metrics.add("tea", -1)
    metrics.add("coffee", -5)
    assert (metrics.total, metrics.dirty) == (2, True)
    table = metrics.to_snapshot()
    assert table["timingCount"] == {"coffee": {"count": 0, "timeStamp": T}, "tea": {"count": 2, "timeStamp": T}}
    assert table["dataVersion"]["counter"] == 1
    again = TimerMetrics(lambda: T)
    again.from_snapshot(table)
    assert again.counts == metrics.counts
    again.clear()
    assert again.total == 0
    with pytest.raises(AssertionError):
        again.apply("x", None)

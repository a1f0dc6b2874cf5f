"""What is told to a consumer group: changes, and failures again after some time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kappamq.message import MessageQueue
from kappamq.spark.topic import reported as module
from kappamq.spark.topic.reported import TRY_AGAIN_S, Reported

A, B = MessageQueue("tea", "a", 0), MessageQueue("tea", "b", 0)


def test_only_changes_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    told = Reported()
    assert told.due({A: 1, B: 1}) == {A: 1, B: 1}
    assert told.done({A: 1}, {B: 1}), "a failure is news"
    assert told.due({A: 1, B: 1}) == {}
    assert told.due({A: 2, B: 2}) == {A: 2, B: 2}
    assert not told.done({A: 2}, {B: 2}), "and then no more"
    now += TRY_AGAIN_S
    assert told.due({A: 2, B: 2}) == {B: 2}
    assert not told.done({B: 2}, {})
    assert told.due({A: 2, B: 2}) == {}
    assert told.done({}, {B: 3}), "it had worked meanwhile"

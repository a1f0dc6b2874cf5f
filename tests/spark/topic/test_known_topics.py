"""What a stream remembers of topics, and what it says when one goes away."""

from __future__ import annotations

import logging

import pytest

from kappamq.spark.topic.known_topics import KnownTopics


def test_a_topic_once_seen_stays_known() -> None:
    known = KnownTopics(["tea"])
    known.add(["milk"])
    known.is_there("sugar")
    assert [topic for topic in ("tea", "milk", "sugar", "salt") if topic in known] == ["tea", "milk", "sugar"]


def test_each_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownTopics(["tea"])
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            for _ in range(3):
                known.is_away("tea")
            for _ in range(3):
                known.is_there("tea")
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "topic tea is not available: no broker has it",
        "topic tea is available again",
    ] * 2

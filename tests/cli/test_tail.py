from __future__ import annotations

from typing import Any


def test_from_start_to_end_with_tags(kappamq: Any, topic: str) -> None:
    for tag in ("a", "b", "a"):
        assert kappamq("send", "-t", topic, "-b", f"body {tag}", "--tags", tag).exit_code == 0
    ran = kappamq("tail", topic, "--from", "start", "--tags", "a", "--no-follow")
    assert ran.exit_code == 0, ran.err
    assert ran.out.count("body a") == 2
    assert "body b" not in ran.out


def test_count_ends_it(kappamq: Any, topic: str) -> None:
    assert kappamq("send", "-t", topic, "-b", "x", "--count", "20").exit_code == 0
    ran = kappamq("tail", topic, "--from", "1h", "--count", "3", "-o", "json")
    assert (ran.exit_code, len(ran.json)) == (0, 3)


def test_from_the_end_there_is_nothing_yet(kappamq: Any, topic: str) -> None:
    assert kappamq("send", "-t", topic, "-b", "old").exit_code == 0
    assert kappamq("tail", topic, "--no-follow").out == ""


def test_a_topic_that_is_not_there(kappamq: Any) -> None:
    assert kappamq("tail", "no_such_topic", "--no-follow").exit_code == 5

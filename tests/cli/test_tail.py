from __future__ import annotations

from typing import Any

import pytest

from kappamq.local import Local


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


@pytest.mark.parametrize(
    ("place", "what"), [("body", "1 message damaged"), ("size", "1 message left out by the broker")]
)
def test_a_damaged_message_is_told_and_fails_the_command(
    cluster: Local, kappamq: Any, topic: str, place: str, what: str
) -> None:
    assert kappamq("topic", "create", topic, "-q", "1").exit_code == 0
    bodies = [f"{topic} cup {number}" for number in range(5)]
    for body in bodies:
        assert kappamq("send", "-t", topic, "-b", body).exit_code == 0
    first = min((cluster.settings.store.root / "commitlog").iterdir())
    at = first.read_bytes().index(bodies[2].encode()) - (0 if place == "body" else 88 - 3)
    with first.open("r+b") as log:
        log.seek(at)
        byte = log.read(1)[0]
        log.seek(at)
        log.write(bytes([byte ^ 4]))
    try:
        ran = kappamq("tail", topic, "--from", "start", "--no-follow")
    finally:
        with first.open("r+b") as log:
            log.seek(at)
            log.write(bytes([byte]))
    assert ran.exit_code == 1
    assert [body for body in bodies if body in ran.out] == bodies[:2] + bodies[3:]
    assert what in ran.err
    assert kappamq("tail", topic, "--from", "first", "--no-follow").exit_code == 0

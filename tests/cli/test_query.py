from __future__ import annotations

import time
from typing import Any

from tests.waiting import eventually


def test_by_key_by_id_and_by_time(kappamq: Any, topic: str) -> None:
    before = int(time.time() * 1000)
    (sent,) = kappamq("send", "-t", topic, "-b", "cup", "--key", "k-1", "-o", "json").json
    assert kappamq("send", "-t", topic, "-b", "pot", "--key", "k-2").exit_code == 0

    def by_key() -> Any:
        ran = kappamq("query", "key", topic, "k-1", "-o", "json")
        return ran.json if ran.exit_code == 0 else None

    (found,) = eventually(by_key, text="the key is found")  # the index may follow the log by a moment
    assert (found["body"], found["id"], found["keys"]) == ("cup", sent["id"], ["k-1"])

    (by_offset_id,) = kappamq("query", "id", sent["offset_id"], "-o", "json").json
    (by_message_id,) = kappamq("query", "id", sent["id"], "--topic", topic, "-o", "json").json
    assert by_offset_id == by_message_id == found

    by_time = kappamq("query", "time", topic, "--from", str(before), "-o", "json").json
    assert [row["body"] for row in by_time] == ["cup", "pot"]
    assert "message id" in kappamq("query", "key", topic, "k-1", "--long").out
    assert kappamq("query", "time", topic, "--from", "2d", "--to", "1d").exit_code == 5


def test_nothing_found_is_not_found(kappamq: Any, topic: str) -> None:
    assert kappamq("send", "-t", topic, "-b", "x").exit_code == 0
    for arguments in (["key", topic, "no-such-key"], ["id", "0" * 32], ["id", "gibberish", "-t", topic]):
        ran = kappamq("query", *arguments, "-o", "json")
        assert ran.exit_code == 5, (arguments, ran)
        assert ran.problem["error"]


def test_a_producers_id_that_no_message_of_the_topic_has(kappamq: Any, topic: str) -> None:
    """Read as an offset id it would mean a port and a log offset that there cannot be, which is no news to anybody."""
    assert kappamq("send", "-t", topic, "-b", "x").exit_code == 0
    unknown = "7F0000010349346DFFFFFFFFFFFFFE76"
    ran = kappamq("query", "id", unknown, "-t", topic, "-o", "json")
    assert ran.exit_code == 5, ran
    assert f"no message in topic {topic} has the id {unknown}" in ran.problem["error"]
    assert "port" not in ran.problem["error"]


def test_a_missing_topic_is_not_found(kappamq: Any) -> None:
    assert kappamq("query", "key", "no_such_topic", "k").exit_code == 5
    assert kappamq("query", "time", "no_such_topic", "--from", "1h").exit_code == 5


def test_an_id_without_its_topic_gets_advice_first(kappamq: Any) -> None:
    assert kappamq("query", "id", "0" * 32, "-o", "json").problem["error"].startswith("name the topic")
    (sent,) = kappamq("send", "-t", "tea", "-b", "x", "-o", "json").json
    ran = kappamq("query", "id", sent["id"], "-o", "json")
    assert ran.exit_code == 2
    assert ran.problem["error"].endswith("this id was assigned by a producer: add --topic TOPIC")

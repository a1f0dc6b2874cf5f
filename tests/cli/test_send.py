from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import run_kappamq


def bodies(kappamq: Any, topic: str) -> list[dict[str, Any]]:
    ran = kappamq("tail", topic, "--from", "start", "--no-follow", "-o", "json")
    assert ran.exit_code == 0, ran.err
    return list(ran.json)


def test_one_message_with_everything(kappamq: Any, topic: str) -> None:
    sent = kappamq(
        *("send", "-t", topic, "-b", "grün", "--tags", "paid", "--key", "k1", "--key", "k2"),
        *("--property", "a=b=c", "-o", "json"),
    )
    assert sent.exit_code == 0, sent.err
    (told,) = sent.json
    assert (told["status"], told["topic"], told["broker"], told["offset"]) == ("ok", topic, "broker-a", 0)
    (message,) = bodies(kappamq, topic)
    assert (message["body"], message["tags"], message["keys"]) == ("grün", "paid", ["k1", "k2"])
    assert message["properties"]["a"] == "b=c"
    assert (message["id"], message["queue"], message["offset"]) == (told["id"], told["queue"], told["offset"])


def test_the_line_for_people(kappamq: Any, topic: str) -> None:
    ran = kappamq("send", "-t", topic, "-b", "x")
    assert ran.out.startswith(f"sent  {topic}/")
    assert "offset 0" in ran.out
    assert " ms" in ran.out


def test_a_file_and_its_lines(kappamq: Any, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "in.bin"
    file.write_bytes(b"one\r\ntwo\n\nlast\xff")
    assert kappamq("send", "-t", topic, "-f", str(file)).exit_code == 0
    assert kappamq("send", "-t", topic, "-f", str(file), "--lines", "--order-key", "k").exit_code == 0
    assert kappamq("send", "-t", topic, "-f", "-", stdin="from a pipe").exit_code == 0
    found = sorted(row.get("body", row.get("body_base64")) for row in bodies(kappamq, topic))
    assert found == sorted(["b25lDQp0d28KCmxhc3T/", "one", "two", "bGFzdP8=", "from a pipe"])


def test_an_order_key_keeps_to_one_queue(kappamq: Any, topic: str) -> None:
    ran = kappamq("send", "-t", topic, "-b", "x", "--order-key", "customer 7", "--count", "9", "-o", "json")
    assert len({row["queue"] for row in ran.json}) == 1
    assert [row["offset"] for row in ran.json] == list(range(9))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-t", "x"], 2, "--body TEXT"),
        (["-t", "", "-b", "a"], 2, "the topic is empty"),
        (["-t", "x", "-b", "a", "-f", "b"], 2, "--body TEXT"),
        (["-t", "x", "-b", "a", "--lines"], 2, "requires --file"),
        (["-t", "x", "-f", "/no/such/file"], 3, "No such file"),
        (["-t", "x", "-b", "a", "--property", "novalue"], 2, "name=value"),
        (["-t", "x", "-b", "a", "--key", "two words"], 2, "must not contain blanks"),
        (["-t", "x", "-b", "a", "--tags", "a||b"], 2, "--tags: a tag must not"),
        (["-t", "a/../b", "-b", "a"], 2, "a/../b"),
        (["-t", "%RETRY%x y", "-b", "a"], 2, "not allowed"),
        (["-t", "x", "-b", ""], 6, "empty"),
        (["-t", "x", "-b", "a", "--property", "KEYS=k"], 6, "is reserved by RocketMQ"),
        (["-t", "SCHEDULE_TOPIC_XXXX", "-b", "a"], 6, "is reserved for the broker"),
    ],
)
def test_what_cannot_be_sent(kappamq: Any, arguments: list[str], code: int, text: str) -> None:
    ran = kappamq("send", *arguments, "-o", "json")
    assert (ran.exit_code, ran.problem["exit"]) == (code, code), ran
    assert text in ran.problem["error"]
    assert ran.out == ""


def test_too_large_is_refused_with_the_limit(kappamq: Any, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(bytes(range(256)) * (5 << 12))  # 5 MiB that do not compress to nothing
    ran = kappamq("send", "-t", topic, "-f", str(file), "-o", "json")
    assert ran.exit_code in (1, 6), ran
    assert ran.problem["kind"] == "IllegalMessage"


def test_nobody_there() -> None:
    ran = run_kappamq("send", "-t", "x", "-b", "x", "-n", "127.0.0.1:1", "-o", "json")
    assert ran.exit_code == 4

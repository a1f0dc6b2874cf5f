from __future__ import annotations

from typing import Any

import pytest

from kappamq.cli.topic import Permission, letters
from tests.cli.conftest import run_kappamq


def test_the_life_of_a_topic(kappamq: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kappamq("topic", "create", topic, "--queues", "3")
    assert made.exit_code == 0, made.err
    assert f"created {topic} with 3 queues on broker-a" in made.out

    listed = [row["topic"] for row in kappamq("topic", "list", "-o", "json").json]
    assert topic in listed
    assert "TBW102" not in listed
    assert "TBW102" in [row["topic"] for row in kappamq("topic", "list", "--all", "-o", "json").json]

    (route,) = kappamq("topic", "route", topic, "-o", "json").json
    assert (route["broker"], route["role"], route["write_queues"], route["read_queues"]) == ("broker-a", "master", 3, 3)

    updated = kappamq("topic", "update", topic, "--queues", "5", "--permission", "r", "-o", "json")
    assert updated.exit_code == 0, updated.err
    assert updated.json == [
        {
            "topic": topic,
            "broker": "broker-a",
            "write_queues": 5,
            "read_queues": 5,
            "permission": "r-",
            "order": False,
        }
    ]

    nobody = kappamq("topic", "delete", topic)
    assert nobody.exit_code == 2
    assert "use --yes to delete" in " ".join(nobody.err.split())
    with monkeypatch.context() as patched:
        patched.setattr("kappamq.cli.topic.on_a_terminal", lambda: True)
        assert kappamq("topic", "delete", topic, stdin="n\n").exit_code == 1
    assert kappamq("topic", "delete", "no_such_topic", stdin="y\n").exit_code == 5
    deleted = kappamq("topic", "delete", topic, "--yes")
    assert deleted.exit_code == 0, deleted.err
    assert kappamq("topic", "route", topic).exit_code == 5


def test_status_counts_messages(kappamq: Any, topic: str) -> None:
    assert kappamq("topic", "create", topic, "-q", "2").exit_code == 0
    assert kappamq("send", "-t", topic, "-b", "x", "--count", "7").exit_code == 0
    rows = kappamq("topic", "status", topic, "-o", "json").json
    assert [row["queue"] for row in rows] == [0, 1]
    assert sum(row["messages"] for row in rows) == 7
    assert all(row["last_stored_ms"] > 1_700_000_000_000 for row in rows)
    shown = kappamq("topic", "status", topic)
    assert "7 messages in 2 queues" in shown.err


@pytest.mark.parametrize(("name", "code"), [("no/such", 2), ("x" * 300, 2), ("", 2), ("TBW102", 6)])
def test_names_that_are_refused(kappamq: Any, name: str, code: int) -> None:
    ran = kappamq("topic", "create", name, "-o", "json")
    assert ran.exit_code == code
    assert ran.problem["exit"] == code
    assert ran.problem["error"]


def test_a_topic_that_is_not_there(kappamq: Any) -> None:
    for command in ("route", "status", "update"):
        ran = kappamq("topic", command, "no_such_topic", "-o", "json")
        assert ran.exit_code == 5, (command, ran)
        assert "no_such_topic" in ran.problem["error"]


def test_no_name_server() -> None:
    ran = run_kappamq("topic", "list", "-n", "127.0.0.1:1", "-o", "json")
    assert ran.exit_code == 4
    assert "127.0.0.1:1" in ran.problem["error"]


def test_permissions() -> None:
    assert [letters(permission.bits) for permission in Permission] == ["r-", "-w", "rw"]


def test_a_broker_is_no_name_server(kappamq: Any, cluster: Any) -> None:
    for arguments in (["topic", "list"], ["topic", "route", "x"], ["send", "-t", "x", "-b", "x"]):
        ran = kappamq(*arguments, "-n", cluster.broker)
        assert ran.exit_code == 3, ran.err
        assert f"{cluster.broker} is a broker, not a name server" in ran.err


def test_queues_with_messages_are_not_taken_away_unasked(
    kappamq: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kappamq("topic", "create", topic, "-q", "4").exit_code == 0
    monkeypatch.setattr("kappamq.cli.topic.on_a_terminal", lambda: True)
    assert kappamq("topic", "update", topic, "-q", "3").exit_code == 0, "they are empty"
    assert kappamq("send", "-t", topic, "-b", "x", "--count", "9").exit_code == 0
    refused = kappamq("topic", "update", topic, "-q", "1", stdin="n\n")
    assert (refused.exit_code, "in the queues from 1 on will not be readable" in refused.err) == (1, True)
    assert kappamq("topic", "update", topic, "-q", "1", "--yes").exit_code == 0


def test_queues_taken_away_are_told(kappamq: Any, topic: str) -> None:
    assert kappamq("topic", "create", topic, "-q", "4").err == ""
    fewer = kappamq("topic", "update", topic, "-q", "1")
    assert fewer.exit_code == 0
    told = " ".join(fewer.err.split())
    assert "queues 1 to 3 are no longer read" in told
    assert "--read-queues 4" in told
    assert kappamq("topic", "update", topic, "--read-queues", "4").err == ""


def test_a_topic_that_exists_is_not_changed(kappamq: Any, topic: str) -> None:
    assert kappamq("topic", "create", topic, "-q", "4").exit_code == 0
    other = kappamq("topic", "create", topic, "-o", "json")
    assert (other.exit_code, other.out) == (6, "")
    assert other.problem["error"] == (
        f"{topic} already exists with 4 queues: nothing changed; `kappamq topic update {topic}` changes it"
    )
    closed = kappamq("topic", "create", topic, "-q", "4", "--permission", "r", "--order")
    assert closed.exit_code == 6
    assert "already exists with 4 queues, permission rw, not ordered: nothing changed" in " ".join(closed.err.split())
    reading = kappamq("topic", "create", topic, "-q", "2", "--read-queues", "3", "-o", "json")
    assert "already exists with 4 queues: nothing changed" in reading.problem["error"]
    same = kappamq("topic", "create", topic, "-q", "4")
    assert (same.exit_code, same.out) == (0, f"{topic} already exists with 4 queues on broker-a\n")
    (row,) = kappamq("topic", "create", topic, "-q", "4", "-o", "json").json
    assert (row["write_queues"], row["read_queues"], row["permission"], row["order"]) == (4, 4, "rw", False)


def test_a_name_that_is_misspelt(kappamq: Any) -> None:
    assert kappamq("topic", "create", "invoices", "-q", "1").exit_code == 0
    for command in (
        ["tail", "invoice"],
        ["query", "key", "invoice", "k"],
        ["query", "time", "invoice", "--from", "1h"],
        ["topic", "status", "invoice"],
        ["topic", "route", "invoice"],
        ["topic", "update", "invoice", "-q", "2"],
        ["topic", "delete", "invoice"],
        ["topic", "delete", "invoice", "--yes"],
    ):
        ran = kappamq(*command, "-o", "json")
        assert ran.exit_code == 5, (command, ran)
        assert ran.problem["error"] == "topic 'invoice' does not exist (did you mean invoices?)"
    gone = kappamq("topic", "delete", "zzz", "-o", "json")
    assert (gone.exit_code, gone.problem["error"]) == (5, "topic 'zzz' does not exist: nothing was deleted")

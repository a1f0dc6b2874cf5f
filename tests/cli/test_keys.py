"""What programs get: the same thing has the same key in every command, and docs/CLI.md names each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kappamq.local import Local
from tests.waiting import eventually

DOCUMENT = (Path(__file__).parents[2] / "docs" / "CLI.md").read_text()
OPEN = {"properties", "checkpoint"}  # objects whose keys are a message's, or Java's


def keys_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value).union(*(keys_of(inner) for name, inner in value.items() if name not in OPEN))
    return set()


@pytest.fixture
def printed(kappamq: Any, cluster: Local, topic: str) -> dict[str, list[Any]]:
    data = ["--data", str(cluster.data), "--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=4000"]
    commands = {
        "create": ["topic", "create", topic, "-q", "1"],
        "update": ["topic", "update", topic, "-q", "2"],
        "send": ["send", "-t", topic, "-b", "x", "--key", "k"],
        "list": ["topic", "list"],
        "route": ["topic", "route", topic],
        "status": ["topic", "status", topic],
        "tail": ["tail", topic, "--from", "start", "--no-follow"],
        "query": ["query", "time", topic, "--from", "1h"],
        "inspect": ["store", "inspect", *data, "--queues", "--log", "1"],
        "verify": ["store", "verify", *data],
        "bench": ["bench", "--topic", topic, "--messages", "1", "--connections", "1"],
        "doctor": ["doctor", "--data", str(cluster.data)],
        "delete": ["topic", "delete", topic, "--yes"],
        "version": ["version"],
    }
    found = {}
    for name, command in commands.items():
        if name == "inspect":  # queue files follow the log by a moment
            eventually(lambda: f"'topic': '{topic}'" in str(kappamq(*commands["inspect"], "-o", "json").json[0]))
        ran = kappamq(*command, "-o", "json")
        # Other tests damage messages of this broker, and the doctor says so; it has nothing else to say against it.
        bad = [row["what"] for row in ran.json if row.get("health") == "bad"] if name == "doctor" else []
        assert all(what.endswith(": damage") for what in bad), ran
        assert ran.exit_code == (1 if bad else 0), (name, ran)
        found[name] = ran.json
    return found


def test_every_key_is_documented_and_none_has_blanks(printed: dict[str, list[Any]]) -> None:
    documented = set(re.findall(r"`(\w+)`", DOCUMENT))
    for name, rows in printed.items():
        keys = keys_of(rows)
        assert all(re.fullmatch(r"[a-z0-9_]+", key) for key in keys), (name, keys)
        assert not keys - documented, f"docs/CLI.md does not explain {keys - documented} of {name}"


def test_the_same_thing_has_the_same_key(printed: dict[str, list[Any]], topic: str) -> None:
    for name in ("create", "update", "route", "status", "send", "tail", "query"):
        row = printed[name][0]
        assert (row["topic"], row["broker"]) == (topic, "broker-a"), name
    assert {"topic", "broker", "write_queues", "read_queues", "permission", "order"} == set(printed["create"][0])
    assert set(printed["create"][0]) == set(printed["update"][0])
    sent, tailed, queried = printed["send"][0], printed["tail"][0], printed["query"][0]
    assert tailed == queried
    for key in ("topic", "broker", "queue", "offset", "id", "offset_id"):
        assert sent[key] == tailed[key], key
    (record,) = printed["inspect"][1:]
    assert set(tailed) | {"body", "body_base64", "bytes"} == set(record) | {"body", "body_base64"}
    inspected, verified = printed["inspect"][0], printed["verify"][0]
    for key in ("data", "log_min_offset", "log_max_offset", "index_files", "index_entries"):
        assert type(inspected[key]) is type(verified[key]), key
    (queue,) = [row for row in inspected["by_queue"] if (row["topic"], row["queue"]) == (topic, sent["queue"])]
    (status,) = [row for row in printed["status"] if row["queue"] == sent["queue"]]
    assert {key: queue[key] for key in ("min_offset", "max_offset", "messages")} == {
        key: status[key] for key in ("min_offset", "max_offset", "messages")
    }

"""Deleted topics: the broker's table as its files and records have it, read by somebody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kappamq.store.files import Files
from kappamq.store.queues.deleted_topics import FILE, TopicTable
from kappamq.store.snapshots import encode


def record(kind: str, topic: str) -> bytes:
    return json.dumps({"kind": kind, "change": {"topicName": topic}}).encode()


def table(known: list[str], deleted: list[str]) -> dict[str, Any]:
    return {"topicConfigTable": {name: {} for name in known}, "kappamqDeleted": {name: {"0": 5} for name in deleted}}


def read(config: Path, *records: bytes, log_min: int = 0) -> set[str]:
    found = TopicTable(config, log_min, 1000, Files())
    found.apply(records)
    return found.deleted


def test_from_records_alone(tmp_path: Path) -> None:
    made, gone = record("topic", "tea"), record("topic-deleted", "tea")
    assert read(tmp_path) == set()
    assert read(tmp_path, made) == set()
    assert read(tmp_path, made, gone) == {"tea"}
    assert read(tmp_path, made, gone, made) == set()
    assert read(tmp_path, gone, record("offsets", "tea"), b"nonsense", b"[]", b'{"kind": "topic"}') == {"tea"}


def test_from_the_snapshot_and_what_came_later(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(table(["tea", "milk"], ["coffee", "milk"]), 700))
    assert TopicTable(tmp_path, 0, 1000, Files()).stamp == 700
    assert TopicTable(tmp_path, 0, 600, Files()).stamp == 600
    assert read(tmp_path) == {"coffee"}
    assert read(tmp_path, record("topic-deleted", "tea"), record("topic", "coffee")) == {"tea"}


def test_a_table_of_a_java_broker_knows_no_deletions(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"topicConfigTable": {"tea": {}}}')
    assert TopicTable(tmp_path, 0, 1000, Files()).stamp == 1000
    assert read(tmp_path) == set()


@pytest.mark.parametrize("damaged", [b"{", encode(table(["x"], ["y"]), 800).replace(b'"y"', b'"z"')])
def test_a_damaged_file(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE).write_bytes(damaged)
    assert read(tmp_path) == set(), "a whole log tells it all"
    (tmp_path / f"{FILE}.bak").write_bytes(encode(table([], ["coffee"]), 300))
    found = TopicTable(tmp_path, 0, 1000, Files())
    assert (found.stamp, found.deleted) == (300, {"coffee"})
    assert (tmp_path / FILE).read_bytes() == damaged, "nothing was moved"


def test_a_damaged_file_is_better_than_none_where_the_log_has_lost_its_beginning(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(table(["x"], ["y"]), 800).replace(b'"x"', b'"z"'))
    found = TopicTable(tmp_path, 100, 1000, Files())
    assert (found.stamp, found.deleted) == (0, {"y"})

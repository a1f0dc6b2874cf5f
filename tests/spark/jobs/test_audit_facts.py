"""What the files beside the log say, of a broker that runs, has stopped, or was Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kappamq import Message
from kappamq.errors import StoreError, StoreFormatError
from kappamq.spark.jobs.audit_facts import OffsetTable, apply_change, begins_now, gather
from kappamq.testing import BrokerKit
from tests.waiting import eventually


def fill(broker: BrokerKit) -> None:
    with broker.admin() as admin:
        admin.create_topic("tea", queues=2)
    with broker.producer() as producer:
        for number in range(10):
            producer.send(Message("tea", b"%d" % number))
        producer.send(Message("tea", b"later", delay_level=3))
    broker.call(lambda inside: inside.offsets.commit("drinkers", "tea", 0, 3))
    broker.clock.advance("11s")


def test_a_store_that_has_stopped(tmp_path: Path) -> None:
    with BrokerKit(data=tmp_path / "data") as broker:
        fill(broker)
    before = {path: path.read_bytes() for path in (tmp_path / "data" / "config").iterdir()}
    facts = gather(tmp_path / "data")
    assert {(queue.topic, queue.min) for queue in facts.queues} >= {("tea", 0), ("SCHEDULE_TOPIC_XXXX", 0)}
    assert sum(queue.count for queue in facts.queues if queue.topic == "tea") == 11
    assert facts.offsets["drinkers", "tea", 0] == 3
    assert facts.delays_ms == {3: 10_000}
    assert facts.delivered[3] == 1
    assert facts.topics is not None
    assert "tea" in facts.topics
    assert facts.notes == []
    log_min, begins = begins_now(tmp_path / "data")
    assert (log_min, begins["tea", 0]) == (0, 0)
    assert {path: path.read_bytes() for path in (tmp_path / "data" / "config").iterdir()} == before, (
        "nothing is written"
    )


def test_commits_of_a_running_broker_are_found_behind_the_snapshot(tmp_path: Path) -> None:
    with BrokerKit(data=tmp_path / "data") as broker:
        fill(broker)
        eventually(lambda: gather(tmp_path / "data").offsets.get(("drinkers", "tea", 0)) == 3)
        facts = gather(tmp_path / "data")
        assert all(queue.max <= 11 for queue in facts.queues if queue.topic == "tea")


def test_files_of_a_java_broker_and_broken_ones(tmp_path: Path) -> None:
    with BrokerKit(data=tmp_path / "data") as broker:
        fill(broker)
    config = tmp_path / "data" / "config"
    # Without the stamp it is Java's, and the truth; the .bak counts if the file does not.
    (config / "consumerOffset.json").write_text('{"offsetTable":{"tea@drinkers":{0:1,1:2}}}')
    assert gather(tmp_path / "data").offsets["drinkers", "tea", 0] == 1
    (config / "consumerOffset.json").write_text("{broken")
    (config / "consumerOffset.json.bak").write_text('{"offsetTable":{"tea@drinkers":{0:2}}}')
    facts = gather(tmp_path / "data")
    assert facts.offsets["drinkers", "tea", 0] == 2
    assert "cannot be read" in facts.notes[0]
    assert (config / "consumerOffset.json").exists(), "a broker would put it aside; here nothing is written"
    (config / "consumerOffset.json").write_text('{"offsetTable":{"tea@drinkers":7}}')
    with pytest.raises(StoreFormatError, match=r"consumerOffset\.json is invalid"):
        gather(tmp_path / "data")


def test_without_queues_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "data" / "commitlog").mkdir(parents=True)
    assert "kappamq pipeline rebuild" in gather(tmp_path / "data").notes[0]
    with pytest.raises(StoreError, match="is not a data directory"):
        gather(tmp_path)


def changed(offsets: OffsetTable, kind: str, change: Any) -> OffsetTable:
    apply_change(offsets, json.dumps({"kind": kind, "change": change}).encode())
    return offsets


def test_changes_of_offsets() -> None:
    offsets: OffsetTable = {}
    changed(offsets, "offsets", [["tea", "a", {"0": 5, "1": 6}], ["coffee", "b", {"0": 7}]])
    assert offsets == {("a", "tea", 0): 5, ("a", "tea", 1): 6, ("b", "coffee", 0): 7}
    assert changed(offsets, "offsets-reset", ["tea", "a", {"0": 1}])["a", "tea", 0] == 1
    assert changed(dict(offsets), "offsets-deleted", ["tea", None]) == {("b", "coffee", 0): 7}
    assert changed(dict(offsets), "offsets-deleted", [None, "b"]).keys() == {("a", "tea", 0), ("a", "tea", 1)}
    before = dict(offsets)
    for kind, change in (("topics", {}), ("offsets", 5), ("offsets", [["tea"]]), ("offsets-reset", None)):
        assert changed(offsets, kind, change) == before
    apply_change(offsets, b"\xff no JSON")
    assert offsets == before

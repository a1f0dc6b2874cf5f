"""Whole audits, of stores that a real broker made: every planted finding is found, and where all is well there is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kappamq.errors import NoSuchTopic
from kappamq.spark.jobs import audit
from tests.spark.jobs.audit_stores import PLAIN, make_healthy, make_planted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_store_where_all_is_well(spark: SparkSession, tmp_path: Path) -> None:
    store = make_healthy(tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    told: list[tuple[int, int]] = []
    report = audit(
        spark, store, tmp_path / "report", late_ms=600_000, progress=lambda _what, *at: told.append(at)
    )  # fmt: skip
    assert report.ok, report.found.rows()
    assert report.found.notes == 0, report.found.rows()
    assert told == [(number, 8) for number in range(9)]
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before, "nothing of the store is touched"
    topics = {row["topic"]: row for row in report.tables["topics"]}
    assert (topics["tea"]["messages"], topics["tea"]["queues"]) == (PLAIN + 8, 3)
    assert topics["%RETRY%drinkers"]["messages"] == 1
    groups = {(row["group"], row["topic"]): row for row in report.tables["groups"]}
    assert (groups["drinkers", "tea"]["lag"], groups["drinkers", "tea"]["retries"]) == (0, 1)
    assert report.tables["keys"][0] == {
        "key": "all",
        "topic": "tea",
        "messages": PLAIN,
        "bytes": report.tables["keys"][0]["bytes"],
    }
    assert {row["client"] for row in report.tables["producers"]} == {"127.0.0.1"}
    assert sum(row["messages"] for row in report.tables["rates"]) == PLAIN + 8 + 11 + 1
    times = {(row["what"], row["name"]): row for row in report.tables["times"]}
    assert times["delivered", "tea"]["messages"] == 2, "one by its level, one by its time"
    assert times["delivered", "tea"]["max_ms"] <= 1000
    assert times["read", "drinkers"]["messages"] == PLAIN + 19
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["index.html", "summary.json", "tables"]


def test_everything_that_was_planted_is_found(spark: SparkSession, tmp_path: Path) -> None:
    planted = make_planted(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "index")  # an audit does not need it
    report = audit(spark, tmp_path / "data", tmp_path / "report")
    rows = report.found.rows()

    def told(rule: str, column: str) -> list[object]:
        return [row[column] for row in rows if row["rule"] == rule]

    assert told("damaged", "log_offset") == [planted["damaged"]]
    assert told("missing", "offset") == [planted["missing"]]
    for rule in ("sent", "undelivered", "id", "consumed", "born", "clock", "delivered"):
        assert told(rule, "message_id") == [planted[rule]], rule
    assert planted["unseen"] in told("unseen", "message_id")
    assert told("split-key", "text") == ["sharding key guest in 2 queues"]
    assert told("read", "ms") == [60_000, 60_000]
    assert told("stored", "message_id") == [planted["born"]]
    assert told("delivered", "ms") == [59_000]
    assert {row["rule"] for row in rows if row["severity"] == "fault"} == {
        "damaged", "missing", "sent", "undelivered", "id", "consumed", "born",
    }  # fmt: skip
    assert report.found.faults == 7

    # Another topic, and the report before is replaced.
    with_others = audit(spark, tmp_path / "data", tmp_path / "report", topic_pattern="cof.*")
    assert (with_others.messages, with_others.tables["topics"]) == (0, [])
    assert {row["rule"] for row in with_others.found.rows()} == {"damaged"}, "nobody knows whose that was"
    assert with_others.summary()["only_pattern"] == "cof.*"
    assert "no topic matches the pattern 'cof.*': nothing was looked at" in with_others.remarks

    # Where there is only a log, it says which topics there are.
    shutil.rmtree(tmp_path / "data" / "consumequeue")
    shutil.rmtree(tmp_path / "data" / "config")
    with pytest.raises(NoSuchTopic, match=r"topic 'teas' does not exist in .* \(did you mean tea\?\)"):
        audit(spark, tmp_path / "data", tmp_path / "report", topics=["teas"])

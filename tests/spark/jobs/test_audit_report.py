"""Tables and summary of a report, as others read them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet

from kappamq.spark.jobs.audit_report import TABLES, Report
from tests.spark.jobs.audit_reports import a_report


def test_every_table_is_there(tmp_path: Path) -> None:
    a_report().write(tmp_path)
    for name, columns in TABLES.items():
        table = parquet.read_table(tmp_path / "tables" / f"{name}.parquet")
        assert table.schema.names == list(columns)
        assert table.num_rows > 0, name
    findings = parquet.read_table(tmp_path / "tables" / "findings.parquet").to_pylist()
    assert len(findings) == 28
    assert (findings[0]["kind"], findings[0]["rule"], findings[0]["severity"]) == ("lost", "missing", "fault")


def test_the_summary(tmp_path: Path) -> None:
    a_report().write(tmp_path)
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["what"] == "kappamq audit"
    assert (told["ok"], told["faults"], told["notes"]) == (False, 3, 25)
    assert (told["lost"], told["duplicated"], told["reordered"], told["late"]) == (42, 1, 0, 25)
    assert (told["only_topics"], told["only_pattern"]) == ([], None)
    (missing,) = [rule for rule in told["rules"] if rule["rule"] == "missing"]
    assert missing == {"rule": "missing", "kind": "lost", "severity": "fault", "findings": 1, "messages": 42}


def test_of_nothing(tmp_path: Path) -> None:
    report = Report(store=tmp_path, made_ms=0, log_min=0, log_end=0, late_ms=1, tolerance_ms=1, trace_topic="T")
    report.write(tmp_path)
    assert report.ok
    for name, columns in TABLES.items():
        table = parquet.read_table(tmp_path / "tables" / f"{name}.parquet")
        assert (table.num_rows, table.schema.names) == (0, list(columns))

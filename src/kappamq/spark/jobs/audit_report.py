"""The results of an audit as plain values: written as tables and a summary here, as a page by `audit_page`. Does not use Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kappamq.spark.jobs.audit_folder import MARK, SUMMARY
from kappamq.spark.jobs.audit_rules import FINDING_TYPES, RULES, Found, Kind

VERSION: Final = 1
Rows = list[dict[str, Any]]

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "findings": {"kind": "string", "severity": "string", **FINDING_TYPES},
    "topics": {
        "topic": "string", "kind": "string", "messages": "bigint", "bytes": "bigint", "queues": "bigint", "first_ms": "bigint",
        "last_ms": "bigint",
    },
    "groups": {
        "group": "string", "topic": "string", "lag": "bigint", "lag_bytes": "bigint", "lag_ms": "bigint", "retries": "bigint",
        "dead_letters": "bigint",
    },
    "keys": {"topic": "string", "key": "string", "messages": "bigint", "bytes": "bigint"},
    "tags": {"topic": "string", "tags": "string", "messages": "bigint", "bytes": "bigint"},
    "producers": {"client": "string", "topic": "string", "messages": "bigint", "bytes": "bigint"},
    "rates": {"topic": "string", "at_ms": "bigint", "messages": "bigint", "bytes": "bigint"},
    "times": {
        "what": "string", "by": "string", "name": "string", "messages": "bigint", "p50_ms": "bigint", "p95_ms": "bigint",
        "p99_ms": "bigint", "max_ms": "bigint",
    },
    "histograms": {"what": "string", "below_ms": "bigint", "messages": "bigint"},
}  # fmt: skip
"""name -> column -> type, as Spark calls it."""


@dataclass(slots=True, kw_only=True)
class Report:
    store: Path
    made_ms: int
    log_min: int
    log_end: int
    late_ms: int
    tolerance_ms: int
    trace_topic: str
    only_topics: tuple[str, ...] = ()  # that were audited; none, and no pattern: all
    only_pattern: str | None = None
    records: int = 0  # in the whole log
    record_bytes: int = 0
    messages: int = 0  # of the audited topics
    message_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    trace_events: int = 0
    width_ms: int = 1000  # of a row of the table of rates
    found: Found = field(default_factory=Found)
    tables: dict[str, Rows] = field(default_factory=lambda: {name: [] for name in TABLES})
    remarks: list[str] = field(default_factory=list)  # what could not be audited, and why

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, duplicated or reordered."""
        return not self.found.faults

    @property
    def limit(self) -> str:
        """The topics it was limited to, in words; empty if it was not."""
        if self.only_topics:
            return f"only topics: {', '.join(self.only_topics)}"
        return "" if self.only_pattern is None else f"only topics that match {self.only_pattern}"

    def summary(self) -> dict[str, Any]:
        found = self.found
        return {
            "what": MARK, "version": VERSION, "data": str(self.store), "made_ms": self.made_ms, "ok": self.ok,
            "only_topics": list(self.only_topics), "only_pattern": self.only_pattern,
            "messages": self.messages, "bytes": self.message_bytes, "records": self.records, "record_bytes": self.record_bytes,
            "first_ms": self.first_ms, "last_ms": self.last_ms, "log_min_offset": self.log_min, "log_max_offset": self.log_end,
            "trace_events": self.trace_events, "faults": found.faults, "notes": found.notes,
            **{str(kind): found.count(kind, faults_only=kind is not Kind.LATE) for kind in Kind},
            "rules": [
                {
                    "rule": rule.name, "kind": str(rule.kind), "severity": "fault" if rule.fault else "note",
                    "findings": found.tallies[rule.name].findings, "messages": found.tallies[rule.name].messages,
                }
                for rule in RULES.values()
            ],
            "late_ms": self.late_ms, "tolerance_ms": self.tolerance_ms, "remarks": self.remarks,
        }  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write the tables as Parquet, and the summary."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        kinds = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
        self.tables["findings"] = self.found.rows()
        (folder / "tables").mkdir()
        for name, columns in TABLES.items():
            schema = pa.schema([pa.field(column, kinds[kind]) for column, kind in columns.items()])
            table = pa.Table.from_pylist(self.tables[name], schema=schema)
            parquet.write_table(table, folder / "tables" / f"{name}.parquet")
        text = json.dumps(self.summary(), indent=1, ensure_ascii=False)
        (folder / SUMMARY).write_text(text, encoding="utf-8", errors="replace")

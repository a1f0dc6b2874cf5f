"""docs/PIPELINE.md names every option and column, every option of the jobs, and every rule of an audit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kappamq.spark.columns.schema import COLUMNS, STORE_COLUMNS
from kappamq.spark.sink.options import WRITE_OPTIONS
from kappamq.spark.sink.rows import WRITTEN
from kappamq.spark.store.options import STORE_OPTIONS
from kappamq.spark.topic.options import READ_OPTIONS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "PIPELINE.md").read_text(encoding="utf-8")


def section(title: str) -> set[str]:
    """What stands between backticks in a section and those below it."""
    found = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/PIPELINE.md has no section {title!r}"
    prose = re.sub(r"^```.*?^```", "", found[0], flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`]+)`", prose))


def test_every_option_and_column_is_documented() -> None:
    assert {*READ_OPTIONS, *COLUMNS} <= section("Reading: the format `kappamq`")
    assert {*WRITE_OPTIONS, *WRITTEN} <= section("Writing: the format `kappamq`")
    own = {*STORE_COLUMNS} - {*COLUMNS}
    assert {*STORE_OPTIONS, *own} <= section("The log as a table: the format `kappamq.store`")


def test_every_rule_and_table_of_an_audit_is_documented() -> None:
    from kappamq.spark.jobs.audit_report import TABLES
    from kappamq.spark.jobs.audit_rules import RULES

    assert {*RULES, *TABLES} <= section("Audits: `kappamq pipeline audit`")
    for rule in RULES.values():
        severity = "fault" if rule.fault else "note"
        assert f"\n| {rule.kind} | `{rule.name}` | {severity} | " in DOCUMENT


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("archive", "Archives: `kappamq pipeline archive`"),
        ("audit", "Audits: `kappamq pipeline audit`"),
        ("dedup", "Without duplicates: `kappamq pipeline dedup`"),
        ("init", "Pipelines of datasets: `kappamq pipeline init` and `run`"),
        ("rebuild", "Queues and index from the log: `kappamq pipeline rebuild`"),
        ("replay", "Replays: `kappamq pipeline replay`"),
        ("run", "Pipelines of datasets: `kappamq pipeline init` and `run`"),
    ],
)
def test_every_option_of_a_job_is_documented(name: str, title: str) -> None:
    import typer.main

    from kappamq.cli import app

    command = typer.main.get_command(app).commands["pipeline"].commands[name]  # type: ignore[attr-defined]
    named = " ".join(section(title))
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--") and option not in ("--nameserver", "--output"):
                assert option in named, f"docs/PIPELINE.md does not tell about {option}"

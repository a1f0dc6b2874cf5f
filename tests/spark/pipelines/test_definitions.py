"""Definition files are read without Spark; what only Spark Declarative Pipelines can run is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.pipelines.source_code_location import SourceCodeLocation

from kappamq.errors import ConfigError
from kappamq.spark.pipelines import project
from kappamq.spark.pipelines.definitions import Definitions, load
from kappamq.spark.pipelines.project import Project
from tests.spark.pipelines.test_project import made

DECLARED = """
from pyspark import pipelines as dp
import helper

@dp.table
def bronze():
    return spark.read_it(helper.TOPIC)

@dp.materialized_view
def gold():
    return spark

@dp.temporary_view
def between():
    return spark

dp.create_sink("checked", "kappamq", {"topic": "x"})

@dp.append_flow(target="checked", name="to_checked")
def to_checked():
    return spark
"""


class Session:
    def read_it(self, topic: str) -> str:
        return f"rows of {topic}"


def with_text(root: Path, text: str) -> Project:
    made(root)
    (root / "transformations" / "bronze.py").write_text(text)
    (root / "helper.py").write_text("TOPIC = 'orders'\n")
    return project.find(root)


def test_what_is_declared(tmp_path: Path) -> None:
    found = {one.name: one for one in load(with_text(tmp_path, DECLARED), Session()).all()}
    assert [*found] == ["bronze", "gold", "between", "to_checked"]
    assert (found["bronze"].is_table, found["bronze"].is_materialized) == (True, False)
    assert found["gold"].is_materialized
    assert found["between"].is_view
    assert found["to_checked"].is_sink
    assert found["to_checked"].target == "checked"
    assert found["bronze"].read() == "rows of orders"
    assert found["bronze"].module.spark is found["gold"].read()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def", "cannot be used: SyntaxError"),
        ("import teapot", "cannot be used: ModuleNotFoundError"),
        ("teapot", "cannot be used: NameError"),
        ("1 / 0", "cannot be used: ZeroDivisionError"),
    ],
)
def test_what_is_no_definition(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(with_text(tmp_path, text), Session())


def test_a_flow_without_a_target(tmp_path: Path) -> None:
    text = "from pyspark import pipelines as dp\n@dp.append_flow(target='nowhere')\ndef flow():\n    return 1\n"
    with pytest.raises(ConfigError, match="flow flow writes to nowhere, which is not declared"):
        list(load(with_text(tmp_path, text), Session()).all())


def test_sql_is_not_for_streams_of_ours(tmp_path: Path) -> None:
    made(tmp_path, definition="gold.sql")
    with pytest.raises(ConfigError, match=r"gold\.sql declares datasets in SQL"):
        load(project.find(tmp_path), Session())


def test_auto_cdc_is_not_for_streams_of_ours() -> None:
    flow = AutoCdcFlow(
        None,
        "customers",
        "changes",
        [],
        None,
        None,
        None,
        None,
        1,
        None,
        None,
        {},
        SourceCodeLocation("x.py", 1),  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigError, match="customers is made by create_auto_cdc_flow"):
        Definitions().register_auto_cdc_flow(flow)

"""What a run through Spark Declarative Pipelines needs and tells; `tests/cli/test_pipeline_project.py` has whole runs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import ConfigError, NoRoute
from kappamq.spark.pipelines import declared, project
from tests.spark.pipelines.test_project import made


def test_the_server_is_for_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    found = declared.properties()
    assert found["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert len(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]) >= 32


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    declared.check_installed()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc" else find_spec(name))
    with pytest.raises(ConfigError, match=r"grpcio is not installed: pip install '\.\[spark\]'"):
        declared.check_installed()


def test_the_dataset_of_a_flow_is_told(tmp_path: Path) -> None:
    made(tmp_path)
    text = (
        "from pyspark import pipelines as dp\ndp.create_sink('checked', 'kappamq', {})\n"
        "@dp.append_flow(target='checked', name='to_checked')\ndef to_checked():\n    return spark\n"
    )
    (tmp_path / "transformations" / "bronze.py").write_text(text)
    failed = "terminated with exception: kappamq.errors.NoRoute: no broker SQLSTATE: 38000"
    spark: Any = object()
    error = declared.explained(spark, project.find(tmp_path), "to_checked", failed)
    assert type(error) is NoRoute
    assert str(error) == "dataset checked: no broker"
    # One that cannot be loaded here, or is not known, keeps the name that Spark gave.
    assert str(declared.explained(spark, project.find(tmp_path), "other", failed)) == "dataset other: no broker"
    (tmp_path / "transformations" / "bronze.py").write_text("def")
    assert str(declared.explained(spark, project.find(tmp_path), "other", failed)) == "dataset other: no broker"

"""A new project: whole or not at all, with the names that were asked for, and such that `run` finds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.pipelines import project
from kappamq.spark.pipelines.init import init


def test_a_project_is_made_and_found(tmp_path: Path) -> None:
    files = init(tmp_path / "shop", "orders", quarantine="rejected")
    assert all(file.is_file() for file in files)
    found = project.find(tmp_path / "shop")
    assert found.name == "shop"
    assert [file.name for file in found.definitions] == ["bronze.py", "gold.py", "silver.py"]
    texts = {file.name: file.read_text() for file in files}
    assert 'topic="orders"' in texts["bronze.py"]
    assert '"topic": "rejected"' in texts["silver.py"]
    assert '"topic": "orders_checked"' in texts["gold.py"]
    for name, text in texts.items():
        assert "@TOPIC@" not in text, name
        assert "@NAME@" not in text, name
        if name.endswith(".py"):
            ast.parse(text)
    assert {".gitignore", "README.md", "spark-defaults.conf", "test_orders.py"} <= texts.keys()


def test_an_empty_directory_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    init(tmp_path / "shop", "orders")
    assert (tmp_path / "shop" / "spark-pipeline.yml").is_file()


@pytest.mark.parametrize(
    ("name", "topics", "said"),
    [
        ("9shop", ("orders",), "must be a letter"),
        ("shop", ("or/ders",), "orders"),
        ("shop", ("orders", "orders"), "three topics"),
        ("shop", ("orders", None, "orders_checked"), "three topics"),
    ],
)
def test_wrong_names_make_nothing(tmp_path: Path, name: str, topics: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("orders", "or.?ders") if said == "orders" else said):
        init(tmp_path / name, *topics)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine").touch()
    with pytest.raises(ConfigError, match="not an empty directory"):
        init(tmp_path / "shop", "orders")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not an empty directory"):
        init(tmp_path / "file", "orders")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "shop"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        init(tmp_path / "file" / "shop", "orders")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

"""What a project's files may say, and that two runs keep out of each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.engine import JAVA_OPTIONS
from kappamq.spark.pipelines import project

GOOD = "name: shop\nstorage: storage\nlibraries:\n- glob: {include: transformations/**}\n"


def made(root: Path, text: str = GOOD, definition: str = "bronze.py") -> Path:
    (root / "transformations").mkdir()
    (root / "transformations" / definition).write_text("")
    (root / "spark-pipeline.yml").write_text(text)
    return root


def test_a_project_is_read(tmp_path: Path) -> None:
    found = project.find(made(tmp_path))
    assert (found.catalog, found.database) == ("spark_catalog", "default")
    assert found.storage == (tmp_path / "storage").as_uri()
    assert found.dataset("`spark_catalog`.`default`.`bronze`") == "bronze"
    assert found.dataset("spark_catalog.other.bronze") == "spark_catalog.other.bronze"
    assert found.dataset("to_checked") == "to_checked"


def test_checkpoints_lie_where_declarative_pipelines_put_them(tmp_path: Path) -> None:
    found = project.find(made(tmp_path))
    above = f"{found.storage}/_checkpoints"
    assert found.checkpoint("bronze", "bronze", is_table=True) == f"{above}/spark_catalog/default/bronze/bronze/0"
    assert found.checkpoint("checked", "to_checked", is_table=False) == f"{above}/checked/to_checked/0"
    for number in ("0", "2", "10", "x"):
        (tmp_path / "storage/_checkpoints/checked/to_checked" / number).mkdir(parents=True)
    assert found.checkpoint("checked", "to_checked", is_table=False).endswith("/10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML"),
        ("- a", "must have fields"),
        (GOOD + "color: red\n", "unknown field 'color'"),
        (GOOD.replace("name: shop\n", ""), "name must be a text"),
        (GOOD.replace("storage: storage", "storage: 5"), "storage must be a text"),
        (GOOD + "database: 5\n", "database must be a text"),
        (GOOD + "configuration: {spark.x: 5}\n", "put them in quotes"),
        ("name: shop\nstorage: storage\n", "libraries must list"),
        (GOOD.replace("transformations/**", "elsewhere/**"), "there is no definition"),
        (GOOD.replace("transformations/**", "/etc/**"), "inside of the project"),
    ],
)
def test_wrong_specifications_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        project.find(made(tmp_path, text))


def test_other_files_are_no_definitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither \.py nor \.sql"):
        project.find(made(tmp_path, definition="notes.txt"))


def test_no_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kappamq pipeline init"):
        project.find(tmp_path)


def test_properties(tmp_path: Path) -> None:
    root = made(tmp_path, GOOD + "configuration: {spark.y: '7'}\n")
    (root / "conf").mkdir()
    (root / "conf" / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.x   a b=c\nspark.z=5\nspark.driver.extraJavaOptions -Dmine=1\n"
    )
    found = project.find(root).spark_properties("local[1]")
    assert (found["spark.x"], found["spark.y"], found["spark.z"]) == ("a b=c", "7", "5")
    assert "-Dmine=1" in found[JAVA_OPTIONS]
    assert "log4j2" in found[JAVA_OPTIONS]
    (root / "conf" / "spark-defaults.conf").write_text("spark.x 1\nteapot 5\n")
    with pytest.raises(ConfigError, match="line 2"):
        project.find(root).spark_properties(None)


def test_only_one_run_at_a_time_and_each_in_its_folder(tmp_path: Path) -> None:
    found, before = project.find(made(tmp_path)), Path.cwd()
    with found.held():
        assert Path.cwd() == tmp_path
        with pytest.raises(ConfigError, match="another process"), found.held():
            pass
    assert Path.cwd() == before
    with found.held():
        pass


def test_paths_of_uris() -> None:
    assert project.local_path("file:///a%20b/c") == Path("/a b/c")
    assert project.local_path("hdfs://host/a") is None

"""What is wrong with the arguments is told before anything is made; what an audit finds is tested with its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import ConfigError, NoSuchTopic, StoreError
from kappamq.spark.jobs import audit, check_audit


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": "s3://bucket/x"}, "must be a directory"),
        ({"target": "data/report"}, "inside the store"),
        ({"target": "data"}, "inside the store"),
        ({"late_ms": -1}, "late_ms=-1 is too small"),
        ({"top": 0}, "top=0 is too small"),
        ({"topics": ["te a"]}, "topic='te a'"),
        ({"topic_pattern": "("}, "topicPattern"),
    ],
)
def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], told: str) -> None:
    (tmp_path / "data" / "commitlog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    store, target = given.pop("store", "data"), given.pop("target", "report")
    with pytest.raises(ConfigError, match=told):
        audit(None, store, target, **given)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory"):
        audit(None, tmp_path / "nowhere", tmp_path / "report")  # type: ignore[arg-type]


def test_unknown_topics_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "data"
    (store / "commitlog").mkdir(parents=True)
    check_audit(store, tmp_path / "report", ["orders"])  # only the log could say
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text('{"topicConfigTable":{"orders":{}}}')
    (store / "consumequeue" / "mail" / "0").mkdir(parents=True)
    check_audit(store, tmp_path / "report", ["orders", "mail"])
    with pytest.raises(NoSuchTopic, match=r"topic 'ordres' does not exist in /.*/data \(did you mean orders\?\)"):
        check_audit(store, tmp_path / "report", ["mail", "ordres"])
    check_audit(store, tmp_path / "report", topic_pattern="x.*")

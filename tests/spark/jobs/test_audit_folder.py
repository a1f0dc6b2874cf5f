"""A report is replaced as a whole, by one process at a time, and nobody else's files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kappamq.errors import ConfigError, StoreLocked
from kappamq.spark.jobs.audit_folder import MARK, SUMMARY, ReportFolder


def make(folder: ReportFolder, text: str) -> None:
    (folder.new / SUMMARY).write_text(json.dumps({"what": MARK, "text": text}))
    (folder.new / "tables").mkdir()


def text_of(root: Path) -> str:
    text: str = json.loads((root / SUMMARY).read_text())["text"]
    return text


def test_a_report_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "report"
    for text in ("first", "second"):
        with ReportFolder(root) as folder:
            make(folder, text)
            assert not root.exists() or text_of(root) == "first"
            folder.publish()
        assert text_of(root) == text
    assert sorted(path.name for path in root.iterdir()) == [SUMMARY, "tables"]
    assert [path.name for path in (root.parent / ".report.staging").iterdir()] == ["lock"]


def test_a_run_that_ends_early_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "report"
    with ReportFolder(root) as folder:
        make(folder, "first")
        folder.publish()
    with pytest.raises(RuntimeError), ReportFolder(root) as folder:
        make(folder, "second")
        raise RuntimeError
    assert text_of(root) == "first"
    assert not folder.new.exists()


@pytest.mark.parametrize("moment", ["while it was made", "in the middle of the exchange", "behind the exchange"])
def test_what_a_killed_run_leaves(tmp_path: Path, moment: str) -> None:
    root, staging = tmp_path / "report", tmp_path / ".report.staging"
    with ReportFolder(root) as folder:
        make(folder, "first")
        folder.publish()
    (staging / "new").mkdir()
    (staging / "new" / "half").touch()
    if moment != "while it was made":
        root.rename(staging / "old")
    if moment == "behind the exchange":
        (staging / "new").rename(root)
        (root / SUMMARY).write_text(json.dumps({"what": MARK, "text": "second"}))
    with ReportFolder(root) as folder:
        assert text_of(root) == ("second" if moment == "behind the exchange" else "first")
        assert list(folder.new.iterdir()) == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with ReportFolder(tmp_path / "report"), pytest.raises(StoreLocked, match="another process is writing the report"):
        ReportFolder(tmp_path / "report").__enter__()
    with ReportFolder(tmp_path / "report"):
        pass


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        ReportFolder(tmp_path / "file" / "report").__enter__()
    (tmp_path / "photos").mkdir()
    with ReportFolder(tmp_path / "photos") as folder:
        assert folder.root.exists(), "an empty folder will do"
    (tmp_path / "photos" / "me.jpg").touch()
    for summary in (None, "[]", "{", '{"what": "holidays"}'):
        if summary is not None:
            (tmp_path / "photos" / SUMMARY).write_text(summary)
        with pytest.raises(ConfigError, match="not an audit report"):
            ReportFolder(tmp_path / "photos").__enter__()
    assert (tmp_path / "photos" / "me.jpg").exists()

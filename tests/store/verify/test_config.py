from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.position import Position
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.config import check_position, check_snapshots
from kappamq.store.verify.report import Report, WriteAgain


def snapshots_of(root: Path) -> Report:
    report = Report(root, 10)
    check_snapshots(root, lambda: 1000, report, Files())
    return report


def test_every_bit_of_a_stamped_snapshot_is_covered(tmp_path: Path) -> None:
    saved = Snapshots(tmp_path / "config")
    saved.save("topics.json", {"table": {"a": {"name": "a"}}}, 500)
    saved.save("topics.json", {"table": {"a": {"name": "b"}}}, 600)
    assert snapshots_of(tmp_path).ok
    for name in ("topics.json", "topics.json.bak"):
        path = tmp_path / "config" / name
        data = path.read_bytes()
        missed = []
        for bit in range(len(data) * 8):
            spoilt = bytearray(data)
            spoilt[bit // 8] ^= 1 << bit % 8
            path.write_bytes(spoilt)
            if [problem.fix for problem in snapshots_of(tmp_path).problems] != [WriteAgain("topics.json")]:
                missed.append((bit, bytes(spoilt)))
        path.write_bytes(data)
        assert missed == []


def test_what_a_java_broker_wrote_has_no_stamp_and_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (tmp_path / "config" / "delayOffset.json").write_text("{1:2}")
    (tmp_path / "config" / "notes.txt").write_text("{")
    assert snapshots_of(tmp_path).ok
    Snapshots(tmp_path / "config").save("later.json", {}, 1001)
    assert [problem.meaning for problem in snapshots_of(tmp_path).problems] == [
        "its stamp lies beyond the end of the log, 1000"
    ]


def position_of(root: Path, is_ours: bool = True) -> Report:
    report = Report(root, 10)
    check_position(root, report, Files(), lambda position: is_ours)
    return report


@pytest.mark.parametrize("name", ["kappamq.position", "checkpoint"])
def test_every_bit_of_position_and_checkpoint_is_covered(tmp_path: Path, name: str) -> None:
    point = Checkpoint(1_700_000_000_000, 1_700_000_000_000, 1_700_000_000_000)
    point.write(tmp_path / "checkpoint")
    Position(
        dispatched=1, synced=1, flushed=1, index=1, queues=1, entries=1, checkpoint=point.encode(), last_crc=5, boot_id="b",
        checkpoint_before=point.encode(),
    ).save(tmp_path / "kappamq.position")  # fmt: skip
    assert position_of(tmp_path).ok
    path = tmp_path / name
    data = path.read_bytes()
    used = len(data) if name == "kappamq.position" else 40
    missed = []
    for bit in range(used * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        if [problem.fix for problem in position_of(tmp_path).problems] != [WriteAgain(name)]:
            missed.append((bit, bytes(spoilt[bit // 8 - 10 : bit // 8 + 10])))
    assert missed == [], "JSON has spaces that mean nothing: see whether these are all of them"


def test_a_store_that_another_broker_wrote_to_is_not_judged(tmp_path: Path) -> None:
    assert position_of(tmp_path).ok, "nothing there"
    Position(
        dispatched=1, synced=1, flushed=1, index=1, queues=1, entries=1, checkpoint=bytes(40), last_crc=5, boot_id="b"
    ).save(tmp_path / "kappamq.position")
    Checkpoint(5, 5, 5).write(tmp_path / "checkpoint")
    assert not position_of(tmp_path).ok
    assert position_of(tmp_path, is_ours=False).ok

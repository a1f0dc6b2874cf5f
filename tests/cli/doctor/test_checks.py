from __future__ import annotations

import collections
import ctypes
import errno
import json
import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from kappamq.cli.doctor import checks
from kappamq.cli.doctor.checks import Finding, Health
from kappamq.store.lock import StoreLock
from kappamq.store.log.clock_steps import CLOCK_FILE

Usage = collections.namedtuple("Usage", "total used free")


def by_name(found: list[Finding]) -> dict[str, Finding]:
    for finding in found:
        assert finding.advice or finding.health is Health.OK, f"{finding} does not say what to do"
    return {finding.what: finding for finding in found}


def test_a_good_directory_and_nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 30, 0, 80 << 30))
    found = by_name(checks.data_directory(tmp_path, "given by --data"))
    assert {finding.health for finding in found.values()} <= {Health.OK, Health.NOTE}
    assert set(found) == {"data directory", "disk space", "preallocation", "disk sync"}
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_can_be_made(tmp_path: Path) -> None:
    found = by_name(checks.data_directory(tmp_path / "a" / "b", "given by --data"))
    assert "does not exist yet and can be created" in found["data directory"].text
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = checks.data_directory(tmp_path / "file" / "x", "given by --data")
    assert finding.health is Health.BAD
    assert "is a file" in finding.text


def test_no_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checks.tempfile, "NamedTemporaryFile", refuse)  # root may write anywhere
    (finding,) = checks.data_directory(tmp_path, "given by --data")
    assert finding.health is Health.BAD
    assert "Permission denied" in finding.text
    assert "chown" in finding.advice


@pytest.mark.parametrize(
    ("free", "total", "health"),
    [
        (1 << 30, 100 << 30, Health.BAD),
        (20 << 30, 100 << 30, Health.NOTE),
        (60 << 30, 100 << 30, Health.OK),
        (200 << 30, 10_000 << 30, Health.NOTE),
    ],
)
def test_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, total: int, health: Health) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total, total - free, free))
    assert by_name(checks.data_directory(tmp_path, "given by --data"))["disk space"].health is health


def test_disk_space_is_counted_as_df_does_and_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: Usage(1000 << 30, 280 << 30, 300 << 30)
    )  # 420 are reserved for root
    found = by_name(checks.data_directory(tmp_path, "given by --data"))
    assert found["disk space"].health is Health.OK
    assert found["disk space"].text == f"300.0 GiB free, 49% used on the disk of {tmp_path}"
    assert found["data directory"].text == f"{tmp_path} is writable (given by --data)"


def test_a_file_system_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        @staticmethod
        def fallocate(*_: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr(checks.ctypes, "CDLL", lambda *_, **__: Libc)
    assert by_name(checks.data_directory(tmp_path, "given by --data"))["preallocation"].health is Health.NOTE


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(checks.time, "perf_counter", lambda: next(ticks))
    finding = by_name(checks.data_directory(tmp_path, "given by --data"))["disk sync"]
    assert finding.health is Health.NOTE
    assert "1000.0 ms" in finding.text


def test_lock(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    lock.acquire()
    assert "is open in this process already" in by_name(checks.data_directory(tmp_path, "given by --data"))["lock"].text
    lock.release()
    assert (
        by_name(checks.data_directory(tmp_path, "given by --data"))["lock"].text
        == "no broker has the data directory open"
    )


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert checks.open_files().health is Health.NOTE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert checks.open_files() == Finding("open files", Health.OK, "limit unlimited (soft 1024, raised at start)")


def test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_adjtimex", lambda: 0)
    assert checks.clock().health is Health.OK
    monkeypatch.setattr(checks, "_adjtimex", lambda: 5)
    assert checks.clock().health is Health.NOTE
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert checks.clock().health is Health.BAD


def test_the_kernel_can_be_asked_about_the_clock() -> None:
    assert isinstance(checks._adjtimex(), int)


def test_kernel_and_loop() -> None:
    assert checks.event_loop().health in (Health.OK, Health.NOTE)
    finding = checks.kernel()
    assert finding.health is (Health.OK if finding.text == "compiled" else Health.NOTE)
    assert os.path.exists("/")


def test_a_store_whose_clock_was_set(tmp_path: Path) -> None:
    assert not checks._clock_of_store(tmp_path)
    (tmp_path / "commitlog").mkdir()
    assert not checks._clock_of_store(tmp_path)
    (tmp_path / "config").mkdir()
    steps = [[100, 86_400_000, 1_700_086_400_000], [200, -86_400_000, 1_700_000_001_000]]
    (tmp_path / "config" / CLOCK_FILE).write_text(json.dumps({"steps": steps}))
    (finding,) = checks._clock_of_store(tmp_path)
    assert finding.health is Health.NOTE
    assert "was set 2 times" in finding.text
    assert "back by 86400 s" in finding.text
    assert "chronyc" in finding.advice
    (tmp_path / "config" / CLOCK_FILE).write_text("not JSON")
    assert not checks._clock_of_store(tmp_path)

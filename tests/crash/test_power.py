"""A few power cuts in every test run; `python -m benchmarks power --rounds 100` is the proof."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash import power
from tests.crash.image import Disk
from tests.needs import needs

pytestmark = [needs("root", "loop"), pytest.mark.slow]

SEED = 4711


@pytest.mark.parametrize("method", power.METHODS)
def test_a_cut_takes_what_was_not_synced_and_keeps_what_was(tmp_path: Path, method: str) -> None:
    """The harness itself: without this, a broker that loses nothing would prove nothing."""
    disk = Disk(tmp_path / "disk", mib=64)
    try:
        disk.mount()
        with (
            (disk.root / "synced").open("wb", buffering=0) as synced,
            (disk.root / "not").open("wb", buffering=0) as unsynced,
        ):
            synced.write(b"a" * 8192)
            os.fsync(synced.fileno())
            unsynced.write(b"b" * 8192)
            if method == "copy":
                disk.copy()
            else:
                disk.shut_down()
        if method == "copy":
            disk.become_copy()
        else:
            disk.power_on()
        assert (disk.root / "synced").read_bytes() == b"a" * 8192
        rest = disk.root / "not"
        assert not rest.exists() or rest.read_bytes().strip(b"\0") == b""
    finally:
        disk.destroy()


@pytest.mark.parametrize("method", power.METHODS)
def test_sync_flush_survives_power_cuts(tmp_path: Path, method: str) -> None:
    summary = power.run(tmp_path, 2, SEED, power.SYNC, methods=(method,))
    assert summary.wrong == []
    assert summary.cuts == 2
    assert summary.acked > 0


def test_async_flush_loses_the_end_of_the_log_and_nothing_else(tmp_path: Path) -> None:
    summary = power.run(tmp_path, 3, SEED, power.ASYNC)
    assert summary.wrong == []
    assert summary.lost > 0

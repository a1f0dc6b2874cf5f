"""Where a log ends: the same answers as recovery gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kappamq import native
from kappamq.errors import StoreDamaged
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.log.log_end import LogEnd, check_files, find_end, fingerprint, first_store_ms
from kappamq.store.log.log_reader import LogReader
from kappamq.store.position import Position
from tests.store.stores import START_MS, Writer, config, opened


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogReader]:
    """Of a store of ours, three files long."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        for _ in range(15):
            writer.send(b"x" * 10_000)
        writer.write()
    reader = LogReader(tmp_path / "commitlog")
    yield reader
    reader.close()


def found(root: Path, log: LogReader) -> tuple[LogEnd, Position | None]:
    return find_end(root, log, native.load("twin").scan, Files())


def test_our_own_log_ends_behind_what_was_flushed(tmp_path: Path, log: LogReader) -> None:
    end, position = found(tmp_path, log)
    assert position is not None
    assert end == LogEnd(flushed=position.flushed)
    assert position.last_crc == fingerprint(log, position.dispatched)
    assert not end.is_end(position.flushed - 1)
    assert end.is_end(position.flushed)
    assert end.is_vouched_for(1 << 60)


def test_another_brokers_log_ends_with_its_checkpoint(tmp_path: Path, log: LogReader) -> None:
    _end, ours = found(tmp_path, log)
    Checkpoint(START_MS + 7, START_MS + 5, START_MS + 3).write(tmp_path / "checkpoint")
    end, position = found(tmp_path, log)
    assert end == LogEnd(foreign_ms=START_MS + 7)
    assert position == ours, "the files may still be noted there"
    assert not end.is_end(1 << 60)
    assert end.is_vouched_for(START_MS + 7)
    assert not end.is_vouched_for(START_MS + 8)
    (tmp_path / "kappamq.position").unlink()
    assert found(tmp_path, log) == (end, None)


def test_a_damaged_checkpoint(tmp_path: Path, log: LogReader) -> None:
    end, _position = found(tmp_path, log)
    (tmp_path / "checkpoint").unlink()
    assert found(tmp_path, log)[0] == end, "the position has a copy"
    (tmp_path / "kappamq.position").unlink()
    Checkpoint(START_MS * 5).write(tmp_path / "checkpoint")
    assert found(tmp_path, log)[0].is_vouched_for(START_MS * 10), "no good record is cut off for its sake"


def test_a_position_of_another_log_does_not_count(tmp_path: Path, log: LogReader) -> None:
    _end, position = found(tmp_path, log)
    assert position is not None
    replace(position, last_crc=1, synced_crc=1).save(tmp_path / "kappamq.position")
    end, none = found(tmp_path, log)
    assert none is None
    assert end.foreign_ms is not None
    replace(position, last_crc=1).save(tmp_path / "kappamq.position")
    assert found(tmp_path, log)[0].foreign_ms is None, "the machine went down: what was synced counts"


def test_files(tmp_path: Path, log: LogReader) -> None:
    check_files(log, Files(), skip_damage=False)
    assert first_store_ms(log, 0) == START_MS + 1
    os.truncate(tmp_path / "commitlog" / f"{64 << 10:020d}", 10)
    with pytest.raises(StoreDamaged, match="is truncated: it has 10 of 65536 bytes"):
        check_files(log, Files(), skip_damage=False)
    check_files(log, Files(), skip_damage=True)
    (tmp_path / "commitlog" / f"{64 << 10:020d}").unlink()
    log.refresh()
    with pytest.raises(StoreDamaged, match="expected a log file that starts at 65536"):
        check_files(log, Files(), skip_damage=True)

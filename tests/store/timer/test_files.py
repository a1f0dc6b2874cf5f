"""Wheel, log and checkpoint together: what is found again after a stop, a death, and another broker."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kappamq.errors import StoreDamaged, StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import PLAIN, Stamp, TimerCheckpoint, Unit
from kappamq.store.timer.files import TimerFiles

T = 1_700_000_000_000
FILE_BYTES = 52 * 4 + 16


def fresh(root: Path, boot: str = "boot") -> TimerFiles:
    return TimerFiles(root, FILE_BYTES, Files(), boot)


def filled(root: Path, dues: list[int], *, commit_at: int | None = None, clean: bool = False) -> TimerFiles:
    files = fresh(root)
    assert files.open() is None
    for number, due in enumerate(dues):
        files.add(PLAIN, T, T + due, number * 100, 100, 7)
        if number + 1 == commit_at:
            files.commit(T, T, commit_at)
    if commit_at is None:
        files.commit(T, T, len(dues), clean=clean)
    return files


def found(files: TimerFiles, slot: int) -> list[tuple[int, int]]:
    return [(unit.due_ms - T, unit.log_offset) for unit in files.chain(T + slot)]


def test_chains_are_found_again(tmp_path: Path) -> None:
    dues = [1500, 2000, 2001, 1001, 60_000, 1999]
    files = filled(tmp_path, dues)
    for again in (files, fresh(tmp_path)):
        if again is not files:
            files.close()
            assert again.open() == Stamp(True, True, False)
        assert found(again, 1000) == [(1999, 500), (1001, 300), (2000, 100), (1500, 0)]
        assert found(again, 2000) == [(2001, 200)]
        assert found(again, 0) == []
        assert again.next_used(T, T + 100_000) == T + 1000
        assert again.next_used(T + 3000, T + 100_000) == T + 59_000
        assert again.checkpoint.queue_offset == 6
    again.close()


def test_what_was_written_behind_the_checkpoint_is_taken_over(tmp_path: Path) -> None:
    files = filled(tmp_path, [1500, 1600, 1700, 2500, 1800], commit_at=2)
    # Died within a commit: units are there, of their slots only some.
    files._log.flush()
    files._wheel.put(files._slots[(T + 1000) // 1000])
    files.close()
    again = fresh(tmp_path)
    assert again.open() == Stamp(True, True, False)
    assert again.checkpoint.queue_offset == 2
    offsets = {0: 0, 1: 100, 2: 200, 3: 300, 4: 400}
    assert again.resume(2, offsets.get) == 5
    assert found(again, 1000) == [(1800, 400), (1700, 200), (1600, 100), (1500, 0)]
    assert found(again, 2000) == [(2500, 300)]
    again.close()
    # They must be those of the queue: here its fourth message is another one, and then there is none.
    for queue in ({2: 200, 3: 999}, {2: 200}):
        other = fresh(tmp_path)
        other.open()
        with pytest.raises(StoreDamaged, match="does not belong to message 3"):
            other.resume(2, queue.get)
        other.close()


@pytest.mark.parametrize("lost", ["timerwheel", "config/timercheck"])
def test_what_is_incomplete_is_of_no_use(tmp_path: Path, lost: str) -> None:
    filled(tmp_path, [1500] * 9).close()
    (tmp_path / lost).unlink()
    files = fresh(tmp_path)
    with pytest.raises(StoreFormatError, match="missing"):
        files.open()
    files.reset()
    assert files.next_used(T, T + 10_000) is None
    files.add(PLAIN, T, T + 1500, 900, 100, 7)
    files.commit(T, T, 10)
    assert found(files, 1000) == [(1500, 900)]
    files.close()


def test_a_beginning_that_is_missing_is_noticed(tmp_path: Path) -> None:
    files = filled(tmp_path, [1500] * 9)
    (tmp_path / "timerlog" / f"{0:020d}").unlink()
    files.close()
    again = fresh(tmp_path)
    with pytest.raises(StoreFormatError, match="begins at 224, expected 0"):
        again.open()
    again.reset()
    again.close()


def test_damage_is_noticed(tmp_path: Path) -> None:
    files = filled(tmp_path, [1500] * 9)
    path = tmp_path / "timerlog" / f"{FILE_BYTES:020d}"
    path.write_bytes(bytes(FILE_BYTES))
    files._log._window = (0, b"")
    with pytest.raises(StoreDamaged, match="holds no unit of second"):
        found(files, 1000)
    files.close()


def test_a_slot_whose_first_half_is_done(tmp_path: Path) -> None:
    files = filled(tmp_path, [1100, 1500, 1900, 2100])
    files.replace_slot(T + 1000, [Unit(0, -1, PLAIN, T, T + 1000, 200, 100, 0, T + 1900)])
    files.commit(T, T + 1500, 4, clean=True)
    files.close()
    again = fresh(tmp_path, "another boot")
    assert again.open() == Stamp(True, False, True)
    assert again.checkpoint.read_ms == T + 1000
    assert found(again, 1000) == [(1900, 200)]
    again._wheel.clear(T + 1000)
    again.adopt()  # as RocketMQ would, which finds slots again by the units of its log
    assert found(again, 1000) == [(1900, 200)]
    again.replace_slot(T + 1000, [])
    assert found(again, 1000) == []
    again.close()


def test_rocketmqs_files_are_adopted(tmp_path: Path) -> None:
    """Its wheel is written once a second: units may be there that no slot knows of."""
    files = filled(tmp_path, [1500, 1600, 2500, 1700, 1800, 3500])
    check = tmp_path / "config" / "timercheck"
    check.write_bytes(TimerCheckpoint(T, 52 * 2, 2, 2, 0, T, 1).encode().ljust(4096, b"\0"))
    files._wheel.clear(T + 2000)
    files._wheel.clear(T + 3000)
    files.close()
    # The exact time is ours.
    for path in (tmp_path / "timerlog").iterdir():
        data = bytearray(path.read_bytes())
        for at in range(0, 208, 52):
            if data[at : at + 4] == (52).to_bytes(4, "big"):
                struct.pack_into(">q", data, at + 44, 0)
        path.write_bytes(data)
    again = fresh(tmp_path)
    assert again.open() == Stamp(False, False, False)
    last = again.adopt()
    assert last is not None
    assert (last.log_offset, last.due_ms) == (500, 0)
    assert [unit.log_offset for unit in again.chain(T + 1000)] == [400, 300, 100, 0]
    assert [unit.log_offset for unit in again.chain(T + 2000)] == [200]
    assert [unit.log_offset for unit in again.chain(T + 3000)] == [500]
    assert again.delete_below(300) == 0
    assert again.delete_below(400) == 1
    assert [unit.log_offset for unit in again.chain(T + 1000)] == [400], "the others went with their records"
    again.close()


def test_a_death_after_a_reset_leaves_no_checkpoint_that_vouches_for_it(tmp_path: Path) -> None:
    files = filled(tmp_path, [1500, 1600])
    files.reset()
    files.close()
    with pytest.raises(StoreFormatError, match="missing"):
        fresh(tmp_path).open()


def test_opened_again_after_a_failure_nothing_is_there_twice(tmp_path: Path) -> None:
    files = filled(tmp_path, [1500, 1600])
    files.add(PLAIN, T, T + 1700, 200, 100, 7)  # and then the commit failed
    assert files.open() == Stamp(True, True, False)
    assert files.resume(2, lambda queue_offset: queue_offset * 100) == 2
    files.add(PLAIN, T, T + 1700, 200, 100, 7)
    files.commit(T, T, 3)
    assert found(files, 1000) == [(1700, 200), (1600, 100), (1500, 0)]
    files.close()

"""The timer log: units in files, chains backwards, what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreFormatError
from kappamq.store.files import Files
from kappamq.store.timer.entries import END_MAGIC, END_MARK, PLAIN, encode_unit
from kappamq.store.timer.log import TimerLog

T = 1_700_000_000_000
FILE_BYTES = 52 * 4 + 16 + 10  # four units, the end mark, and ten bytes that no unit fits into


def unit(number: int, before: int = -1) -> bytes:
    return encode_unit(before, PLAIN, T, T + 5000, number, 100, 0)


def opened(folder: Path, end: int = 0) -> TimerLog:
    made = TimerLog(folder, FILE_BYTES, Files())
    made.open()
    made.end = end
    return made


def test_appends_go_on_in_the_next_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    positions = [log.append(unit(number)) for number in range(10)]
    log.flush()
    assert positions == [FILE_BYTES * (n // 4) + 52 * (n % 4) for n in range(10)]
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [FILE_BYTES] * 3
    assert END_MARK.unpack_from((tmp_path / f"{0:020d}").read_bytes(), 208) == (26, 0, END_MAGIC)
    again = opened(tmp_path, log.end)
    assert again.starts == [0, FILE_BYTES, 2 * FILE_BYTES]
    assert [found.log_offset for p in reversed(positions) if (found := again.unit(p))] == list(range(9, -1, -1))
    assert again.unit(10 * FILE_BYTES) is None
    assert again.unit(log.end) is None
    found = []
    position = 0
    while units := again.units(position):
        found += [each.log_offset for each in units]
        position = units[-1].position + 52
    assert found == list(range(10))
    log.close()
    again.close()


def test_a_cut_leaves_nothing_behind(tmp_path: Path) -> None:
    log = opened(tmp_path)
    positions = [log.append(unit(number)) for number in range(10)]
    log.flush()
    log.cut(positions[5])
    assert (log.end, log.starts) == (positions[5], [0, FILE_BYTES])
    assert [each.log_offset for each in log.units(positions[4])] == [4]
    assert log.append(unit(77)) == positions[5]
    log.flush()
    assert [each.log_offset for each in log.units(positions[4])] == [4, 77]
    log.cut(0)
    assert log.units(0) == []
    log.close()


def test_files_go_with_their_records(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(10):
        log.append(unit(number))
    log.sync()
    assert log.delete_below(3) == 0
    assert log.delete_below(4) == 1
    assert (log.min, log.starts) == (FILE_BYTES, [FILE_BYTES, 2 * FILE_BYTES])
    assert log.unit(0) is None
    assert log.delete_below(1000) == 1, "the last one stays"
    log.close()


@pytest.mark.parametrize("name", ["x", "1", f"{7:020d}"])
def test_what_does_not_belong_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(StoreFormatError, match="not a timer log file"):
        opened(tmp_path)


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    for start in (0, 2 * FILE_BYTES):
        (tmp_path / f"{start:020d}").write_bytes(bytes(FILE_BYTES))
    with pytest.raises(StoreFormatError, match="lacks the file"):
        opened(tmp_path)

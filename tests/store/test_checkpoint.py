from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.checkpoint import FILE_BYTES, Checkpoint
from kappamq.store.files import Files

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_bytes_as_java_lays_them_out(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(physic_ms=1, logics_ms=2, index_ms=3, master_flushed=4, confirmed=5).write(path)
    data = path.read_bytes()
    assert data[:40].hex() == "".join(f"{number:016x}" for number in (1, 2, 3, 4, 5))
    assert data[40:] == bytes(4056)


def test_missing_file_is_all_zeros(tmp_path: Path) -> None:
    assert Checkpoint.load(tmp_path / "checkpoint") == Checkpoint()
    assert not (tmp_path / "checkpoint").exists()


@given(st.builds(Checkpoint, INT64, INT64, INT64, INT64, INT64))
def test_round_trip(checkpoint: Checkpoint) -> None:
    assert len(checkpoint.encode()) == 40
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("size", [0, 7, 8, 39, 40, 41, 5000])
def test_a_file_of_any_size_is_read_and_brought_back_to_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "checkpoint"
    whole = Checkpoint(10, 20, 30, 40, 50).encode()
    path.write_bytes((whole + bytes(5000))[:size])
    found = Checkpoint.load(path)
    assert found == Checkpoint.decode(whole[:size])
    assert found.physic_ms == (10 if size >= 8 else 0)
    found.write(path, sync=True)
    assert path.stat().st_size == FILE_BYTES
    assert Checkpoint.load(path) == found


def test_written_in_place(tmp_path: Path) -> None:
    """Java maps the file once and keeps the mapping: it must stay the same file."""
    path = tmp_path / "checkpoint"
    Checkpoint(1).write(path)
    before = path.stat().st_ino
    Checkpoint(2).write(path, Files())
    assert path.stat().st_ino == before
    assert Checkpoint.load(path).physic_ms == 2


@pytest.mark.parametrize(
    ("physic", "logics", "expected"),
    [(0, 0, 0), (2999, 9999, 0), (3001, 9999, 1), (9999, 5000, 2000), (-5, 9999, 0)],
)
def test_min_timestamp(physic: int, logics: int, expected: int) -> None:
    # The index does not count, as with messageIndexSafe=false.
    assert Checkpoint(physic_ms=physic, logics_ms=logics, index_ms=1).min_timestamp() == expected

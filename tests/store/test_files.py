from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.files import Files
from tests.needs import needs
from tests.store.faulty import FaultyFiles
from tests.store.small_disk import small_disk


@pytest.fixture
def files() -> Files:
    return Files()


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path, files: Files) -> None:
    assert files.list(tmp_path / "nowhere") == []
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert files.list(tmp_path) == ["a", "b", "c"]


def test_allocated_bytes_are_there_and_zero(tmp_path: Path, files: Files) -> None:
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 1 << 20)
    assert files.size(fd) == 1 << 20
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20, "disk space stands behind every byte"
    assert files.pread(fd, 1 << 20, 0) == bytes(1 << 20)
    files.close(fd)


@given(size=st.integers(1, 20_000), start=st.integers(0, 20_000), length=st.integers(0, 20_000))
def test_zeroing_touches_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, size: int, start: int, length: int
) -> None:
    files = Files()
    start, end = min(start, size), min(start + length, size)
    path = tmp_path_factory.mktemp("zero") / "f"
    path.write_bytes(b"x" * size)
    fd = files.open(path)
    if start < end:
        files.zero(fd, start, end)
    files.close(fd)
    assert path.read_bytes() == b"x" * start + bytes(max(0, end - start)) + b"x" * (size - max(start, end))


def test_zeroing_works_where_the_file_system_cannot(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldSystem:
        def fallocate(self, *_: object) -> int:
            return -1

    monkeypatch.setattr("kappamq.store.files._libc", OldSystem())
    monkeypatch.setattr("kappamq.store.files.ctypes.get_errno", lambda: errno.EOPNOTSUPP)
    (tmp_path / "f").write_bytes(b"x" * (3 << 20))
    fd = files.open(tmp_path / "f")
    files.zero(fd, 5, (3 << 20) - 5)
    files.close(fd)
    assert (tmp_path / "f").read_bytes() == b"xxxxx" + bytes((3 << 20) - 10) + b"xxxxx"
    monkeypatch.setattr("kappamq.store.files.ctypes.get_errno", lambda: errno.EIO)
    fd = files.open(tmp_path / "f")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.zero(fd, 0, 5)
    files.close(fd)


def test_a_write_that_the_system_cuts_short_is_finished(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    fd = files.open(tmp_path / "f", create=True)
    files.pwrite(fd, b"one message that is longer than seven", 3)
    files.close(fd)
    assert (tmp_path / "f").read_bytes() == b"\0\0\0one message that is longer than seven"


def test_a_link_is_not_followed(tmp_path: Path, files: Files) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as raised:
        files.open(tmp_path / "link", create=True)
    assert raised.value.errno == errno.ELOOP


def test_a_map_follows_what_is_written(tmp_path: Path, files: Files) -> None:
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 8192)
    view = files.map(fd, 8192)
    files.pwrite(fd, b"later", 5000)
    assert view[5000:5005] == b"later"
    with pytest.raises(TypeError):
        view[0] = 1
    view.close()
    files.close(fd)


def test_resident_reads_are_whole_or_nothing(tmp_path: Path, files: Files) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    fd = files.open(tmp_path / "f")
    assert files.pread_if_resident(fd, 4, 3) == b"3456"
    assert files.pread_if_resident(fd, 4, 8) is None
    files.close(fd)


@needs("loop")
def test_a_full_disk_says_so_before_anything_is_written(files: Files) -> None:
    with small_disk(8 << 20) as root:
        fd = files.open(root / "f", create=True)
        with pytest.raises(OSError) as raised:
            files.allocate(fd, 64 << 20)
        assert raised.value.errno == errno.ENOSPC
        total, free = files.usage(root)
        assert 0 <= free < total < 9 << 20
        files.close(fd)


def test_the_faulty_disk_fails_as_told(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail("pwrite", code=errno.ENOSPC, on="full", skip=1, times=2)
    fd, other = files.open(tmp_path / "full", create=True), files.open(tmp_path / "fine", create=True)
    outcomes = []
    for _ in range(4):
        files.pwrite(other, b"x", 0)
        try:
            files.pwrite(fd, b"x", 0)
            outcomes.append(0)
        except OSError as error:
            outcomes.append(error.errno or -1)
    assert outcomes == [0, errno.ENOSPC, errno.ENOSPC, 0]
    assert (files.count("pwrite", "full"), files.count("pwrite")) == (4, 8)
    files.close(fd)
    files.close(other)

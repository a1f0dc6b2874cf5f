from __future__ import annotations

import errno
import fcntl
import inspect
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq import native
from kappamq.native.flusher import Flusher as TwinFlusher
from kappamq.native.interface import Flusher
from kappamq.native.mapping import MappedFile
from kappamq.store import files as files_module
from kappamq.store.files import FileMap, Files, NotAFile
from kappamq.store.retention import Usage
from tests.needs import needs
from tests.store.faulty import FaultyFiles
from tests.store.small_disk import small_disk
from tests.store.stores import kernels
from tests.waiting import eventually


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


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(("kind", "make"), [("named pipe", os.mkfifo), ("directory", os.mkdir)])
def test_what_is_not_a_file_is_refused_at_once(
    tmp_path: Path, files: Files, kind: str, make: Callable[[Path], None], writable: bool, create: bool
) -> None:
    place = tmp_path / "checkpoint"
    make(place)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotAFile) as raised:
        files.open(place, create, writable)
    assert raised.value.filename == str(place)
    assert raised.value.strerror == f"Is a {kind}, not a plain file: move it away"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_device_is_not_a_file(files: Files) -> None:
    with pytest.raises(NotAFile, match="Is a device, not a plain file"):
        files.open("/dev/zero", writable=False)


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


def test_reserved_blocks_are_neither_used_nor_free(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of the issue: `df` and RocketMQ say 28 %, and counting what is reserved for root as used says 73 %."""
    disk = SimpleNamespace(f_frsize=4096, f_blocks=10_000, f_bfree=8_950, f_bavail=2_700)
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    usage = Usage(*files.usage(tmp_path))
    assert usage.free_bytes == 2_700 * 4096
    assert usage.ratio == pytest.approx(0.28)


def test_usage_agrees_with_df(tmp_path: Path, files: Files) -> None:
    def agrees() -> bool:
        command = ["df", "--output=used,avail", "-B1", str(tmp_path)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used, available = map(int, shown.split()[-2:])
        total, free = files.usage(tmp_path)
        return total == pytest.approx(used + available, rel=0.01) and free == pytest.approx(available, rel=0.01)

    eventually(agrees, text="our figures agree with df's, unless somebody writes much in between")


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


@pytest.mark.parametrize("code", [0, errno.ENOSYS])
def test_two_folders_change_places(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    if code:  # as on a file system that cannot
        monkeypatch.setattr(files_module, "_EXCHANGE", 1 << 20)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    files.exchange(tmp_path / "one", tmp_path / "other")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["other"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["one"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    with pytest.raises(OSError, match="No such file"):
        files.exchange(tmp_path / "one", tmp_path / "none")
    files.link(tmp_path / "one" / "other", tmp_path / "second")
    assert (tmp_path / "second").samefile(tmp_path / "one" / "other")
    files.remove_tree(tmp_path / "one")
    files.remove_tree(tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_a_tree_that_cannot_be_removed(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "branch").mkdir(parents=True)
    (tmp_path / "tree" / "leaf").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            files.remove_tree(tmp_path / "tree")
        files.remove_tree(tmp_path / "tree", ignore_errors=True)
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["leaf"], "all the rest is gone"
    files.remove_tree(tmp_path / "none", ignore_errors=True)


def test_a_file_is_the_same_by_any_name(tmp_path: Path, files: Files) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").touch()
    files.link(tmp_path / "file", tmp_path / "second")
    assert files.identity(tmp_path / "file") is not None
    assert files.identity(tmp_path / "file") == files.identity(tmp_path / "second")
    assert files.identity(tmp_path / "file") != files.identity(tmp_path / "other")
    assert files.identity(tmp_path / "none") is None


@pytest.mark.parametrize("pid", [4711, 0, -1])
def test_a_lock_that_somebody_has_is_told(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """What processes do to each other is in test_lock.py; here, what the system may say of a holder."""
    fd = files.open(tmp_path / "lock", create=True)
    files.lock(fd)
    assert files.lock_holder(fd) is None, "our own lock is none to us"

    def answer(fd: int, command: int, asked: bytes) -> bytes:
        return struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, pid)

    monkeypatch.setattr(fcntl, "fcntl", answer)
    assert files.lock_holder(fd) == max(pid, 0)
    files.close(fd)


@pytest.mark.parametrize("kind", kernels())
def test_a_disk_brings_its_flusher(tmp_path: Path, files: Files, kind: str) -> None:
    module = native.load(kind)
    flusher = files.flusher(module)
    assert type(flusher) is module.Flusher
    assert isinstance(flusher, Flusher)
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 4096)
    flusher.request(fd, 4096)
    flusher.close()
    assert (flusher.take(), flusher.fileno()) == ((4096, 0), -1)
    files.close(fd)


def test_the_twin_has_the_arguments_of_the_interface() -> None:
    for interface, ours in ((Flusher, TwinFlusher), (FileMap, MappedFile)):
        for name, function in vars(interface).items():
            if inspect.isfunction(function) and name in vars(ours) and not name.startswith("_"):
                arguments = [list(inspect.signature(one).parameters) for one in (function, getattr(ours, name))]
                assert arguments[0] == arguments[1], name

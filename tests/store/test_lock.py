from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kappamq.errors import StoreError, StoreLocked
from kappamq.store.files import Files
from kappamq.store.lock import AbortFile, StoreLock, unusable
from tests.store.stores import BOOT, config, make, opened

# What FileChannel.tryLock(0, 1, false) does, spelled out without our code: a POSIX record lock on one byte.
RECORD_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process_holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", RECORD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def try_from_another_process(path: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", RECORD_LOCK, str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


def test_content_is_javas(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"something else")
    with StoreLock(tmp_path):
        assert (tmp_path / "lock").read_bytes() == b"lock"


def test_excludes_a_process_that_locks_like_java(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    lock.acquire()
    assert not try_from_another_process(tmp_path / "lock")
    lock.release()
    assert try_from_another_process(tmp_path / "lock")


def test_refusal_names_the_process(tmp_path: Path) -> None:
    with another_process_holding(tmp_path / "lock") as process, pytest.raises(StoreLocked) as caught:
        StoreLock(tmp_path).acquire()
    assert f"in use by process {process.pid}: stop that broker first" in str(caught.value)
    with StoreLock(tmp_path):
        pass  # it has gone: now we may


def test_a_failed_attempt_does_not_take_the_lock_from_its_holder(tmp_path: Path) -> None:
    """Closing any descriptor of the file would, within one process."""
    with StoreLock(tmp_path):
        for _ in range(3):
            with pytest.raises(StoreLocked, match="open in this process already"):
                StoreLock(tmp_path).acquire()
        assert not try_from_another_process(tmp_path / "lock")


def test_the_same_directory_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    with StoreLock(tmp_path / "data"), pytest.raises(StoreLocked):
        StoreLock(tmp_path / "alias").acquire()


def test_two_directories_are_independent(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with StoreLock(tmp_path / "a"), StoreLock(tmp_path / "b"):
        pass


def test_can_be_taken_again_after_release(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    for _ in range(2):
        lock.acquire()
        lock.release()
        lock.release()


def test_directory_that_is_not_there_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*: No such file or directory.*may read and write"):
        StoreLock(tmp_path / "missing").acquire()
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match="Is a directory"):
        StoreLock(tmp_path).acquire()


class TestAbortFile:
    def test_life(self, tmp_path: Path) -> None:
        abort = AbortFile(tmp_path)
        assert not abort.exists()
        assert abort.pid() is None
        abort.create()
        assert abort.exists()
        assert (tmp_path / "abort").read_text() == str(os.getpid())
        assert abort.pid() == os.getpid()
        abort.create(7)
        assert (tmp_path / "abort").read_text() == "7"
        abort.remove()
        assert not abort.exists()
        abort.remove()

    @pytest.mark.parametrize("text", [b"", b"no pid", b"-3", b"9" * 400, b"\xff\x00"])
    def test_unreadable_pid(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "abort").write_bytes(text)
        assert AbortFile(tmp_path).exists()
        assert AbortFile(tmp_path).pid() is None

    @pytest.mark.parametrize("answer", [None, 0, OSError()], ids=["just gone", "unnamed", "cannot tell"])
    def test_pid_of_the_abort_file_helps_where_the_system_is_silent(
        self, tmp_path: Path, answer: int | OSError | None
    ) -> None:
        class Silent(Files):
            def lock_holder(self, fd: int) -> int | None:
                if isinstance(answer, OSError):
                    raise answer
                return answer

        with another_process_holding(tmp_path / "lock"):
            with pytest.raises(StoreLocked, match="another process"):
                StoreLock(tmp_path, Silent()).acquire()
            AbortFile(tmp_path).create(4711)
            with pytest.raises(StoreLocked, match="process 4711"):
                StoreLock(tmp_path, Silent()).acquire()


def test_who_has_it_is_told_without_touching_it(tmp_path: Path) -> None:
    assert StoreLock.holder(tmp_path) is None
    (tmp_path / "lock").write_bytes(b"lock")
    assert StoreLock.holder(tmp_path) is None
    with another_process_holding(tmp_path / "lock") as process:
        assert StoreLock.holder(tmp_path) == process.pid
    with StoreLock(tmp_path):
        assert StoreLock.holder(tmp_path) == os.getpid()
        assert not try_from_another_process(tmp_path / "lock"), "asking gave the lock up"
    assert StoreLock.holder(tmp_path) is None


def test_a_holder_that_the_system_cannot_tell_is_nobody(tmp_path: Path) -> None:
    class Silent(Files):
        def lock_holder(self, fd: int) -> int | None:
            raise OSError

    (tmp_path / "lock").write_bytes(b"lock")
    assert StoreLock.holder(tmp_path, Silent()) is None


def test_a_log_of_dledger_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    with pytest.raises(
        StoreError, match=r"dledger-n0 is the log of a Java broker in DLedger mode.*move .*dledger-n0 away"
    ):
        make(config(tmp_path)).open(BOOT)
    assert not (tmp_path / "commitlog").exists()
    shutil.move(tmp_path / "dledger-n0", tmp_path / "aside")
    with opened(config(tmp_path)):
        pass


def test_why_a_directory_cannot_be_used_is_told_by_cause(tmp_path: Path) -> None:
    def told(number: int) -> str:
        return str(unusable(tmp_path, OSError(number, os.strerror(number), "/data")))

    assert told(errno.ENOENT) == "/data cannot be created (No such file or directory): choose another data directory"
    assert told(errno.EROFS) == "/data is on a read-only file system: choose another data directory"
    assert "check owner and rights" in told(errno.EACCES)
    assert "the disk is full" in told(errno.ENOSPC)

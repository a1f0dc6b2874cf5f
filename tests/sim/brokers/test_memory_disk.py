import errno
from pathlib import Path

import pytest

from kappamq.sim.brokers.memory_disk import MemoryDisk

ROOT = Path("/nowhere")


def test_files_folders_and_names() -> None:
    disk = MemoryDisk()
    disk.make_folder(ROOT / "a")
    fd = disk.open(ROOT / "a" / "file", create=True)
    disk.pwrite(fd, b"hello", 2)
    assert disk.pread(fd, 10, 0) == b"\0\0hello"
    disk.rename(ROOT / "a", ROOT / "b")
    assert disk.tree(ROOT) == {"b": None, "b/file": b"\0\0hello"}
    disk.close(fd)
    assert disk.opened == 0
    with pytest.raises(FileNotFoundError) as caught:
        disk.open(ROOT / "a" / "file")
    assert caught.value.errno == errno.ENOENT

"""A disk whose power can be cut: ext4 in a file, mounted through a loop device.

Two ways to cut. `copy`: the image file is copied while the broker goes on; the copy is what a disk would hold if the power had
failed in that moment. `shutdown`: the file system itself is told to write nothing more (EXT4_IOC_SHUTDOWN without a last flush
of its journal), which is exact to the instant. Either way what was only in the page cache is gone, and mounting replays the journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)


class ImageError(Exception):
    pass


class Smeared(ImageError):
    """The copy's blocks are from several moments: the file system in it is not whole, and it says nothing about a power cut."""


class Disk:
    """An image in `folder`, mounted at `root`. It stays mounted until `unmount`.

    After a cut the disk goes on as a copy of its image, on another loop device: somebody else's mount namespace may hold on to
    the old file system, and then mounting the same image again would only bring that one back."""

    def __init__(self, folder: Path, mib: int = 192) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.root = folder / "mounted"
        self.root.mkdir()
        self._number = 0
        with self._image.open("wb") as file:
            file.truncate(mib << 20)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self.mounted = False

    @property
    def _image(self) -> Path:
        return self.folder / f"disk-{self._number}.img"

    @property
    def _next(self) -> Path:
        return self.folder / f"disk-{self._number + 1}.img"

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.root))
        self.mounted = True

    def unmount(self) -> None:
        if self.mounted:
            _run("umount", "-l", str(self.root))
            self.mounted = False

    def copy(self) -> None:
        """Copy the image as it is now; `become_copy` makes it the disk. Blocks that were never written stay holes."""
        _run("cp", "--sparse=always", str(self._image), str(self._next))

    def become_copy(self) -> None:
        """Go on with the copy. Raises Smeared if the file system in it is not whole; then the disk goes on as it was."""
        self.unmount()
        # The journal is replayed first, as a mount would; with it everything must be in order.
        _fsck("-y", "-E", "journal_only", str(self._next))
        if complaint := _fsck("-fn", str(self._next)):
            self.mount()
            raise Smeared(complaint)
        self._go_on()

    def shut_down(self) -> None:
        """From now on nothing reaches the disk; whoever writes gets EIO."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """Mount again after `shut_down`; nobody may use the old mount any more."""
        self.copy()
        self.unmount()
        self._go_on()

    def _go_on(self) -> None:
        self._image.unlink()
        self._number += 1
        self.mount()

    def destroy(self) -> None:
        self.unmount()
        shutil.rmtree(self.folder, ignore_errors=True)


def _fsck(*arguments: str) -> str:
    """What the checker complains about; empty if the file system is in order."""
    done = subprocess.run(["e2fsck", *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr if done.returncode & ~1 else ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ImageError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}")

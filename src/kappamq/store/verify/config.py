"""Check the files beside the log: snapshots, the position file, the checkpoint. Each has a checksum or a second copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kappamq.errors import ProtocolError, StoreError
from kappamq.store import snapshots
from kappamq.store.checkpoint import USED_BYTES
from kappamq.store.files import Files
from kappamq.store.position import Position
from kappamq.store.verify.report import Kind, Report, WriteAgain

POSITION = "kappamq.position"
CHECKPOINT = "checkpoint"


def check_snapshots(root: Path, log_end: Callable[[], int], report: Report, files: Files) -> None:
    for _ in snapshot_steps(root, log_end, report, files):
        pass


def snapshot_steps(root: Path, log_end: Callable[[], int], report: Report, files: Files) -> Iterator[int]:
    """Check the files of the config folder. A checksum mismatch means that the file was edited by hand or damaged.

    `log_end` is called after a file was read, because a running broker appends to its log and writes snapshots meanwhile.
    Each step checks one file and yields its size in bytes."""
    folder = root / "config"
    for name in files.list(folder):
        bare = name.removesuffix(".bak")
        if not bare.endswith(".json"):
            continue
        try:
            data = _read(folder / name, files)
            found = snapshots.decode(data)
        except FileNotFoundError:
            continue  # it is being replaced right now
        except (ProtocolError, StoreError) as error:
            report.add(Kind.CONFIG, name, 0, str(error), WriteAgain(bare))
            continue
        except OSError as error:
            report.add(Kind.CONFIG, name, 0, f"cannot be read: {error.strerror}", WriteAgain(bare))
            continue
        if found.damaged:
            report.add(Kind.CONFIG, name, 0, found.note, WriteAgain(bare))
        elif found.log_offset is not None and found.log_offset > (end := log_end()):
            report.add(Kind.CONFIG, name, found.log_offset, f"its stamp lies beyond the end of the log, {end}")
        yield len(data)


def check_position(root: Path, report: Report, files: Files, is_ours: Callable[[Position], bool]) -> None:
    """Check the position file and the checkpoint. `is_ours`: whether no other broker has written to the store since `position`."""
    position, why = Position.load(root / POSITION, files)
    if position is None:
        if why:
            report.add(Kind.CONFIG, POSITION, 0, why, WriteAgain(POSITION))
        return
    try:
        checkpoint = _read(root / CHECKPOINT, files)[:USED_BYTES]
    except FileNotFoundError:
        checkpoint = bytes(USED_BYTES)  # the same as a checkpoint before the first sync
    except OSError as error:
        report.add(Kind.CONFIG, CHECKPOINT, 0, f"cannot be read: {error.strerror}", WriteAgain(CHECKPOINT))
        return
    # The two files are written one after the other; a broker may have been between the two writes when we read them.
    again, _why = Position.load(root / POSITION, files)
    if again is not None and not (position.wrote(checkpoint) or again.wrote(checkpoint)) and is_ours(again):
        why = f"it does not hold the bytes that {POSITION} says were written"
        report.add(Kind.CONFIG, CHECKPOINT, 0, why, WriteAgain(CHECKPOINT))


def _read(path: Path, files: Files) -> bytes:
    fd = files.open(path, writable=False)
    try:
        return files.pread(fd, min(files.size(fd), snapshots.FILE_BYTES_MAX), 0)
    finally:
        files.close(fd)

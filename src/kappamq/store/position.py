"""How far queues and index are, exactly: a small JSON file of our own beside Java's checkpoint.

It contains the log offset up to which queues and index are complete, and what shows whether another broker has written to the
store since: a copy of the checkpoint's 40 bytes and a checksum of the log before `dispatched`. It is replaced as a whole (written
to a temporary file, then renamed), and it may be lost: then recovery begins earlier.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from kappamq.store.checkpoint import USED_BYTES, Checkpoint
from kappamq.store.files import Files, NotAFile

FORMAT: Final = 1
FILE_BYTES_MAX: Final = 16 << 10
_OFFSET_MAX = (1 << 63) - 1
_BINARY = ("checkpoint", "checkpoint_before")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    dispatched: int  # every record below has its queue entry in a file (written, maybe not fsynced)
    synced: int  # every record below has its queue and index entries on disk
    flushed: int  # the log itself is on disk up to this offset
    index: int  # keys of every record below are in the index files
    queues: int  # queues that hold entries,
    entries: int  # and the sum of their ends: shows whether files were deleted
    checkpoint: bytes  # the 40 bytes that we wrote last
    last_crc: int  # of the log's bytes just before `dispatched`
    boot_id: str  # of the machine: after a reboot only what was fsynced counts
    checkpoint_before: bytes = bytes(USED_BYTES)  # and the 40 bytes before those
    synced_crc: int = 0  # these three as of `synced`
    synced_queues: int = 0
    synced_entries: int = 0
    format: int = FORMAT

    def __post_init__(self) -> None:
        assert len(self.checkpoint) == len(self.checkpoint_before) == USED_BYTES, f"a checkpoint has {USED_BYTES} bytes"

    def wrote(self, checkpoint: bytes) -> bool:
        """Whether the checkpoint file is as we wrote it.

        Write the position first and the checkpoint second: a crash between the two leaves the older bytes in the
        file, and those are ours as well."""
        return checkpoint[:USED_BYTES] in (self.checkpoint, self.checkpoint_before)

    def is_damaged(self, checkpoint: Checkpoint, newest_ms: Callable[[], int]) -> bool:
        """Whether a changed checkpoint beside an unchanged log is damage: one bit differs, or no broker can have written it. `newest_ms`
        returns the store time of the newest record that can be found quickly."""
        if any(checkpoint.is_damaged_copy_of(copy) for copy in (self.checkpoint, self.checkpoint_before)):
            return True
        newest = max(newest_ms(), Checkpoint.decode(self.checkpoint).physic_ms)
        return checkpoint == Checkpoint() or not checkpoint.is_possible(newest)

    def encode(self) -> bytes:
        values = asdict(self)
        for name in _BINARY:
            values[name] = values[name].hex()
        text = json.dumps({**values, "crc": _crc(values)}, indent=1)
        return text.encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ValueError with the reason."""
        try:
            values: Any = json.loads(data.decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON ({error})") from None
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        if values.get("format") != FORMAT:
            raise ValueError(f"it has format {values.get('format')!r}, this version knows {FORMAT}")
        crc = values.pop("crc", None)
        # A changed digit is still a valid number: only the checksum detects it.
        if crc != _crc(values):
            raise ValueError("checksum mismatch")
        for field in fields(cls):
            value = values.get(field.name)
            if field.name in (*_BINARY, "boot_id"):
                if not isinstance(value, str):
                    raise ValueError(f"{field.name} is missing or not a string")
            elif not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
                raise ValueError(f"{field.name} is missing or not an integer")
        for name in _BINARY:
            values[name] = bytes.fromhex(values[name])
            if len(values[name]) != USED_BYTES:
                raise ValueError(f"{name} has {len(values[name])} bytes")
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @classmethod
    def load(cls, path: Path, files: Files | None = None, *, to_replace: bool = False) -> tuple[Self | None, str]:
        """(position, ""), or (None, reason); the reason is empty if there is no file.

        `to_replace`: the caller will `save` it there later; raises NotAFile if that cannot work."""
        files = files or Files()
        try:
            fd = files.open(path, writable=False)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            if to_replace and isinstance(error, NotAFile):
                raise
            return None, f"{path} cannot be opened ({error.strerror}); recovery begins earlier without it"
        try:
            data = files.pread(fd, FILE_BYTES_MAX, 0)
            return cls.decode(data), ""
        except (OSError, ValueError) as error:
            return None, f"{path} cannot be used: {error}; recovery begins earlier without it"
        finally:
            files.close(fd)

    def save(self, path: Path, files: Files | None = None, *, sync: bool = False) -> None:
        """Replace the file atomically: a reader sees the old or the new one, even after a crash.

        Without `sync` a power cut may bring an older one back, which is safe: it promises less."""
        files = files or Files()
        aside = path.with_name(path.name + ".tmp")
        fd = files.open(aside, create=True)
        try:
            files.truncate(fd, 0)
            files.pwrite(fd, self.encode(), 0)
            if sync:
                files.sync(fd)
        finally:
            files.close(fd)
        files.rename(aside, path)
        if sync:
            files.sync_folder(path.parent)


def _crc(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())

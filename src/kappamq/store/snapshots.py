"""The JSON files of the config folder: topics, groups, consumer offsets... as of a log offset.

A Java broker reads and writes the same files under the same names. Ours carry one more key on top, `kappamq`: the log
offset that the table reflects, and a checksum of the table. Java drops the key when it rewrites a file: `log_offset` is None then,
and the file is the truth as of the log's end. A file of ours whose checksum does not hold is damaged, or was edited by hand, which
nobody can tell apart: it is kept aside and said to be, and the `.bak` and the log are used instead. An operator who wants an edit
to count removes the key, as Java does.

A file is replaced in steps that leave a whole one at any moment: the new text is written aside and synced, the old
file becomes `.bak`, the new one takes its name. Reading takes the file, else its `.bak`. Retention must therefore keep
the log from the `.bak`'s offset on, see `Snapshots.needed_from`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kappamq.errors import ProtocolError, StoreError
from kappamq.protocol import fastjson
from kappamq.store.files import Files

STAMP: Final = "kappamq"
FILE_BYTES_MAX: Final = 1 << 30
_BACKUP = ".bak"
_ASIDE = ".tmp"
_BROKEN_MAX = 10_000
_OFFSET_MAX = (1 << 63) - 1
_CRC = "textCrc"
_NO_CRC = "00000000"
_LOOKALIKES_MAX = 16  # places that look like the stamp's checksum and are tried
_EDIT_HINT = 'to have a change by hand count, remove the key "kappamq" from that file and put it back while the broker is stopped'


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`table` is the file's object, every key a text, our own taken out. `note` says what was odd, if anything."""

    table: dict[str, Any]
    log_offset: int | None  # the table reflects all records below; None: somebody else wrote the file
    note: str = ""
    damaged: bool = False  # we wrote the file, and it is not as we wrote it


class Snapshots:
    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder = folder
        self._files = files or Files()
        self.notes: list[str] = []  # everything odd that `load` met, for the log and the operator
        self._offsets: dict[str, tuple[int | None, int | None]] = {}  # by name: of the file, of its .bak

    def save(self, name: str, table: dict[str, Any], log_offset: int) -> None:
        """Write `table` as of `log_offset`; durable when it returns. An OSError leaves the old file in place."""
        path, aside = self.folder / name, self.folder / (name + _ASIDE)
        text = encode(table, log_offset)
        self._files.make_folder(self.folder)
        fd = self._files.open(aside, create=True)
        try:
            self._files.truncate(fd, 0)
            self._files.pwrite(fd, text, 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        old = self._offsets.get(name, (None, None))[0]
        if self._files.exists(path):
            self._files.rename(path, self.folder / (name + _BACKUP))
        self._files.rename(aside, path)
        self._files.sync_folder(self.folder)
        self._offsets[name] = (log_offset, old)

    def load(self, name: str, *, log_is_whole: bool = False) -> Snapshot | None:
        """The file, else its `.bak`; None if neither can be used (`notes` says why if they exist).

        `log_is_whole`: the log knows everything that was ever recorded, so that a damaged table is not needed. Else one is
        better than nothing, and reflects no record (`log_offset` 0): what the log knows is applied on top of it.
        What is damaged or cannot be read is kept as `<name>.broken-<n>`: it may be all that is left of somebody's settings."""
        notes: list[str] = []
        file = self._read(name, notes)
        found = file
        offsets: tuple[int | None, int | None] = (None, None)
        if file is not None and not file.damaged:
            # The backup is looked at as well: damage that is noticed when it is needed is noticed too late.
            backup = self._read(name + _BACKUP, notes)
            offsets = (file.log_offset, None if backup is None or backup.damaged else backup.log_offset)
        else:
            backup = self._read(name + _BACKUP, notes)
            if backup is not None and not backup.damaged:
                notes.append(f"{self.folder / (name + _BACKUP)} is used instead, and the log")
                # A backup of Java's is older than the file of ours that is damaged: the log knows better.
                ours = file is not None and backup.log_offset is None
                found = Snapshot(backup.table, 0) if ours else backup
                offsets = (None, backup.log_offset)
            else:
                found = file or backup
                if found is not None and log_is_whole:
                    found = None
                if found is not None:
                    notes.append(
                        f"there is no good backup: what the log does not tell of {name} is taken from the damaged file"
                    )
                    found = Snapshot(found.table, 0)
                elif notes:
                    notes.append(f"nothing is known of {name} but what the log says")
        if found is None:
            self._offsets.pop(name, None)
        else:
            self._offsets[name] = offsets
        self.notes += notes
        return None if found is None else Snapshot(found.table, found.log_offset, "; ".join(notes))

    def oldest(self, name: str) -> int:
        """The log offset from which on records are needed to bring this file, or its `.bak`, up to date; 0 without any."""
        return min((offset for offset in self._offsets.get(name, ()) if offset is not None), default=0)

    def needed_from(self) -> int | None:
        """The smallest log offset that a snapshot loaded or saved, or its `.bak`, still needs; None without any."""
        stamped = [offset for pair in self._offsets.values() for offset in pair if offset is not None]
        return min(stamped, default=None)

    def _read(self, place: str, notes: list[str]) -> Snapshot | None:
        path = self.folder / place
        try:
            found = decode(self._bytes(place))
            if found.damaged:
                kept = self._keep_broken(place)
                notes.append(
                    f"{path} is not as the broker wrote it: its checksum does not hold, so it is damaged or was changed by hand. "
                    f"It is kept as {kept.name} and not believed; {_EDIT_HINT}"
                )
            return found
        except FileNotFoundError:
            return None
        except ProtocolError as error:
            kept = self._keep_broken(place)
            notes.append(f"{path} is broken ({error}); it is kept as {kept.name}")
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}. Check its rights and the disk") from error

    def _bytes(self, place: str) -> bytes:
        path = self.folder / place
        fd = self._files.open(path, writable=False)
        try:
            size = self._files.size(fd)
            if size > FILE_BYTES_MAX:
                raise StoreError(f"{path} has {size} bytes, more than any file of this kind: move it away")
            return self._files.pread(fd, size, 0)
        finally:
            self._files.close(fd)

    def _keep_broken(self, place: str) -> Path:
        for number in range(1, _BROKEN_MAX):
            kept = self.folder / f"{place}.broken-{number}"
            if not self._files.exists(kept):
                self._files.rename(self.folder / place, kept)
                self._files.sync_folder(self.folder)
                return kept
        raise StoreError(f"{self.folder} holds {_BROKEN_MAX} broken versions of {place}: look at them and remove some")


def encode(table: dict[str, Any], log_offset: int) -> bytes:
    """The file's text: Java's layout, stamped."""
    assert STAMP not in table, f"{STAMP!r} is ours"
    assert 0 <= log_offset <= _OFFSET_MAX
    text = _stamped(table, log_offset, _NO_CRC)
    at = text.find(_crc_pair(_NO_CRC))
    if (
        text.count(_crc_pair(_NO_CRC)) != 1
    ):  # the table itself holds what looks like our stamp: ours is where another one differs
        other = _stamped(table, log_offset, "ffffffff")
        at = next(n for n, (a, b) in enumerate(zip(text, other, strict=True)) if a != b) - len(_crc_pair("")) + 1
    # The checksum is that of the text with zeros in its place.
    return _with_crc(text, at, f"{zlib.crc32(text):08x}")


def decode(data: bytes) -> Snapshot:
    """Read a file's bytes, by whomever they were written. Raises ProtocolError if they are no JSON object."""
    table = fastjson.loads(data)
    if not isinstance(table, dict):
        raise ProtocolError(f"it holds no JSON object but {type(table).__name__}")
    stamp = table.pop(STAMP, None)
    if stamp is None and not _was_stamped(data):
        return Snapshot(table, None)
    offset, crc = (stamp.get("logOffset"), stamp.get(_CRC)) if isinstance(stamp, dict) else (None, None)
    if isinstance(crc, str) and len(crc) == len(_NO_CRC) and isinstance(offset, int):
        at = data.find(_crc_pair(crc))
        for _ in range(_LOOKALIKES_MAX):
            if at < 0:
                break
            if crc == f"{zlib.crc32(_with_crc(data, at, _NO_CRC)):08x}":
                return Snapshot(table, offset)
            at = data.find(_crc_pair(crc), at + 1)
    return Snapshot(table, None, "its checksum does not hold: it is damaged or was changed by hand", damaged=True)


def _stamped(table: dict[str, Any], log_offset: int, crc: str) -> bytes:
    return fastjson.pretty({**table, STAMP: {_CRC: crc, "logOffset": log_offset}})


def _was_stamped(data: bytes) -> bool:
    """Whether a file without a readable stamp had one: a damaged bit leaves two of its three names."""
    return sum(f'"{name}":'.encode() in data for name in (STAMP, _CRC, "logOffset")) >= 2


def _crc_pair(digits: str) -> bytes:
    return f'"{_CRC}":"{digits}"'.encode()


def _with_crc(text: bytes, at: int, digits: str) -> bytes:
    """`text` with these digits in the pair that begins at `at`."""
    pair = _crc_pair(digits)
    return text[:at] + pair + text[at + len(pair) :]

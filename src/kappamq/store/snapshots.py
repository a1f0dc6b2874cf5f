"""The JSON files of the config folder: topics, groups, consumer offsets... as of a log offset.

A Java broker reads and writes the same files under the same names. Ours carry one more key on top, `kappamq`: the log
offset that the table reflects, and a checksum of the table. Java drops the key when it rewrites a file, and a hand that
edits one breaks the checksum: either way `log_offset` is None then, and the file is the truth as of the log's end.

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`table` is the file's object, every key a text, our own taken out. `note` says what was odd, if anything."""

    table: dict[str, Any]
    log_offset: int | None  # the table reflects all records below; None: somebody else wrote the file
    note: str = ""


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

    def load(self, name: str) -> Snapshot | None:
        """The file, else its `.bak`; None if neither can be read (`notes` says why if they exist).

        What cannot be read is kept as `<name>.broken-<n>`: it may be all that is left of somebody's settings."""
        notes: list[str] = []
        found: Snapshot | None = None
        for place in (name, name + _BACKUP):
            snapshot = self._read(place, notes)
            if snapshot is None:
                continue
            if place == name:
                self._offsets[name] = (snapshot.log_offset, self._offset_of(name + _BACKUP))
            else:
                self._offsets[name] = (None, snapshot.log_offset)
                notes.append(f"{self.folder / place} is used instead")
            found = snapshot
            break
        if found is None:
            self._offsets.pop(name, None)
            if notes:
                notes.append(f"nothing is known of {name} but what the log says")
        elif found.note:
            notes.append(found.note)
        self.notes += notes
        return None if found is None else Snapshot(found.table, found.log_offset, "; ".join(notes))

    def oldest(self, name: str) -> int:
        """The log offset from which on records are needed to bring this file, or its `.bak`, up to date; 0 without any."""
        return min((offset for offset in self._offsets.get(name, ()) if offset is not None), default=0)

    def needed_from(self) -> int | None:
        """The smallest log offset that a snapshot loaded or saved, or its `.bak`, still needs; None without any."""
        stamped = [offset for pair in self._offsets.values() for offset in pair if offset is not None]
        return min(stamped, default=None)

    def _offset_of(self, place: str) -> int | None:
        """The stamp of a file that nobody asked for yet, without judging it."""
        try:
            return decode(self._bytes(place)).log_offset
        except (OSError, StoreError, ProtocolError):
            return None

    def _read(self, place: str, notes: list[str]) -> Snapshot | None:
        path = self.folder / place
        try:
            return decode(self._bytes(place))
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
    text = fastjson.pretty({**table, STAMP: {_CRC: _NO_CRC, "logOffset": log_offset}})
    if text.count(_crc_pair(_NO_CRC)) != 1:
        return text  # the table itself looks like our stamp: it will not pass for stamped, but it is kept as it is
    # The checksum is that of the text with zeros in its place.
    return text.replace(_crc_pair(_NO_CRC), _crc_pair(f"{zlib.crc32(text):08x}"))


def decode(data: bytes) -> Snapshot:
    """Read a file's bytes, by whomever they were written. Raises ProtocolError if they are no JSON object."""
    table = fastjson.loads(data)
    if not isinstance(table, dict):
        raise ProtocolError(f"it holds no JSON object but {type(table).__name__}")
    stamp = table.pop(STAMP, None)
    if stamp is None:
        return Snapshot(table, None)
    offset, crc = (stamp.get("logOffset"), stamp.get(_CRC)) if isinstance(stamp, dict) else (None, None)
    if isinstance(crc, str) and isinstance(offset, int) and data.count(_crc_pair(crc)) == 1:
        bare = data.replace(_crc_pair(crc), _crc_pair(_NO_CRC))
        if crc == f"{zlib.crc32(bare):08x}":
            return Snapshot(table, offset)
    return Snapshot(table, None, "it was changed since a broker wrote it, and is taken as it is now")


def _crc_pair(digits: str) -> bytes:
    return f'"{_CRC}":"{digits}"'.encode()

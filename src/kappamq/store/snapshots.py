"""The JSON files of the config folder: topics, groups, consumer offsets... as of a log offset.

A Java broker reads and writes the same files under the same names. Ours carry one more key on top, `kappamq`: the log
offset that the table reflects, and a checksum of the table. Java drops the key when it rewrites a file: then `log_offset` is None
and the file is valid as of the log's end. A file of ours with a checksum mismatch is damaged or was edited by hand, which cannot be
distinguished: it is kept aside and logged, and the `.bak` and the log are used instead. To make an edit count, remove the key, as
Java does.

A file is replaced in steps that leave a complete one at any moment: the new text is written to a temporary file and synced, the
old file becomes `.bak`, the new one takes its name. Reading uses the file, else its `.bak`. Retention must therefore keep the log
from the `.bak`'s offset on, see `Snapshots.needed_from`.
"""

from __future__ import annotations

import errno
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
_LOOKALIKES_MAX = 16  # how many occurrences of something like the stamp's checksum are tried
_EDIT_HINT = (
    'to make a manual change count, remove the key "kappamq" from that file and put it back while the broker is stopped'
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`table` is the file's object without our own key. `note`: a problem, if any."""

    table: dict[str, Any]
    log_offset: int | None  # the table reflects all records below; None: another program wrote the file
    note: str = ""
    damaged: bool = False  # we wrote the file, and it has changed since


class Snapshots:
    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder = folder
        self._files = files or Files()
        self.notes: list[str] = []  # problems that `load` found, for the log
        self._offsets: dict[str, tuple[int | None, int | None]] = {}  # by name: of the file, of its .bak

    def save(self, name: str, table: dict[str, Any], log_offset: int) -> None:
        """Write `table` as of `log_offset`; durable when it returns. An OSError leaves the old file in place.

        One that is too large to be read again is refused so, too (EFBIG): the log keeps what the old file lacks."""
        path, aside = self.folder / name, self.folder / (name + _ASIDE)
        text = encode(table, log_offset)
        if len(text) > FILE_BYTES_MAX:
            reason = f"it would have {len(text)} bytes, and could not be read again: the limit is {FILE_BYTES_MAX}"
            raise OSError(errno.EFBIG, reason, str(path))
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
        """Read the file, or else its `.bak`; None if neither can be used (`notes` says why if they exist).

        `log_is_whole`: the log has every change, so a damaged table is not needed. Else a damaged table is used for want of a better
        one, with `log_offset` 0, so that the whole log is applied on top of it.
        A damaged or unreadable file is kept as `<name>.broken-<n>`: it may be the only copy of an operator's settings."""
        notes: list[str] = []
        file = self._read(name, notes)
        found = file
        offsets: tuple[int | None, int | None] = (None, None)
        if file is not None and not file.damaged:
            # Check the backup as well, so that its damage is found before it is needed.
            backup = self._read(name + _BACKUP, notes)
            offsets = (file.log_offset, None if backup is None or backup.damaged else backup.log_offset)
        else:
            backup = self._read(name + _BACKUP, notes)
            if backup is not None and not backup.damaged:
                notes.append(f"{self.folder / (name + _BACKUP)} and the log are used instead")
                # A backup written by Java is older than our damaged file: the log has newer data.
                ours = file is not None and backup.log_offset is None
                found = Snapshot(backup.table, 0) if ours else backup
                offsets = (None, backup.log_offset)
            else:
                found = file or backup
                if found is not None and log_is_whole:
                    found = None
                if found is not None:
                    notes.append(
                        f"there is no good backup: what the log does not contain of {name} is taken from the damaged file"
                    )
                    found = Snapshot(found.table, 0)
                elif notes:
                    notes.append(f"{name} is rebuilt from the log alone")
        if found is None:
            self._offsets.pop(name, None)
        else:
            self._offsets[name] = offsets
        self.notes += notes
        return None if found is None else Snapshot(found.table, found.log_offset, "; ".join(notes))

    def stamp(self, name: str) -> int:
        """The log offset that the file reflects; -1 if there is none, or another program wrote it."""
        offset = self._offsets.get(name, (None, None))[0]
        return -1 if offset is None else offset

    def oldest(self, name: str) -> int:
        """The log offset from which on records are needed to bring this file, or its `.bak`, up to date; 0 if there is neither."""
        return min((offset for offset in self._offsets.get(name, ()) if offset is not None), default=0)

    def needed_from(self) -> int | None:
        """The smallest log offset that a loaded or saved snapshot, or its `.bak`, still needs; None if there is none."""
        stamped = [offset for pair in self._offsets.values() for offset in pair if offset is not None]
        return min(stamped, default=None)

    def _read(self, place: str, notes: list[str]) -> Snapshot | None:
        path = self.folder / place
        try:
            found = decode(self._bytes(place))
            if found.damaged:
                kept = self._keep_broken(place)
                notes.append(
                    f"{path} is damaged or was changed by hand: checksum mismatch. "
                    f"It is kept as {kept.name} and not used; {_EDIT_HINT}"
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
    if text.count(_crc_pair(_NO_CRC)) != 1:  # the table contains what looks like our stamp: find ours by changing it
        other = _stamped(table, log_offset, "ffffffff")
        at = next(n for n, (a, b) in enumerate(zip(text, other, strict=True)) if a != b) - len(_crc_pair("")) + 1
    # The checksum is that of the text with zeros in its place.
    return _with_crc(text, at, f"{zlib.crc32(text):08x}")


def decode(data: bytes) -> Snapshot:
    """Read a file's bytes, whichever broker wrote them. Raises ProtocolError if they are not a JSON object."""
    table = fastjson.loads(data)
    if not isinstance(table, dict):
        raise ProtocolError(f"expected a JSON object, found {type(table).__name__}")
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
    return Snapshot(table, None, "checksum mismatch: it is damaged or was changed by hand", damaged=True)


def _stamped(table: dict[str, Any], log_offset: int, crc: str) -> bytes:
    return fastjson.pretty({**table, STAMP: {_CRC: crc, "logOffset": log_offset}})


def _was_stamped(data: bytes) -> bool:
    """Whether a file without a readable stamp had one: a flipped bit leaves two of its three names."""
    return sum(f'"{name}":'.encode() in data for name in (STAMP, _CRC, "logOffset")) >= 2


def _crc_pair(digits: str) -> bytes:
    return f'"{_CRC}":"{digits}"'.encode()


def _with_crc(text: bytes, at: int, digits: str) -> bytes:
    """`text` with these digits in the pair that begins at `at`."""
    pair = _crc_pair(digits)
    return text[:at] + pair + text[at + len(pair) :]

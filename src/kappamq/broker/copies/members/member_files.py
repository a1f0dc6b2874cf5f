"""The two small files of a member of a Raft group, in its data directory: what it has promised, and the terms of its log."""

from __future__ import annotations

import logging
from pathlib import Path

from kappamq.errors import StoreError
from kappamq.raft import Terms
from kappamq.replication import terms_file, vote_file
from kappamq.replication.vote_file import Vote
from kappamq.store.files import Files

log = logging.getLogger(__name__)


class MemberFiles:
    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files
        self.vote_path = root / "kappamq.vote"
        self.terms_path = root / "kappamq.terms"

    def load_vote(self) -> Vote | None:
        """None if there is no such file. Raises StoreError if neither of its halves can be read: then the vote is lost."""
        data = self._read(self.vote_path, vote_file.FILE_BYTES)
        if data is None:
            return None
        try:
            return vote_file.decode(data)
        except ValueError as error:
            raise StoreError(
                f"{self.vote_path} is damaged ({error}), so this member does not know what it has promised. Start it with an empty "
                f"data directory: it gets everything from the others"
            ) from None

    def save_vote(self, vote: Vote) -> None:
        """Returns when it is on disk."""
        fd = self._files.open(self.vote_path, create=True)
        try:
            for at, data in vote_file.writes(vote):
                self._files.pwrite(fd, data, at)
                self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.sync_folder(self._root)

    def load_terms(self) -> tuple[Terms, str] | None:
        """(terms, group id); None if there is no such file, or it cannot be read: then they are read from the log."""
        data = self._read(self.terms_path, terms_file.FILE_BYTES_MAX + 1)
        if data is None:
            return None
        try:
            return terms_file.decode(data)
        except ValueError as error:
            log.warning("%s cannot be used (%s): terms are read from the log", self.terms_path, error)
            return None

    def save_terms(self, terms: Terms, group_id: str) -> None:
        """Returns when it is on disk. A reader sees the old or the new content."""
        aside = self.terms_path.with_name(self.terms_path.name + ".tmp")
        fd = self._files.open(aside, create=True)
        try:
            self._files.truncate(fd, 0)
            self._files.pwrite(fd, terms_file.encode(terms, group_id), 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(aside, self.terms_path)
        self._files.sync_folder(self._root)

    def _read(self, path: Path, size: int) -> bytes | None:
        try:
            fd = self._files.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            return bytes(self._files.pread(fd, size, 0))
        finally:
            self._files.close(fd)

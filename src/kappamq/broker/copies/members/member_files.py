"""The two small files of a member of a Raft group, in its data directory: its vote, and the terms of its log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from kappamq.errors import StoreError
from kappamq.raft import Terms
from kappamq.replication import terms_file, vote_file
from kappamq.replication.vote_file import Vote
from kappamq.store.files import Files
from kappamq.store.recovery import Recovered

log = logging.getLogger(__name__)

AS_NEW: Final = "Start it with an empty data directory: it gets everything from the others"
_VOTE: Final = "kappamq.vote"


def demand_own_log(root: Path, found: Recovered) -> None:
    """Raise StoreError if the log was replaced since: a member must keep everything that it has reported as being on disk."""
    if found.damage:
        start, end = found.damage[0]
        raise StoreError(
            f"the log in {root} is damaged from {start} to {end}, and the others count on this member to have what was there. {AS_NEW}"
        )
    # Without a readable position file there is no evidence against the log: a power cut may remove one that was not synced yet.
    if found.contradicted:
        raise StoreError(f"another broker has written into {root} since this member did. {AS_NEW}")


class MemberFiles:
    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files
        self.vote_path = root / _VOTE
        self.terms_path = root / "kappamq.terms"

    def demand_none(self) -> None:
        """For a single broker: raise StoreError if a member's files are here, since no other member would have what it stores."""
        if self._read(self.vote_path, 1) is not None:
            raise StoreError(
                f"{self._root} belongs to a member of a Raft group ({_VOTE} is there): start it with the group's settings "
                f"(enableDLegerCommitLog, dLegerGroup, dLegerPeers, dLegerSelfId). To make it a broker of its own, for good, delete "
                f"{_VOTE} and kappamq.terms"
            )

    def load_vote(self) -> Vote | None:
        """Return None if there is no such file. Raises StoreError if neither of its halves can be read: then the vote is lost."""
        data = self._read(self.vote_path, vote_file.FILE_BYTES)
        if data is None:
            return None
        try:
            vote = vote_file.decode(data)
        except ValueError as error:
            raise StoreError(
                f"{self.vote_path} is damaged ({error}), so this member does not know what it has promised. {AS_NEW}"
            ) from None
        if data[: vote_file.SLOT_BYTES] != data[vote_file.SLOT_BYTES :]:
            # A write was torn, or the disk has damaged a slot: repair it, or the next such event could lose the vote.
            self.save_vote(vote)
        return vote

    def group_id(self) -> str:
        """Read the vote, if there is a readable one; nothing is written, since another process may own this directory."""
        try:
            return vote_file.decode(self._read(self.vote_path, vote_file.FILE_BYTES) or b"").group_id
        except ValueError:
            return ""

    def save_vote(self, vote: Vote) -> None:
        """Return when it is on disk. The first one is created atomically: half a file would be a lost vote."""
        aside = self.vote_path.with_name(_VOTE + ".tmp")
        path = aside if self._read(self.vote_path, 1) is None else self.vote_path
        fd = self._files.open(path, create=True)
        try:
            for at, data in vote_file.writes(vote):
                self._files.pwrite(fd, data, at)
                self._files.sync(fd)
        finally:
            self._files.close(fd)
        if path is aside:
            self._files.rename(aside, self.vote_path)
        self._files.sync_folder(self._root)

    def load_terms(self) -> tuple[Terms, str] | None:
        """Return (terms, group id); None if there is no such file, or it cannot be read: then they are read from the log."""
        data = self._read(self.terms_path, terms_file.FILE_BYTES_MAX + 1)
        if data is None:
            return None
        try:
            return terms_file.decode(data)
        except ValueError as error:
            log.warning("%s cannot be used (%s): terms are read from the log", self.terms_path, error)
            return None

    def save_terms(self, terms: Terms, group_id: str) -> None:
        """Return when it is on disk. A reader sees the old or the new content."""
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

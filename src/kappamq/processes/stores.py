"""The kind of the stores below a data directory: members of a Raft group, or a master and its slaves. Reads only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.raft import TermRecord, Terms
from kappamq.replication import terms_file, vote_file
from kappamq.replication.vote_file import Vote
from kappamq.store.lock import StoreLock

_VOTE: Final = "kappamq.vote"
_TERMS: Final = "kappamq.terms"
_LOG: Final = "commitlog"
_SIZE_BYTES: Final = 4  # each record begins with its size; a prepared file holds zeros


@dataclass(frozen=True, slots=True)
class Held:
    """The stores of one broker name: of a master and its slaves, or of a Raft group."""

    folders: tuple[Path, ...]  # all of them, by number
    written: tuple[Path, ...]  # those with messages in their logs
    voters: tuple[Path, ...]  # those of members of a Raft group, present or former

    @property
    def is_raft(self) -> bool:
        return bool(self.voters)

    @property
    def copies(self) -> int:
        """The number of copies; before anything was stored, the planned number."""
        return len(self.written or self.folders)

    def members(self) -> list[str]:
        """The names of the group's members. Before any log lists them: its founders, and those that have taken part."""
        noted = {name: self._terms(folder) for name, folder in self._by_name().items()}
        # The list at the start of a log was confirmed; any later change may have been recorded but never confirmed.
        sure = [terms.base for terms in noted.values() if terms is not None and terms.base.members.all]
        sure += [record for record in _records(noted) if _may_be_confirmed(record, noted)]
        if not sure:
            return sorted({*noted, *self._founders()})
        return sorted({member.name for member in max(sure, key=_place).members.all})

    def _by_name(self) -> dict[str, Path]:
        """The voters. One whose vote is damaged reports that when it is started: until then its folder identifies it."""
        votes = ((self._vote(folder), folder) for folder in self.voters)
        return {vote.member.name if vote else f"n{folder.name.partition('-')[2]}": folder for vote, folder in votes}

    def _founders(self) -> Iterator[str]:
        """The founders, after which a group is named: `broker-a:n0,n1,n2`, or `broker-a:n0#...` if one began alone."""
        for folder in self.voters:
            if (vote := self._vote(folder)) is not None and ":" in vote.group_id:
                yield from (name.partition("#")[0] for name in vote.group_id.rpartition(":")[2].split(","))

    @staticmethod
    def _vote(folder: Path) -> Vote | None:
        try:
            return vote_file.decode((folder / _VOTE).read_bytes())
        except (OSError, ValueError):
            return None

    @staticmethod
    def _terms(folder: Path) -> Terms | None:
        try:
            return terms_file.decode((folder / _TERMS).read_bytes())[0]
        except (OSError, ValueError):
            return None


def _records(noted: Mapping[str, Terms | None]) -> Iterator[TermRecord]:
    for terms in noted.values():
        yield from (record for record in (terms.records if terms is not None else ()) if record.members.all)


def _may_be_confirmed(record: TermRecord, noted: Mapping[str, Terms | None]) -> bool:
    """Return whether a majority of its voters may have it: those without information count, since a file may be lost, or on another
    machine."""
    place, may_have = _place(record), 0
    for voter in record.members.voters:
        terms = noted.get(voter.name)
        may_have += terms is None or _place(terms.base) >= place or place in map(_place, terms.records)
    return may_have * 2 > len(record.members.voters)


def _place(record: TermRecord) -> tuple[int, int]:
    return record.term, record.start


def held(folder: Path) -> dict[str, Held]:
    """Return the stores in `folder`, by the first letter of the names of the directories."""
    letters: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("?-*")):
        if path.is_dir():
            letters.setdefault(path.name[0], []).append(path)
    return {
        letter: Held(
            tuple(paths),
            tuple(path for path in paths if _has_records(path)),
            tuple(path for path in paths if (path / _VOTE).exists()),
        )
        for letter, paths in letters.items()
    }


def in_use(folder: Path) -> tuple[Path, int] | None:
    """Return the first of the stores that a running process has open, and that process (0: unknown)."""
    for found in held(folder).values():
        for path in found.folders:
            holder = StoreLock.holder(path)
            if holder is not None:
                return path, holder
    return None


def _has_records(store: Path) -> bool:
    try:
        for path in sorted((store / _LOG).iterdir()):
            with path.open("rb") as file:
                if any(file.read(_SIZE_BYTES)):
                    return True
    except OSError:
        pass  # the broker itself says why it cannot read there
    return False

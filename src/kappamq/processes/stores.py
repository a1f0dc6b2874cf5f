"""What the stores below a data directory are: members of a Raft group, or a master's and its slaves'. Reads only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.replication import terms_file, vote_file
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
        """How many copies there are; before anything was stored, how many there are to be."""
        return len(self.written or self.folders)

    def members(self) -> list[str]:
        """The names of the group's members, as the one that knows most has noted them."""
        latest, names = (-1, -1), set[str]()
        for folder in self.voters:
            try:
                last = terms_file.decode((folder / _TERMS).read_bytes())[0].last
            except (OSError, ValueError):
                continue
            if last.members.all and (last.term, last.start) > latest:
                latest, names = (last.term, last.start), {member.name for member in last.members.all}
        return sorted(names or set(self._voted()))

    def _voted(self) -> Iterator[str]:
        for folder in self.voters:
            try:
                yield vote_file.decode((folder / _VOTE).read_bytes()).member.name
            except (OSError, ValueError):
                yield f"n{folder.name.partition('-')[2]}"  # it says what is wrong with it when it is started


def held(folder: Path) -> dict[str, Held]:
    """What is in `folder`, by the letter that begins the names of the directories."""
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
    """The first of the stores that a running process has open, and that process (0: unknown)."""
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

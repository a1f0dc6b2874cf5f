"""The kind of stores in a data directory: those of a group of brokers, below `brokers`, or the single one of a plain `kappamq up`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kappamq.config.copies import RAFT_SIZES
from kappamq.errors import StoreError, StoreLocked
from kappamq.processes.plan import MEMBER, Place, Shape
from kappamq.processes.stores import Held, held, in_use

FOLDER: Final = "brokers"  # below the data directory
_FIRST: Final = "a-0"
_LOG: Final = "commitlog"


def check_single(root: Path) -> None:
    """Refuse a plain `kappamq up` in the directory of several brokers, which it would not serve. Raises StoreError.

    If both exist, an earlier version has created the single store: it is served, so that its messages can be read."""
    if stores(root) and not (root / _LOG).is_dir():
        raise StoreError(
            f"{root} holds {_some(root)} of an earlier `kappamq up` with --brokers, --slaves or --raft, which a plain `kappamq up` "
            f"would not serve: start them with `{command(root)}`, or choose another --data"
        )


def check_several(root: Path) -> None:
    """Refuse to start several brokers in the directory of a single one, which they would not serve. Raises StoreError."""
    if not (root / _LOG).is_dir():
        return
    first = root / FOLDER / _FIRST
    if first.exists():
        raise StoreError(
            f"{root} holds the store of a single broker beside {_some(root)} in {root / FOLDER}, and it would not be served. Do not mix "
            f"them: move {root / FOLDER} to a new directory and give that as --data; a plain `kappamq up` goes on serving the single one"
        )
    raise StoreError(
        f"{root} holds the store of a single broker, which would not be served: choose another --data, or move what is in it "
        f"to {first}, where it becomes the first broker's"
    )


def check_shape(root: Path, shape: Shape) -> None:
    """Refuse a shape that the stores do not have, before anything is written. Raises StoreError, StoreLocked.

    A master may get slaves, or lose them. A Raft group keeps its members: its log says who they are."""
    folder = root / FOLDER
    if (taken := in_use(folder)) is not None:
        path, pid = taken
        raise StoreLocked(
            f"{path} is in use by {f'process {pid}' if pid else 'another process'}: stop that `kappamq up` (or broker) first, or choose "
            "another --data"
        )
    for letter, found in held(folder).items():
        size = _raft_size(found)
        if found.is_raft and size != shape.raft:
            members = found.members()
            if size is None:
                raise StoreError(
                    f"{root} holds a Raft group of {', '.join(members)}, which `kappamq up` cannot start as a whole: start each with "
                    f"`kappamq broker -c FILE` (a file per member is in {folder}), or choose another --data"
                )
            more = "; `kappamq member add` makes it larger" if shape.raft > size else ""
            raise StoreError(
                f"{root} holds a Raft group with the {counted(len(members), 'member')} {', '.join(members)}: start it with "
                f"`{command(root)}`{more}, or choose another --data"
            )
        if shape.raft and not found.is_raft and found.written:
            raise StoreError(
                f"{root} holds the {_of_copies(found)} of {letter}, which no Raft group has written: start "
                f"{'it' if found.copies == 1 else 'them'} with `{command(root)}`, or choose another --data"
            )


def left_out(root: Path, places: Iterable[Place]) -> list[Place]:
    """Return those of `places` that are not members of their Raft group (any more), and so must not be started."""
    groups = {letter: found.members() for letter, found in held(root / FOLDER).items() if found.is_raft}
    return [
        place
        for place in places
        if place.role == MEMBER and place.folder[0] in groups and place.member not in groups[place.folder[0]]
    ]


def stores(root: Path) -> list[Path]:
    """Return the directories of the brokers below the data directory, by name."""
    return [path for found in held(root / FOLDER).values() for path in found.folders]


def command(root: Path) -> str:
    """Return the command that serves the brokers of a directory, as derived from their stores. Only whether sends wait for slaves is in a
    broker.conf."""
    groups = held(root / FOLDER)
    size = max((found.copies for found in groups.values()), default=1)
    raft = max((_raft_size(found) or 0 for found in groups.values()), default=0)
    words = ["kappamq", "up", "--data", shlex.quote(str(root))]
    if raft:
        shape = ["--raft", str(raft)]
    elif size > 1:
        shape = ["--slaves", str(size - 1), *(["--async"] if _is_asynchronous(root) else [])]
    else:
        shape = ["--brokers", str(len(groups))]
    if len(groups) > 1 and (raft or size > 1):
        words += ["--brokers", str(len(groups))]
    return " ".join(words + shape)


def _raft_size(found: Held) -> int | None:
    """Return the value of --raft that starts all members of a group; None if there is none, or it is not a group."""
    if not found.is_raft:
        return None
    numbers = [
        int(name[1:]) if name[1:].isdecimal() and name[0] == "n" else max(RAFT_SIZES) for name in found.members()
    ]
    return next((size for size in RAFT_SIZES if max(numbers, default=0) < size), None)


def _is_asynchronous(root: Path) -> bool:
    try:
        config = (root / FOLDER / f"{_FIRST}.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "brokerRole=ASYNC_MASTER" in config


def _of_copies(found: Held) -> str:
    return "store" if found.copies == 1 else f"{found.copies} copies of the store"


def _some(root: Path) -> str:
    return f"the {'store' if len(stores(root)) == 1 else 'stores'} of {counted(len(stores(root)), 'broker')}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"

"""Whose stores a data directory holds: those of a group of brokers, below `brokers`, or the single one of a plain `kappamq up`."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Final

from kappamq.errors import StoreError

FOLDER: Final = "brokers"  # below the data directory
_FIRST: Final = "a-0"
_LOG: Final = "commitlog"


def check_single(root: Path) -> None:
    """Refuse a plain `kappamq up` in the directory of several brokers, which it would not serve. Raises StoreError.

    Where both lie, an earlier version has made the single store there: it is served, so that what it holds can be read."""
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


def stores(root: Path) -> list[Path]:
    """The directories of the brokers below the data directory, by name."""
    return sorted(path for path in (root / FOLDER).glob("?-*") if path.is_dir())


def command(root: Path) -> str:
    """The command that serves the brokers of a directory, as far as their names and the first one's broker.conf tell."""
    groups = Counter(path.name[0] for path in stores(root))
    size = max(groups.values(), default=1)
    try:
        config = (root / FOLDER / f"{_FIRST}.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        config = ""
    words = ["kappamq", "up", "--data", shlex.quote(str(root))]
    if "enableDLegerCommitLog=true" in config:
        shape = ["--raft", str(size)]
    elif size > 1:
        shape = ["--slaves", str(size - 1), *(["--async"] if "brokerRole=ASYNC_MASTER" in config else [])]
    else:
        shape = ["--brokers", str(len(groups))]
    if len(groups) > 1 and size > 1:
        words += ["--brokers", str(len(groups))]
    return " ".join(words + shape)


def _some(root: Path) -> str:
    count = len(stores(root))
    return f"the store{'s' * (count != 1)} of {count} broker{'s' * (count != 1)}"

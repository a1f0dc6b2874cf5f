"""The folder of a job: its settings at the first run, and the id that owns its scope. One process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kappamq.errors import ConfigError, StoreError
from kappamq.protocol.names import check_group
from kappamq.spark.topic.options import checked_name

DEFAULT: Final = Path("~/.kappamq/copies")
_FILE: Final = "job.json"
_LOCK: Final = "lock"
_VERSION: Final = 1


class JobState:
    """The folder `root/NAME`; created by `opened`."""

    def __init__(self, root: Path | None, name: str) -> None:
        self.name = checked_name("name", name, check_group)
        self.folder = (root or DEFAULT).expanduser().absolute() / self.name

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep other processes out. Raises StoreError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / _LOCK).open("w")
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be used: {error.strerror or error}; choose another with --state"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(f"another process works on {self.name} ({self.folder}): wait for it") from None
            yield

    def read(self) -> dict[str, Any] | None:
        """Return the stored settings, None if there are none yet. Raises StoreError."""
        path = self.folder / _FILE
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            if said.pop("version") != _VERSION:
                raise ValueError("it was written by another version of KappaMQ")
            if not isinstance(said["owner"], str) or not isinstance(said["asked"], dict):
                raise ValueError("it names no owner")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from None
        found: dict[str, Any] = said
        return found

    def agreed(self, asked: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
        """Return what was stored for these settings, None for a job that never began. Raises ConfigError if it was another job."""
        found = self.read()
        if found is None:
            return None
        wanted = json.loads(json.dumps({"job": kind, **asked}))
        before = found["asked"]
        if different := [name for name in {**before, **wanted} if before.get(name) != wanted.get(name)]:
            name = different[0]
            raise ConfigError(
                f"{self.name} was begun with {name} {before.get(name)!r}, and now it is {wanted.get(name)!r}: "
                f"it can only go on as it began; give another name to what is another job ({self.folder} has this one)"
            )
        return found

    def begin(self, asked: Mapping[str, Any], kind: str, **more: Any) -> dict[str, Any]:
        """Store a new job, durably, before it writes anything."""
        said = {"version": _VERSION, "owner": f"{kind}-{secrets.token_hex(8)}", "asked": {"job": kind, **asked}, **more}
        path = self.folder / _FILE
        aside = path.with_suffix(".new")
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(said, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
        found = self.read()
        assert found is not None, "just written"
        return found

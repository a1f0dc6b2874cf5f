"""Offsets of a broadcasting consumer: in a local file, at the same path and in the same format as RocketMQ's clients.

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json      and offsets.json.bak, the previous one

Two consumers with the same file would overwrite each other, so the second one is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError, KappaError, ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.body import Body, wire

log = logging.getLogger(__name__)

FOLDER: Final = ".rocketmq_offsets"


class OffsetTable(Body):
    offsets: dict[MessageQueue, int] = wire("offsetTable", default_factory=dict)


class LocalOffsets:
    """Opened by one consumer. `first_start_of`: returns the start offset of a queue that is not in the file."""

    def __init__(
        self,
        config: ClientConfig,
        client_id: str,
        group: str,
        first_start_of: Callable[[MessageQueue], Awaitable[int]],
    ) -> None:
        if os.sep in client_id:
            raise ConfigError(
                f"the client id {client_id!r} is used as a folder name: `instance` must not contain {os.sep!r}"
            )
        folder = (config.offsets_dir or Path.home() / FOLDER) / client_id / group
        self.path = folder / "offsets.json"
        self._first_start_of = first_start_of
        self._saving = asyncio.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder / "lock", client_id, group)
            self._offsets = _read(self.path)
        except OSError as error:
            raise ConfigError(
                f"the offsets of a broadcasting consumer cannot be kept in {folder}: {error}; set offsets_dir"
            ) from error
        self._saved = dict(self._offsets)

    def close(self) -> None:
        os.close(self._lock)

    async def start_of(self, queue: MessageQueue) -> int:
        """Return the offset to start a queue at."""
        stored = self._offsets.get(queue)
        return await self._first_start_of(queue) if stored is None else stored

    async def commit(self, offsets: Mapping[MessageQueue, int], *, strict: bool = False) -> None:
        """Save offsets that have grown; only an offset forgotten before may move back. `strict`: raise errors."""
        for queue, offset in offsets.items():
            if offset > self._offsets.get(queue, -1):
                self._offsets[queue] = offset
        async with self._saving:
            table = dict(self._offsets)
            if table == self._saved:
                return
            try:
                await asyncio.to_thread(_write, self.path, OffsetTable(offsets=table).encode())
                self._saved = table
            except OSError as error:
                if strict:
                    raise KappaError(f"offsets cannot be written to {self.path}: {error}") from error
                log.warning("could not write offsets to %s, retrying: %s", self.path, error)

    def forget(self, queue: MessageQueue) -> None:
        """Forget the offset of a queue that was reset, or assigned to another member."""
        self._offsets.pop(queue, None)


def _locked(path: Path, client_id: str, group: str) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise ConfigError(
            f"another broadcasting consumer of group {group!r} with the client id {client_id!r} is already running on this "
            "machine, and both would use the same offsets file: give each its own `instance`"
        ) from None
    return file


def _read(path: Path) -> dict[MessageQueue, int]:
    for place in (path, path.with_name(path.name + ".bak")):
        try:
            data = place.read_bytes()
            if not data.strip():
                raise ProtocolError("it is empty")
            return OffsetTable.decode(data).offsets
        except FileNotFoundError:
            continue
        except ProtocolError as error:
            log.warning("could not read the offsets file %s: %s", place, error)
    return {}


def _write(path: Path, data: bytes) -> None:
    """Keep the previous file as .bak and replace it atomically: after a crash one of the two is readable."""
    fresh, backup = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".bak")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    fresh.replace(path)

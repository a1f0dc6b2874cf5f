"""The KV configuration of a name server: the only data that survives a restart.

kvConfig.json       {"configTable": {namespace: {key: value}}}
kvConfig.json.bak   the previous version
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, Final

from kappamq.errors import BrokerError, ConfigError, ProtocolError
from kappamq.protocol import fastjson

log = logging.getLogger(__name__)

FILE_NAME: Final = "kvConfig.json"
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that maps topics to the brokers and numbers of their queues: `brokerA:4;brokerB:4`."""

Table = dict[str, dict[str, str]]


class KvConfig:
    """A map of maps. A change is written to disk before it becomes visible and is answered.

    With `root` None it is kept in memory only.
    """

    def __init__(self, root: Path | None, *, bytes_max: int = 16 << 20) -> None:
        self._path = root / FILE_NAME if root is not None else None
        self._bytes_max = bytes_max
        self._table: Table = {}
        self._turn = asyncio.Lock()

    def load(self) -> None:
        """Read the file, or the previous version if it is damaged. Raises ConfigError if neither can be read."""
        if self._path is None:
            return
        problems: list[str] = []
        for path in (self._path, self._path.with_name(FILE_NAME + ".bak")):
            try:
                data = path.read_bytes()
                self._table = _table_of(fastjson.loads(data))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
            except ProtocolError as error:
                problems.append(f"{path}: {error}")
                continue
            if problems:
                log.warning("the KV configuration is damaged, using the previous version: %s", problems[0])
            return
        if problems:
            raise ConfigError(f"the KV configuration cannot be read; repair or remove it: {'; '.join(problems)}")

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        table = self._table.get(namespace)
        return dict(table) if table is not None else None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises BrokerError, without changing anything, if it cannot be stored."""
        async with self._turn:
            changed = dict(self._table)
            changed[namespace] = {**changed.get(namespace, {}), key: value}
            await self._replace(changed)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists."""
        async with self._turn:
            if key not in self._table.get(namespace, {}):
                return
            kept = {name: value for name, value in self._table[namespace].items() if name != key}
            await self._replace({**self._table, namespace: kept})

    async def _replace(self, table: Table) -> None:
        data = await asyncio.to_thread(fastjson.pretty, {"configTable": table})
        if len(data) > self._bytes_max:
            raise BrokerError(f"the KV configuration would grow to {len(data)} bytes, the limit is {self._bytes_max}")
        if self._path is not None:
            try:
                await asyncio.to_thread(_write, self._path, data)
            except OSError as error:
                raise BrokerError(f"cannot write {self._path}: {error.strerror or error}; nothing changed") from error
        self._table = table


def _table_of(parsed: Any) -> Table:
    table = parsed.get("configTable", {}) if isinstance(parsed, dict) else None
    if not isinstance(table, dict) or not all(isinstance(keys, dict) for keys in table.values()):
        raise ProtocolError("expected an object with a configTable of namespaces")
    return {
        namespace: {key: str(value) for key, value in keys.items() if value is not None}
        for namespace, keys in table.items()
    }


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically, and keep the old one as a backup."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    if path.exists():
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(fresh, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""Which topics were deleted and not created again: their messages are still in the log, and must not get new queue files.

The broker's topic table is a snapshot (config/topics.json) and the metadata records after it. This module reads both and writes
nothing; a malformed file is left to the broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kappamq.errors import ProtocolError
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.fields import BODY_AT, IPV6_EXTRA_BYTES
from kappamq.protocol.records.record import decode
from kappamq.store import snapshots
from kappamq.store.files import Files
from kappamq.store.log.commit_log import CommitLog
from kappamq.store.snapshots import Snapshot

FILE: Final = "topics.json"
CHANGED_KIND: Final = "topic"
DELETED_KIND: Final = "topic-deleted"
FORGOTTEN_KIND: Final = "topic-forgotten"
"""No message of a deleted topic is left in the log: if it is created again, its queues start at 0."""
DELETED: Final = "kappamqDeleted"
"""Key of the snapshot: deleted topics, with the ends of their queues."""
_FORGOTTEN: Final = re.compile(re.escape(json.dumps({"kind": FORGOTTEN_KIND}, separators=(",", ":"))[:-1].encode()))
"""How the body of its record begins."""
_LENGTH_BYTES: Final = 4  # of the body, before it
_TABLE: Final = "topicConfigTable"
_NONSENSE: Final = (LookupError, AttributeError, TypeError, ValueError)


class TopicTable:
    """The snapshot, and the changes that later records make to it."""

    def __init__(self, config: Path, log_min: int, log_end: int, files: Files) -> None:
        found = _load(config, log_min, files)
        # A table that another broker wrote is valid as of the end of the log.
        stamp = log_end if found.log_offset is None else found.log_offset
        self.stamp = min(stamp, log_end)
        """Apply records from this log offset on."""
        self._known = set(_keys(found.table.get(_TABLE)))
        self._deleted = set(_keys(found.table.get(DELETED)))

    def apply(self, bodies: Iterable[bytes]) -> None:
        """Metadata records in log order. Malformed ones are skipped, as the broker does."""
        for body in bodies:
            try:
                content: Any = json.loads(body)
                kind, change = content["kind"], content["change"]
                if kind == CHANGED_KIND:
                    self._known.add(str(change["topicName"]))
                elif kind == DELETED_KIND:
                    name = str(change["topicName"])
                    self._known.discard(name)
                    self._deleted.add(name)
                elif kind == FORGOTTEN_KIND:
                    self._deleted.discard(str(change))
            except _NONSENSE:
                continue

    @property
    def deleted(self) -> set[str]:
        """Topics that were deleted and not created again."""
        return self._deleted - self._known


class ForgottenTopics:
    """Which topics the log forgets, and at which offsets; all are found by one walk through it."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._looked_to = log.min
        self._first: dict[str, int] = {}

    def is_forgotten(self, name: str, before: int) -> bool:
        """Whether a record below `before` forgets the topic."""
        while self._looked_to < before and (view := self._log.whole_view(self._looked_to)[: before - self._looked_to]):
            for match in _FORGOTTEN.finditer(view):
                forgotten = self._forgets(self._looked_to + match.start())
                if forgotten is not None:
                    self._first.setdefault(*forgotten)
            self._looked_to += len(view)
        return self._first.get(name, before) < before

    def _forgets(self, body_at: int) -> tuple[str, int] | None:
        """The topic that the record with a body at `body_at` forgets, and the record's offset. The bytes may be part of a user's
        message: only a record of the metadata topic that contains this log offset counts."""
        for host_bytes in (0, IPV6_EXTRA_BYTES, 2 * IPV6_EXTRA_BYTES):
            at = body_at - _LENGTH_BYTES - BODY_AT - host_bytes
            if at < self._log.min:
                continue
            try:
                record = decode(self._log.whole_view(at))
                if record.topic == METADATA_TOPIC and record.log_offset == at:
                    content: Any = json.loads(record.body)
                    return (str(content["change"]), at) if content["kind"] == FORGOTTEN_KIND else None
            except (*_NONSENSE, ProtocolError):
                continue
        return None


def _keys(table: Any) -> Iterable[str]:
    return table if isinstance(table, dict) else ()


def _load(config: Path, log_min: int, files: Files) -> Snapshot:
    """Choose between the file and its backup as `Snapshots.load` does."""
    nothing = Snapshot({}, 0)
    file, backup = _read(config / FILE, files), _read(config / f"{FILE}.bak", files)
    if file is not None and not file.damaged:
        return file
    if backup is not None and not backup.damaged:
        return Snapshot(backup.table, 0) if file is not None and backup.log_offset is None else backup
    damaged = file or backup
    # A whole log contains every change; otherwise a damaged table is better than none.
    return nothing if damaged is None or log_min == 0 else Snapshot(damaged.table, 0)


def _read(path: Path, files: Files) -> Snapshot | None:
    try:
        fd = files.open(path, writable=False)
    except OSError:
        return None
    try:
        return snapshots.decode(files.pread(fd, files.size(fd), 0))
    except (OSError, ProtocolError):
        return None
    finally:
        files.close(fd)

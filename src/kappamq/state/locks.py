"""Queue locks for ordered consumption: one owner per (group, queue), on a lease. The time is an argument.

Ownership is a fold over the log, so a restart, or another broker that takes over, honours it: a lock that gets a new owner, is
released or expires is a record. A renewal is not: there are too many, and leases end by liveness time, which is not shared between
processes. So a lock found in the log counts as renewed when the broker begins to serve, minus the time for which its owner was
missing before. For that each start is a record, so is once a second how long the owners found then have been missing, and so is
the first renewal of a found lock. This time adds up over restarts and never exceeds the time that the owner really had, so a lock
is never given away while its owner relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kappamq.errors import KappaError
from kappamq.message import MessageQueue
from kappamq.state.metadata import Commit

log = logging.getLogger(__name__)

QUEUES_PER_RECORD = 1000
MISSED_NOTED_S = 1.0


@dataclass(slots=True)
class Lease:
    """A lock. `renewed` and `safe` are not part of the fold: they are valid in this process only."""

    client_id: str
    renewed: float = 0.0
    safe: int = 0  # log offset up to which the log must be safe before its owner may rely on it
    found: int = 0  # the start that found it in the log, if its owner has not renewed it since; 0: renewed in this life
    missed_before: float = 0.0  # seconds for which its owner was missing in earlier lives
    missed: float = 0.0  # the same, including what is known of the present life


class Held(NamedTuple):
    """The result of a request for locks."""

    queues: set[MessageQueue]  # that the client holds now
    safe: int = 0  # log offset that must be confirmed before the owner may rely on it; 0: nothing new


class QueueLocks:
    file = "kappamq.locks.json"
    kinds = ("lock", "unlock", "lock-expired", "locks-found", "locks-missed")

    def __init__(self, broker_name: str, lease_s: float, commit: Commit) -> None:
        self._broker_name = broker_name
        self._commit = commit
        self.lease_s = lease_s
        self._groups: dict[str, dict[MessageQueue, Lease]] = {}
        self._starts = 0
        self._began = self._noted = 0.0  # when we began to serve, and last recorded how long owners have been missing
        self.dirty = False
        self.safe_up_to = 0  # the log is known to be safe up to this offset

    # -- changing ----------------------------------------------------------------------------------------------------------

    def lock(self, group: str, client_id: str, queues: set[MessageQueue], now: float) -> Held:
        """Take or renew the locks that are free or ours. Raises KappaError if none of this can be recorded."""
        leases = self._groups.get(group, {})
        held: set[MessageQueue] = set()
        taken: list[MessageQueue] = []
        back: list[MessageQueue] = []
        safe = 0
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                lease.renewed = now
                held.add(queue)
                if lease.found:
                    back.append(queue)
                if lease.safe > self.safe_up_to:
                    safe = max(safe, lease.safe)  # the answer to its first request still waits, too
            elif lease is None or now - lease.renewed > self.lease_s:
                taken.append(queue)
        self._came_back(group, client_id, back)
        try:
            for at in range(0, len(taken), QUEUES_PER_RECORD):
                part = taken[at : at + QUEUES_PER_RECORD]
                safe = self._commit("lock", [group, client_id, _by_topic(part)])
                for queue in part:
                    lease = self._groups[group][queue]
                    lease.renewed, lease.safe = now, safe
                held.update(part)
        except KappaError as error:
            if not held:
                raise
            log.info("%s gets fewer locks than it could: %s", client_id, error)
        return Held(held, safe)

    def unlock(self, group: str, client_id: str, queues: set[MessageQueue]) -> None:
        """Release locks that this owner holds."""
        leases = self._groups.get(group, {})
        given = [queue for queue in queues if queue in leases and leases[queue].client_id == client_id]
        for at in range(0, len(given), QUEUES_PER_RECORD):
            part = _by_topic(given[at : at + QUEUES_PER_RECORD])
            self._commit("unlock", [group, client_id, part], anyway=True)

    def expire(self, now: float) -> None:
        """Remove expired locks."""
        for group, leases in list(self._groups.items()):
            over = [queue for queue, lease in leases.items() if now - lease.renewed > self.lease_s]
            for at in range(0, len(over), QUEUES_PER_RECORD):
                self._commit("lock-expired", [group, _by_topic(over[at : at + QUEUES_PER_RECORD])], anyway=True)
        self._note_missed(now)

    def begin(self, now: float) -> None:
        """The broker begins to serve: locks from the log are valid for the rest of their leases, from now on."""
        self._began = self._noted = now
        if self._groups:
            self._commit("locks-found", self._starts + 1, anyway=True)
            for leases in self._groups.values():
                for lease in leases.values():
                    lease.renewed = now - lease.missed

    def _came_back(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """The owner of locks that were found in the log has renewed them."""
        for at in range(0, len(queues), QUEUES_PER_RECORD):
            part = queues[at : at + QUEUES_PER_RECORD]
            before = {queue: self._groups[group][queue] for queue in part}
            self._commit("lock", [group, client_id, _by_topic(part)], anyway=True)
            for queue, lease in before.items():
                renewed = self._groups[group][queue]
                renewed.renewed, renewed.safe = lease.renewed, lease.safe

    def _note_missed(self, now: float) -> None:
        """Record how long owners have been missing, so that the count continues after a restart."""
        if now - self._noted < MISSED_NOTED_S:
            return
        self._noted = now
        seconds = round(now - self._began, 3)
        if any(lease.found for leases in self._groups.values() for lease in leases.values()):
            self._commit("locks-missed", [self._starts, seconds], anyway=True)

    def _found(self, start: int) -> None:
        self._starts = max(self._starts, start)
        for leases in self._groups.values():
            for lease in leases.values():
                if lease.found < start:
                    lease.found, lease.missed_before = start, lease.missed

    def _missed(self, start: int, seconds: float) -> None:
        for leases in self._groups.values():
            for lease in leases.values():
                if lease.found == start:
                    lease.missed = max(lease.missed, lease.missed_before + seconds)

    def _drop(self, group: str, queues: Iterable[MessageQueue]) -> None:
        leases = self._groups.get(group)
        if leases is not None:
            for queue in queues:
                leases.pop(queue, None)
            if not leases:
                del self._groups[group]

    # -- asking ------------------------------------------------------------------------------------------------------------

    def owner(self, group: str, queue: MessageQueue, now: float) -> str | None:
        lease = self._groups.get(group, {}).get(queue)
        return lease.client_id if lease is not None and now - lease.renewed <= self.lease_s else None

    def is_owner(self, group: str, client_id: str, now: float) -> bool:
        """Whether this client holds any queue of the group."""
        return any(
            lease.client_id == client_id and now - lease.renewed <= self.lease_s
            for lease in self._groups.get(group, {}).values()
        )

    def any_held(self, group: str, now: float) -> bool:
        return any(now - lease.renewed <= self.lease_s for lease in self._groups.get(group, {}).values())

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        rows: dict[tuple[Any, ...], list[MessageQueue]] = {}
        for group, leases in self._groups.items():
            for queue, lease in leases.items():
                key = (group, lease.client_id, lease.found, lease.missed_before, lease.missed)
                rows.setdefault(key, []).append(queue)
        locks: list[dict[str, Any]] = []
        for (group, client_id, found, before, missed), queues in rows.items():
            row = {"group": group, "clientId": client_id, "queues": _by_topic(queues)}
            locks.append(row | ({"found": found, "missedBefore": before, "missed": missed} if found else {}))
        return {"locks": locks, "starts": self._starts}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self._starts = int(table.get("starts") or 0)
        for row in table.get("locks") or []:
            found, before, missed = (row.get(name) or 0 for name in ("found", "missedBefore", "missed"))
            leases = self._groups.setdefault(str(row["group"]), {})
            for queue in self._queues(row["queues"]):
                leases[queue] = Lease(str(row["clientId"]), 0.0, 0, int(found), float(before), float(missed))
            self.dirty = True

    def apply(self, kind: str, change: Any) -> None:
        if kind == "locks-found":
            self._found(int(change))
            return
        if kind == "locks-missed":
            self._missed(int(change[0]), float(change[1]))
            return
        group, queues = str(change[0]), self._queues(change[-1])
        if kind == "lock":
            leases = self._groups.setdefault(group, {})
            leases.update((queue, Lease(str(change[1]))) for queue in queues)
        elif kind == "unlock":
            leases = self._groups.get(group, {})
            client_id = str(change[1])
            self._drop(group, [queue for queue in queues if queue in leases and leases[queue].client_id == client_id])
        else:
            self._drop(group, queues)

    def reset(self) -> None:
        self._groups.clear()
        self._starts = 0

    def _queues(self, by_topic: dict[str, list[int]]) -> list[MessageQueue]:
        return [
            MessageQueue(str(topic), self._broker_name, int(queue_id))
            for topic, ids in by_topic.items()
            for queue_id in ids
        ]


def _by_topic(queues: Iterable[MessageQueue]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for queue in queues:
        found.setdefault(queue.topic, []).append(queue.queue_id)
    return found

"""Queue locks for ordered consumption: one owner per (group, queue), on a lease. Told the time.

Who owns what is a fold over the log, so that a restart, or another broker that takes over, honours it: a lock that is taken
by a new owner, given back or expired is a record. A renewal is none: there are many, and it changes nothing that a reader of
the log could use, for leases end by liveness time, which another process does not share. Instead every lock found in the log
counts as renewed in the moment its finder begins to serve: that is never earlier than its last renewal, so nobody is handed a
lock before the lease would have ended that its owner counts on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kappamq.errors import KappaError
from kappamq.message import MessageQueue

log = logging.getLogger(__name__)

Record = Callable[[str, Any], int]
QUEUES_PER_RECORD = 1000


@dataclass(slots=True)
class Lease:
    client_id: str
    renewed: float
    safe: int = 0  # log offset up to which the log must be safe before its owner may rely on it


class Held(NamedTuple):
    """What a request for locks came to."""

    queues: set[MessageQueue]  # that the client holds now
    safe: int = 0  # log offset up to which the log must be safe before somebody may rely on it; 0: nothing is new


class QueueLocks:
    file = "kappamq.locks.json"
    kinds = ("lock", "unlock", "lock-expired")

    def __init__(self, broker_name: str, lease_s: float, record: Record) -> None:
        self._broker_name = broker_name
        self._record = record
        self.lease_s = lease_s
        self._groups: dict[str, dict[MessageQueue, Lease]] = {}
        self._now = 0.0  # when this table was last known to be right: the time of locks that come from the log
        self.dirty = False
        self.safe_up_to = 0  # the log is known to be safe up to here

    # -- changing ----------------------------------------------------------------------------------------------------------

    def lock(self, group: str, client_id: str, queues: set[MessageQueue], now: float) -> Held:
        """Take or renew the locks that are free or ours. Raises KappaError if nothing of it can be recorded."""
        leases = self._groups.setdefault(group, {})
        held: set[MessageQueue] = set()
        taken: list[MessageQueue] = []
        safe = 0
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                lease.renewed = now
                held.add(queue)
                if lease.safe > self.safe_up_to:
                    safe = max(safe, lease.safe)  # the answer to its first request is still waiting, too
            elif lease is None or now - lease.renewed > self.lease_s:
                taken.append(queue)
        try:
            for at in range(0, len(taken), QUEUES_PER_RECORD):
                part = taken[at : at + QUEUES_PER_RECORD]
                safe = self._record("lock", [group, client_id, _by_topic(part)])
                leases.update((queue, Lease(client_id, now, safe)) for queue in part)
                held.update(part)
                self.dirty = True
        except KappaError as error:
            if not held:
                raise
            log.info("%s gets fewer locks than it could: %s", client_id, error)
        finally:
            if not leases:
                del self._groups[group]
        return Held(held, safe)

    def unlock(self, group: str, client_id: str, queues: set[MessageQueue]) -> None:
        """Give locks back; somebody else's stay."""
        leases = self._groups.get(group, {})
        given = [queue for queue in queues if queue in leases and leases[queue].client_id == client_id]
        if given:
            for at in range(0, len(given), QUEUES_PER_RECORD):
                self._note("unlock", [group, client_id, _by_topic(given[at : at + QUEUES_PER_RECORD])])
            self._drop(group, given)

    def expire(self, now: float) -> None:
        """Forget what nobody renews."""
        for group, leases in list(self._groups.items()):
            over = [queue for queue, lease in leases.items() if now - lease.renewed > self.lease_s]
            if over:
                for at in range(0, len(over), QUEUES_PER_RECORD):
                    self._note("lock-expired", [group, _by_topic(over[at : at + QUEUES_PER_RECORD])])
                self._drop(group, over)

    def renew_all(self, now: float) -> None:
        """We begin to serve: what the log says of locks holds for a whole lease from now on."""
        self._now = now
        for leases in self._groups.values():
            for lease in leases.values():
                lease.renewed = now

    def _note(self, kind: str, change: Any) -> None:
        """Record that a lock is free. What is not recorded (the disk is full) stays locked for a lease after a restart."""
        try:
            self._record(kind, change)
        except KappaError as error:
            log.info("not recorded: %s", error)

    def _drop(self, group: str, queues: Iterable[MessageQueue]) -> None:
        leases = self._groups.get(group)
        if leases is not None:
            for queue in queues:
                leases.pop(queue, None)
            if not leases:
                del self._groups[group]
            self.dirty = True

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
        rows: dict[tuple[str, str], list[MessageQueue]] = {}
        for group, leases in self._groups.items():
            for queue, lease in leases.items():
                rows.setdefault((group, lease.client_id), []).append(queue)
        return {
            "locks": [
                {"group": group, "clientId": client_id, "queues": _by_topic(queues)}
                for (group, client_id), queues in rows.items()
            ]
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        for row in table.get("locks") or []:
            self.apply("lock", [row["group"], row["clientId"], row["queues"]])

    def apply(self, kind: str, change: Any) -> None:
        group, queues = str(change[0]), self._queues(change[-1])
        if kind == "lock":
            leases = self._groups.setdefault(group, {})
            leases.update((queue, Lease(str(change[1]), self._now)) for queue in queues)
        elif kind == "unlock":
            leases = self._groups.get(group, {})
            client_id = str(change[1])
            self._drop(group, [queue for queue in queues if queue in leases and leases[queue].client_id == client_id])
        else:
            self._drop(group, queues)

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

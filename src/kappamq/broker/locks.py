"""Queue locks for ordered consumption: one owner per (group, queue), on a lease. Pure: told the time."""

from __future__ import annotations

from dataclasses import dataclass

from kappamq.message import MessageQueue


@dataclass(slots=True)
class Lease:
    client_id: str
    renewed: float


class QueueLocks:
    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._groups: dict[str, dict[MessageQueue, Lease]] = {}

    def lock(self, group: str, client_id: str, queues: set[MessageQueue], now: float) -> set[MessageQueue]:
        """Take or renew the locks that are free or ours; returns those we hold now."""
        leases = self._groups.setdefault(group, {})
        held: set[MessageQueue] = set()
        for queue in queues:
            lease = leases.get(queue)
            if lease is None or lease.client_id == client_id or now - lease.renewed > self._lease_s:
                leases[queue] = Lease(client_id, now)
                held.add(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: set[MessageQueue]) -> None:
        """Give locks back; somebody else's stay."""
        leases = self._groups.get(group, {})
        for queue in queues:
            lease = leases.get(queue)
            if lease is not None and lease.client_id == client_id:
                del leases[queue]

    def owner(self, group: str, queue: MessageQueue, now: float) -> str | None:
        lease = self._groups.get(group, {}).get(queue)
        return lease.client_id if lease is not None and now - lease.renewed <= self._lease_s else None

    def any_held(self, group: str, now: float) -> bool:
        return any(now - lease.renewed <= self._lease_s for lease in self._groups.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Forget what nobody renews."""
        for group, leases in list(self._groups.items()):
            for queue in [queue for queue, lease in leases.items() if now - lease.renewed > self._lease_s]:
                del leases[queue]
            if not leases:
                del self._groups[group]

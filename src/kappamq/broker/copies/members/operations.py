"""Operators' requests to a Raft group: change the leader, show the members."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kappamq.broker.copies.members.group import Group
from kappamq.broker.sending.gate import not_master
from kappamq.clock import Clock
from kappamq.errors import IllegalOperation, RequestTimeout
from kappamq.protocol.bodies.copies import LeaderNow
from kappamq.raft import Refused
from kappamq.store.message_store import MessageStore

TRANSFER_S: Final = 3.0
_LOOK_S: Final = 0.05


class GroupOperations:
    def __init__(self, group: Group, store: MessageStore, clock: Clock) -> None:
        self._group = group
        self._store = store
        self._clock = clock

    async def transfer(self, name: str | None) -> LeaderNow:
        """Make another member the leader; returns when it leads, and which one that is. Raises IllegalOperation, or RequestTimeout if it
        did not happen."""
        group, node = self._group, self._group.node
        if node is None or node.leadership is None:
            raise not_master(group.client_address(node.leader if node is not None else None))
        others = {peer.member.name: peer for peer in node.leadership.peers.values()}
        if name is not None and name == group.me:
            raise IllegalOperation(
                f"{name} leads {group.config.group} already; the others are {', '.join(sorted(others))}"
            )
        if name is not None and name not in others:
            raise IllegalOperation(
                f"{name} is no member of group {group.config.group}; those that can take over are {', '.join(sorted(others))}"
            )
        target = others[name] if name is not None else max(others.values(), key=lambda peer: peer.flushed, default=None)
        if target is None:
            raise IllegalOperation(f"group {group.config.group} has no other member")
        try:
            group.event(lambda: node.transfer(target.member, group.now()))
        except Refused as error:
            raise IllegalOperation(str(error)) from None
        until = self._clock.liveness() + TRANSFER_S
        while node.leadership is not None or node.leader is None:
            if self._clock.liveness() > until:
                now = "this broker goes on" if node.leadership is not None else "and this broker does not any more"
                raise RequestTimeout(f"{target.member} is not known to lead after {TRANSFER_S:g} s, {now}")
            await asyncio.sleep(_LOOK_S)
        return LeaderNow(node.leader.name, group.client_address(node.leader) or "", node.term)

    def replicas(self) -> list[tuple[str, int, bool]]:
        """Return the other members, if this one leads: (where clients reach them, how much they have on disk, whether they are
        connected)."""
        group = self._group
        leadership = group.node.leadership if group.node is not None else None
        if leadership is None:
            return []
        connected = group.connections.connected_to()
        return [
            (group.client_address(peer.member) or peer.member.name, peer.flushed, peer.member.name in connected)
            for peer in leadership.peers.values()
        ]

    def reader(self, own_id: int) -> int:
        """Return the broker id of a member that may serve old messages for the leader: one that keeps up. 0: none."""
        group, node, lag = self._group, self._group.node, self._group.config.lag_bytes_max
        if node is None or node.leader is None:
            return 0
        if node.leadership is None:
            return own_id if node.leader.name in group.connections.connected_to() else 0
        connected = group.connections.connected_to()
        near = [
            peer.member.name
            for peer in node.leadership.peers.values()
            if peer.member.name in connected and self._store.log.end - peer.flushed <= lag
        ]
        hellos = [hello for name in near if (hello := group.connections.hello(name)) is not None]
        return min((hello.broker_id for hello in hellos if hello.broker_id), default=0)

    def leader_met(self) -> str | None:
        """Return where clients reach the leader, if that is another member, and the record of its term is confirmed here."""
        group, node = self._group, self._group.node
        if node is None or node.leadership is not None or node.leader is None:
            return None
        last = node.log.terms.last
        return group.client_address(node.leader) if last.term == node.term and last.start < group.confirmed else None

    def terms(self) -> list[tuple[int, int]]:
        """Return the terms of the log, and where each begins."""
        if self._group.node is None:
            return []
        terms = self._group.node.log.terms
        starts: dict[int, int] = {}
        for record in (terms.base, *terms.records):
            starts.setdefault(record.term, record.start)
        return list(starts.items())

    def status(self) -> dict[str, Any]:
        group, node = self._group, self._group.node
        if node is None:
            return {
                "member": group.me,
                "state": "waits for the other members",
                "connected": group.connections.connected_to(),
            }
        return {
            "member": str(node.me),
            "role": str(node.role),
            "term": node.term,
            "leader": str(node.leader or ""),
            "voters": [str(member) for member in sorted(node.members.voters)],
            "learners": [str(member) for member in sorted(node.members.learners)],
            "connected": group.connections.connected_to(),
            "end": self._store.log.end,
            "confirmed": group.confirmed,
            "stopped": group.why_stopped or "",
        }

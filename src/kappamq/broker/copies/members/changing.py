"""Changes of members by an operator, one at a time: a member is added, removed, or gets another address.

The address of a member is a record of the log, and so is the list of members; the record of the address comes first. A member is added as a
learner without a disk (incarnation 0): when it is started, it connects to the group, takes an incarnation, and replaces that entry. It
becomes a voter by itself when it has caught up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

from kappamq.broker.copies.members.group import Group
from kappamq.broker.sending.gate import not_master
from kappamq.clock import Clock
from kappamq.config.checks import address
from kappamq.errors import ConfigError, IllegalOperation, RequestTimeout
from kappamq.raft import MemberId, Node, Refused
from kappamq.raft.effects import Effect
from kappamq.state.member_places import MemberPlaces

MEMBERS_MAX: Final = 7
_CONFIRM_S: Final = 3.0
_LOOK_S: Final = 0.02
_NAME: Final = re.compile(r"[A-Za-z0-9_.]{1,64}", re.ASCII)


class MemberChanges:
    def __init__(self, group: Group, places: MemberPlaces, clock: Clock) -> None:
        self._group = group
        self._places = places
        self._clock = clock

    async def add(self, name: str, place: str | None) -> None:
        """Raise IllegalOperation, which gives the reason, or NotMaster."""
        node = self._leading()
        place = self._checked(name, place)
        if (there := node.members.named(name)) is not None:
            raise IllegalOperation(
                f"{name} is a member already ({there}); `kappamq member replace` changes its address"
            )
        if len(node.members.all) >= MEMBERS_MAX:
            raise IllegalOperation(f"a group has {MEMBERS_MAX} members at most; remove one first")
        self._demand_free(name, place, node)
        await self._change(node, lambda: node.add(MemberId(name, 0)), name, place)

    async def remove(self, name: str) -> None:
        node = self._leading()
        member = self._member(node, name)
        left = node.members.without(member).voters
        if not left:
            raise IllegalOperation(f"{name} is the last voter: without it the group cannot exist")
        await self._change(node, lambda: node.remove(member, self._group.now()), name, None)

    async def replace(self, name: str, place: str | None) -> None:
        """Change the address of a member that has moved, or lost its disk and starts again there."""
        node = self._leading()
        place = self._checked(name, place)
        member = self._member(node, name)
        if member == node.me:
            raise IllegalOperation(f"{name} is the leader, so its address is in use: transfer the leadership first")
        self._demand_free(name, place, node)
        self._tell_all_places(node)
        self._places.set(name, place)
        await self._confirmed()

    # -- checks ------------------------------------------------------------------------------------------------------------

    def _leading(self) -> Node:
        node = self._group.node
        if node is None or node.leadership is None:
            raise not_master(self._group.client_address(node.leader if node is not None else None))
        return node

    def _checked(self, name: str, place: str | None) -> str:
        if not _NAME.fullmatch(name):
            raise IllegalOperation(f"a member's id has 1 to 64 letters, digits or any of _ . ; got {name[:80]!r}")
        try:
            address("address", place or "")
        except ConfigError as error:
            raise IllegalOperation(f"{error}: where the member's copies are reached, as in dLegerPeers") from None
        assert place is not None
        return place

    def _demand_free(self, name: str, place: str, node: Node) -> None:
        for other in node.members.all:
            clients = self._group.ours().address if other == node.me else self._group.client_address(other)
            if clients == place:
                raise IllegalOperation(
                    f"{place} is where clients reach {other.name}: give the port of copies, which is that of its broker + 1"
                )
            if other.name != name and self._group.roster.place_of(other.name) == place:
                raise IllegalOperation(f"{place} is the address of {other.name}: each member needs its own")

    def _member(self, node: Node, name: str) -> MemberId:
        member = node.members.named(name)
        if member is None:
            known = ", ".join(sorted(str(member) for member in node.members.all))
            raise IllegalOperation(f"{name[:80]} is no member of group {self._group.config.group}: {known}")
        return member

    # -- the change --------------------------------------------------------------------------------------------------------

    async def _change(self, node: Node, change: Callable[[], list[Effect]], name: str, place: str | None) -> None:
        """Return when the new list is confirmed: no later leader can lose it."""
        before = self._places.place(name)
        self._tell_all_places(node)
        if place is not None:
            self._places.set(name, place)
        try:
            self._group.event(change)
        except Refused as error:
            if place is not None:
                self._places.set(name, before)
            raise IllegalOperation(str(error)) from None
        if place is None:
            self._places.set(name, None)
        await self._confirmed()

    def _tell_all_places(self, node: Node) -> None:
        """Record the founders' addresses, since members added later may not have them configured."""
        for member in sorted(node.members.all):
            self._places.set(member.name, self._group.roster.place_of(member.name))

    async def _confirmed(self) -> None:
        group, node = self._group, self._leading()
        group.event(list)  # ends the turn: what was recorded is in the log now
        end, until = node.log.end, self._clock.liveness() + _CONFIRM_S
        while group.confirmed < end:
            if node.leadership is None or self._clock.liveness() > until:
                raise RequestTimeout(
                    f"the change is recorded, but a majority has not confirmed it within {_CONFIRM_S:g} s: check the members again"
                )
            await asyncio.sleep(_LOOK_S)

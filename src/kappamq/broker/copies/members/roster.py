"""The other members and their addresses: from the log's last list, from operators' changes since, and from the founders' configuration.

A member that the group has not admitted yet has no list, and one that was away has an old one: it trusts members that connect, if they
are of its group and know a later term than its log, since the leader may be among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kappamq.config.checks import address
from kappamq.config.copies import CopiesConfig
from kappamq.errors import ConfigError
from kappamq.raft import Node
from kappamq.replication.greeting import MemberHello
from kappamq.state.member_places import MemberPlaces

_MET_MAX: Final = 16


class Roster:
    def __init__(self, config: CopiesConfig, places: MemberPlaces, node: Callable[[], Node | None]) -> None:
        """`places`: recorded addresses, which replace those of dLegerPeers. `node`: None before this member belongs to the group."""
        self._config = config
        self._places = places
        self._node = node
        # Those that are not listed and have connected: where they are, and the term they know of.
        self._met: dict[str, tuple[str, int]] = {}

    def place_of(self, name: str) -> str | None:
        """Return the address of that member's copies. Our own address comes from our own configuration."""
        ours = self._config.members.get(name)
        return ours if ours is not None and name == self._config.member else self._places.place(name) or ours

    def elsewhere(self, name: str) -> str | None:
        """Return its alternative address: our log may not yet have the record of its present one."""
        listed = self._config.members.get(name)
        return listed if listed != self.place_of(name) else None

    def others(self) -> dict[str, str]:
        """Return the other members; of a group that we have not heard from yet, those of our configuration."""
        node, me = self._node(), self._config.member
        listed = [member.name for member in node.members.all] if node is not None else []
        met = {name: place for name, (place, term) in self._met.items() if self._may_be_listed(term)}
        names = dict.fromkeys([*(listed or self._config.members), *met])
        places = {name: self.place_of(name) or met.get(name) for name in names if name != me}
        return {name: place for name, place in places.items() if place is not None}

    def knows(self, name: str) -> bool:
        return name in self.others()

    def meets(self, hello: MemberHello) -> bool:
        """Return whether a broker that connects and fits our group is one of its members."""
        if self.knows(hello.member):
            return True
        self._met = {name: known for name, known in self._met.items() if self._may_be_listed(known[1])}
        if not hello.group_id or not self._may_be_listed(hello.term) or len(self._met) >= _MET_MAX:
            return False
        try:
            address("place", hello.place)
        except ConfigError:
            return False
        self._met[hello.member] = hello.place, hello.term
        return True

    def has_left(self, name: str) -> None:
        """Its connection has ended. An unlisted member is not looked for; it is met again when it connects again."""
        self._met.pop(name, None)

    def _may_be_listed(self, term: int) -> bool:
        """Return whether a peer that knows this term may know a later list than our log has. A newcomer has none at all."""
        node = self._node()
        return node is not None and (node.me not in node.members.all or node.log.last_term < term)

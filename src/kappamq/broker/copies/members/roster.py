"""Who the other members are, and where: by the log's last list, by what operators have said since, and by what the founders were told."""

from __future__ import annotations

from collections.abc import Callable

from kappamq.config.copies import CopiesConfig
from kappamq.raft import Node
from kappamq.state.member_places import MemberPlaces


class Roster:
    def __init__(self, config: CopiesConfig, told: MemberPlaces, node: Callable[[], Node | None]) -> None:
        """`told`: addresses that are not, or no longer, those of dLegerPeers. `node`: None before this member belongs to the group."""
        self._config = config
        self._told = told
        self._node = node

    def place_of(self, name: str) -> str | None:
        """Where the copies of that member are reached. Where we are ourselves, nobody knows better."""
        ours = self._config.members.get(name)
        return ours if ours is not None and name == self._config.member else self._told.place(name) or ours

    def elsewhere(self, name: str) -> str | None:
        """Where it may be, too: the log may not have come to the record yet that says where it is now."""
        listed = self._config.members.get(name)
        return listed if listed != self.place_of(name) else None

    def others(self) -> dict[str, str]:
        """The other members; of a group that we have not heard of yet, those that we were started with."""
        node, me = self._node(), self._config.member
        listed = [member.name for member in node.members.all] if node is not None else []
        places = {name: self.place_of(name) for name in (listed or self._config.members) if name != me}
        return {name: place for name, place in places.items() if place is not None}

    def knows(self, name: str) -> bool:
        return name in self.others()

"""The connections of a member: one that it opens to each other member, and those that the others have opened to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from kappamq.broker.copies.log_throttle import LogThrottle
from kappamq.broker.copies.members.peers import Member, MemberLink, Peer
from kappamq.broker.copies.opening import NoRoom
from kappamq.replication.frames import Checksum
from kappamq.replication.greeting import MemberHello

_LINKS_MAX: Final = 64
_LINKS_EACH: Final = 2
"""Of one member: its newest ones. The one before may be of a machine that is gone, or still be closing."""


class Connections:
    def __init__(
        self,
        member: Member,
        knows: Callable[[MemberHello], bool],
        checksum: Checksum,
        elsewhere: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`elsewhere`: an alternative address of a member that cannot be reached at its recorded one."""
        self._knows = knows
        self._log_throttle = LogThrottle()
        self._elsewhere = elsewhere
        self._member = member
        self._checksum = checksum
        self._peers: dict[str, Peer] = {}
        self._links: dict[MemberLink, MemberLink] = {}  # the oldest first
        self._of: dict[str, dict[MemberLink, None]] = {}  # by member, whoever has said who it is; the oldest first
        self._hellos: dict[str, MemberHello] = {}

    def meet(self, places: Mapping[str, str]) -> None:
        """Keep a connection to each of these members from now on; the connections of all others are closed."""
        for name, peer in list(self._peers.items()):
            if places.get(name) != peer.place:
                del self._peers[name]
                peer.end()
        for name in self._of.keys() - places.keys():
            for link in list(self._of.pop(name)):
                link.close()
        for name, place in places.items():
            if name not in self._peers:
                self._peers[name] = Peer(self._member, name, place, self._checksum, self._elsewhere)

    def peer(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def connected_to(self) -> list[str]:
        """The other members that we can speak to."""
        return sorted(name for name, peer in self._peers.items() if peer.is_connected)

    def link(self) -> asyncio.Protocol:
        """Called for each incoming connection. Connections of members are never closed to make room for new ones."""
        if len(self._links) >= _LINKS_MAX:
            stranger = next((link for link in self._links if not link.is_greeted), None)
            if stranger is None:
                return NoRoom()
            self._links.pop(stranger).abort()
        made = MemberLink(self._member, self._knows, self._checksum, self._gone, self._log_throttle, self._greeted_on)
        self._links[made] = made
        return made

    def _gone(self, link: MemberLink) -> None:
        self._links.pop(link, None)
        for links in self._of.values():
            links.pop(link, None)

    def _greeted_on(self, link: MemberLink, name: str) -> None:
        """Limit the connections per name, however often a peer connects with it; each may hold a long frame."""
        links = self._of.setdefault(name, {})
        links[link] = None
        while len(links) > _LINKS_EACH:
            oldest = next(iter(links))
            self._gone(oldest)
            oldest.let_go()

    def greeted(self, hello: MemberHello) -> None:
        """A member has completed its greeting."""
        self._hellos[hello.member] = hello

    def hello(self, name: str) -> MemberHello | None:
        """That member's last greeting."""
        return self._hellos.get(name)

    def end(self) -> None:
        """Close all connections to members."""
        for peer in self._peers.values():
            peer.end()
        for link in list(self._links):
            link.abort()

    async def stop(self) -> None:
        await asyncio.gather(*(peer.stop() for peer in self._peers.values()))
        for link in list(self._links):
            link.abort()

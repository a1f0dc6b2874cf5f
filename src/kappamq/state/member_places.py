"""The addresses of a Raft group's members that an operator has changed since the group was founded: a table like the others, so that
every member gets it, even one that joins later or was away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_KIND: Final = "member-place"


class MemberPlaces:
    file = "kappamq.members.json"
    kinds = (_KIND,)

    def __init__(self, commit: Callable[[str, Any], object]) -> None:
        self._commit = commit
        self.dirty = False
        self._places: dict[str, str] = {}

    def place(self, member: str) -> str | None:
        """host:port for its copies; None: the address given when the group was founded."""
        return self._places.get(member)

    def set(self, member: str, place: str | None) -> None:
        """Set the address of a member; None: it is no longer a member."""
        if self._places.get(member) != place:
            self._commit(_KIND, {"member": member, "place": place})

    # -- the fold ----------------------------------------------------------------------------------------------------------

    def apply(self, kind: str, change: Any) -> None:
        if change["place"] is None:
            self._places.pop(str(change["member"]), None)
        else:
            self._places[str(change["member"])] = str(change["place"])
        self.dirty = True

    def reset(self) -> None:
        self._places = {}
        self.dirty = False

    def to_snapshot(self) -> dict[str, Any]:
        return {"places": dict(self._places)}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self._places = {str(member): str(place) for member, place in table.get("places", {}).items()}

"""What this node is in its group at the moment, as it is registered with name servers. Read each time, since a role can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

MASTER_ID: Final = 0


class RoleNow(Protocol):
    @property
    def broker_id(self) -> int:
        """0: the master; else the number of this slave in its group."""

    @property
    def version(self) -> int:
        """The term, by which name servers tell the newer of two masters: the state version of what is registered. 0: no elections."""

    @property
    def is_master(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FixedRole:
    """A node that is the same as long as it runs."""

    broker_id: int = MASTER_ID
    version: int = 0

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

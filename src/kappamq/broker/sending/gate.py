"""Whether the broker accepts messages at the moment, and if not, why: one place for the kernel and the slow path."""

from __future__ import annotations

from kappamq.errors import KappaError, NotMaster
from kappamq.native.interface import Kernel
from kappamq.protocol.leader_hint import with_leader

# The reasons there are.
DISK_FULL = "disk full"  # the guard says so; opens when there is space again
NO_ROOM = "no room"  # the next log file could not be made; tried again every second
FILES = "files"  # queue, index or settings files cannot be written; tried again every second
CONGESTED = "congested"  # the disk does not keep up; opens when it has caught up
FAILED = "failed"  # a write or sync of the log failed: until a restart
TRANSFERRING = "transferring"  # another member of the group is to lead; opens when it does, or when that has failed
# this node does not have the role that may write; opens when it gets it (`broker/roles.py`)
NOT_MASTER = "not the master"


def not_master(leader: str | None = None) -> NotMaster:
    """The refusal of a node that may not write. `leader`: the address of the one that may."""
    text = "this broker is not the master now: it stores no messages and changes no settings. Look up the route again and ask the master"
    return NotMaster(with_leader(text, leader))


class Gate:
    """Closed while there is any reason for it. Each reason has a name, so that it can be removed again.

    Most reasons apply to users only: the broker's own records (offsets, settings) use reserved space."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._reasons: dict[str, KappaError] = {}
        self._final: dict[str, None] = {}  # the reasons that stop the broker's own records as well, oldest first
        kernel.accepting = True

    def close(self, name: str, error: KappaError, *, for_all: bool = False) -> bool:
        """Refuse sends with `error` from now on, and with `for_all` everything else, too; True if this reason is new."""
        fresh = name not in self._reasons
        self._reasons[name] = error
        if for_all:
            self._final[name] = None
        self._kernel.accepting = False
        return fresh

    def open(self, name: str) -> bool:
        """That reason is gone; True if it was there."""
        gone = self._reasons.pop(name, None) is not None
        self._final.pop(name, None)
        self._kernel.accepting = not self._reasons
        return gone

    def check(self, *, own: bool = False) -> None:
        """Raises the reason why nothing can be stored now; for a record of the broker's `own`, only one that stops all."""
        if not self._reasons or (own and not self._final):
            return
        # A node that may not write gives no other reason: the client is to ask another node.
        name = NOT_MASTER if NOT_MASTER in self._reasons else next(iter(self._final or self._reasons))
        # The same object is raised again and again: without this its traceback would grow with every refused message.
        raise self._reasons[name].with_traceback(None)

    def has(self, name: str) -> bool:
        return name in self._reasons

    @property
    def reasons(self) -> list[str]:
        return [f"{name}: {error}" for name, error in self._reasons.items()]

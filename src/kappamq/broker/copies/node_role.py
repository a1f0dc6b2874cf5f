"""The role of this node in its group: registered with name servers, and carried out by beginning and ending the role that may write.

Beginning and ending a role takes time, decisions come at any time: one task brings the role in line with the last decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kappamq.errors import NotMaster

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class NodeRole:
    def __init__(self, slave_id: int = 0, version: int = 0) -> None:
        """`slave_id`: of this node while it is not the master; 0: it always is."""
        self._slave_id = slave_id
        self._decided = (slave_id == 0, version)  # whether this node should lead, and since which term
        self._done = self._decided
        self._leads = slave_id == 0
        self._changed = asyncio.Event()

    # -- for name servers --------------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        return 0 if self.is_master else self._slave_id

    @property
    def version(self) -> int:
        return self._decided[1]

    @property
    def is_master(self) -> bool:
        """Whether it is decided to be the master, and ready."""
        return self._leads and self._done == self._decided

    @property
    def is_held(self) -> bool:
        """Whether any part of the writing role exists; if this node must not have it any more, it ends before anything else."""
        return self._leads

    # -- decisions ---------------------------------------------------------------------------------------------------------

    def lead(self, version: int) -> None:
        self._decide(True, version)

    def follow(self, version: int) -> None:
        self._decide(False, version)

    def _decide(self, leads: bool, version: int) -> None:
        self._decided = (leads, version)
        self._changed.set()

    async def run(
        self,
        begin: Callable[[Callable[[], bool]], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        told: Callable[[], None],
    ) -> None:
        """Begin and end the role as decided, forever. A decision that was revoked and made again meanwhile is a new one: the
        role ends in between. `begin` gets a function that returns whether the decision still holds, and raises NotMaster if not. `told`
        is called after each change, to inform name servers."""
        while True:
            self._changed.clear()
            while self._done != self._decided:
                decided = self._decided
                try:
                    if self._leads:
                        await end()
                        self._leads = False  # not before: a failed attempt is repeated
                    if decided[0] and decided == self._decided:
                        await begin(lambda decided=decided: decided == self._decided)  # type: ignore[misc]
                        self._leads = True
                    self._done = decided
                    told()
                except NotMaster:
                    continue  # another decision came while the role began
                except Exception:
                    self._leads = True  # or a part of it, which has to end
                    log.exception("could not change the role of this node, retrying")
                    await asyncio.sleep(_AGAIN_S)
            await self._changed.wait()

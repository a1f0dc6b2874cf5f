"""Shared by all servers on one event loop: the turn budget, the worker thread, and the loop monitor.

`kappamq up` runs a name server and a broker on one loop, so a turn is the same for both.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Self

from kappamq.net.requests.beside import Beside
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.requests.loop_watch import LoopWatch


class LoopShare:
    """For one loop. Each server calls `start` and `stop` once; the last one to stop ends it."""

    _of_loops: ClassVar[dict[asyncio.AbstractEventLoop, LoopShare]] = {}

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.turns = FairTurns()
        self.beside = Beside(self.turns)
        self.watch = LoopWatch()
        self._users = 0

    @classmethod
    def of_this_loop(cls) -> Self:
        # A share references its loop, so a share that no server started and stopped is dropped once its loop is closed.
        for closed in [loop for loop in cls._of_loops if loop.is_closed()]:
            del cls._of_loops[closed]
        loop = asyncio.get_running_loop()
        share = cls._of_loops.get(loop)
        if share is None:
            share = cls._of_loops[loop] = cls()
        assert isinstance(share, cls)
        return share

    def start(self) -> None:
        self._users += 1
        self._of_loops.setdefault(self._loop, self)
        if self._users == 1:
            self.beside.open()
            self.watch.start()

    def stop(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.watch.stop()
            self.beside.close()
            self._of_loops.pop(self._loop, None)

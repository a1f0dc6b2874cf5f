"""What all servers on one event loop share: its turns, the thread beside it, and the watch over it.

`kappamq up` runs a name server and a broker on one loop. A turn is one turn for both of them.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Self

from kappamq.net.requests.beside import Beside
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.requests.loop_watch import LoopWatch


class LoopShare:
    """Of one loop. `start` and `stop` are called once by each server; the last one to stop ends it."""

    _of_loops: ClassVar[dict[asyncio.AbstractEventLoop, LoopShare]] = {}

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.turns = FairTurns()
        self.beside = Beside(self.turns)
        self.watch = LoopWatch()
        self._users = 0

    @classmethod
    def of_this_loop(cls) -> Self:
        # A share knows its loop, so the table keeps both: what no server has started and stopped goes when its loop is closed.
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

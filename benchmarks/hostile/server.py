"""`python -m benchmarks.hostile.server FILE broker ...`: the program with a probe in its loop.

The probe looks a thousand times a second how much CPU the loop's thread has used since the last look. As no turn is longer than
the time between two looks, the largest of these figures is an upper bound of what one turn has used. It also counts by how many
milliseconds each look came late: so long would a request have waited that came in this moment. Other than what a client measures, that
does not depend on the network and on who else uses the client's core. Both stand in FILE; who writes zeros there begins anew.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from kappamq import event_loop

LOOK_S = 0.001
BUCKETS = 2000
_DOUBLE = struct.Struct("d")
_COUNTS = struct.Struct(f"{BUCKETS}I")


class Probe:
    """Numbers in a file that two processes see."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(_DOUBLE.size + _COUNTS.size)
            self._map = mmap.mmap(file.fileno(), _DOUBLE.size + _COUNTS.size)
        self._late = memoryview(self._map)[_DOUBLE.size :].cast("I")

    @property
    def longest_s(self) -> float:
        return float(_DOUBLE.unpack_from(self._map)[0])

    @longest_s.setter
    def longest_s(self, seconds: float) -> None:
        _DOUBLE.pack_into(self._map, 0, seconds)

    def begin_anew(self) -> None:
        self.longest_s = 0.0
        for bucket in range(BUCKETS):
            self._late[bucket] = 0

    def late_ms(self, part: float) -> float:
        """So many milliseconds at most did this part of the looks come late."""
        counts = list(self._late)
        wanted = sum(counts) * part
        passed = 0
        for milliseconds, count in enumerate(counts):
            passed += count
            if count and passed >= wanted:
                return float(milliseconds)
        return 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        before, due = time.thread_time(), loop.time() + LOOK_S

        def look() -> None:
            nonlocal before, due
            now = time.thread_time()
            if now - before > self.longest_s:
                self.longest_s = now - before
            # All the looks that were missed meanwhile: requests that came then have waited, too.
            late = int((loop.time() - due) * 1000)
            for milliseconds in range(late + 1):
                self._late[min(milliseconds, BUCKETS - 1)] += 1
            before, due = now, loop.time() + LOOK_S
            loop.call_at(due, look)

        loop.call_at(due, look)


def main(arguments: list[str]) -> None:
    probe = Probe(Path(arguments[0]))
    plain_run = event_loop.run

    def run(program: Coroutine[Any, Any, Any]) -> Any:
        async def watched() -> Any:
            probe.watch(asyncio.get_running_loop())
            return await program

        return plain_run(watched())

    event_loop.run = run
    from kappamq.__main__ import main as kappamq

    sys.argv = ["kappamq", *arguments[1:]]
    kappamq()


if __name__ == "__main__":
    main(sys.argv[1:])

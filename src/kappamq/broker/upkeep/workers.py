"""The threads beside the loop: one that writes derived files, one that computes, a few that read what may not be in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_READERS = 4


class Workers:
    def __init__(self) -> None:
        # One thread for everything that writes derived files, so that these writes keep their order.
        self._writer = ThreadPoolExecutor(1, "kappamq-files")
        # One thread for pure computation: all threads share the GIL with the loop, and each more makes it wait longer.
        self._computer = ThreadPoolExecutor(1, "kappamq-compute")
        self._readers = ThreadPoolExecutor(_READERS, "kappamq-cold")

    def write(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Its turn comes after everything handed in before, awaited or not."""
        return asyncio.get_running_loop().run_in_executor(self._writer, work, *arguments)

    def compute(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """For work that takes long and does not wait for the disk, such as encoding a large answer."""
        return asyncio.get_running_loop().run_in_executor(self._computer, work, *arguments)

    def read(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def stop(self) -> None:
        """Returns when everything that was handed in is done."""
        self._readers.shutdown(wait=True)
        self._computer.shutdown(wait=True)
        self._writer.shutdown(wait=True)

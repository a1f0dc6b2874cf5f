"""Two brokers on disks in memory that may be killed, or lose power, at any moment, and start again on what their disks still hold."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import SystemClock, VirtualClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.nameserver.nameserver import NameServer
from kappamq.sim.brokers.crash_disk import CrashDisk
from tests.broker.running import Speaker, running, speaking

T = TypeVar("T")
_NOWHERE = Path("/nowhere/kappamq")


class Node:
    """A broker, and what it finds when it is started again."""

    broker: Broker
    client: Speaker

    def __init__(self, name: str, kernel: str, nameserver: str, clock: VirtualClock, patch: pytest.MonkeyPatch) -> None:
        self.name = name
        self._kernel = kernel
        self._nameserver = nameserver
        self._clock = clock
        self._patch = patch
        self._disk = CrashDisk()
        self._boots = 0
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        self._patch.setenv("KAPPAMQ_BOOT_ID", f"boot {self._boots} of {self.name}")
        self.broker = await self._stack.enter_async_context(
            running(
                _NOWHERE / self.name, self._kernel, clock=self._clock, files=self._disk, net={"idle_s": 0},
                name=self.name, nameservers=(self._nameserver,), store={"segment_bytes": 512 << 10, "message_bytes_max": 64 << 10},
            )
        )  # fmt: skip
        self.client = await self._stack.enter_async_context(speaking(self.broker))

    async def stop(self) -> None:
        await self._stack.aclose()

    def before_each_change(self, call: Callable[[], None]) -> None:
        """Called before each change on its disk, until it crashes: where it raises an OSError, the disk has failed."""
        self._disk.before_each = call

    async def crash(self, random: Random, kept: float) -> None:
        """`kept`: how likely each change that was not synced is to be there; 1 is kill -9, less is a power cut.

        The old process goes on for a moment and stops, but its disk has failed: whatever it still says must be true for the one
        that comes after it, too."""
        left = CrashDisk.holding(self._disk.after_crash(random, kept))
        self._disk.before_each = _failed
        await self._stack.aclose()
        self._stack, self._disk = AsyncExitStack(), left
        self._boots += kept < 1
        await self.start()


class TwoBrokers:
    def __init__(self, home: Path, kernel: str, patch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self._names = NameServer(
            NameServerConfig(listen_host="127.0.0.1", port=0, root=home), SystemClock(), net=NetConfig()
        )
        self.run(self._names.start())
        self.nodes = {name: Node(name, kernel, self._names.address, self.clock, patch) for name in ("a", "b")}
        for node in self.nodes.values():
            self.run(node.start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def stop(self) -> None:
        for node in self.nodes.values():
            self.run(node.stop())
        self.run(self._names.stop())
        self.loop.close()


def _failed() -> None:
    raise OSError(errno.EIO, "the machine is off")

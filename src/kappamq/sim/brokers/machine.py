"""One simulated machine: its disk, its clock, and the whole brokers that run on it, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.broker.machine import Machine as Given
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import KappaError
from kappamq.raft import MemberId
from kappamq.sim.brokers.loop import Inline, Loop
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.sim_disk import SimDisk
from kappamq.sim.brokers.streams import Listener, Streams
from kappamq.sim.brokers.virtual import WorldClock
from kappamq.sim.world import World

PORT = 10911
ROOT = Path("/data")


def host_of(name: str) -> str:
    return f"10.0.0.{ord(name) - ord('A') + 1}"


class Machine:
    def __init__(
        self, world: World, faults: Faults, streams: Streams, name: str, names: str, turned: Callable[[Machine], None]
    ) -> None:
        """`turned`: called after each turn of its loop."""
        self.world, self.faults, self.streams, self.name = world, faults, streams, name
        self.host = host_of(name)
        self.clock = WorldClock(world, faults.skews_ms.get(name, 0))
        self.disk = self._disk()
        self.loop: Loop | None = None
        self.broker: Broker | None = None
        self.boots = self.lives = 0
        self.refused: str | None = None  # why the broker did not start or has stopped
        self.is_up = False  # started, and serving
        self.me: MemberId | None = None  # the member of the group that it is
        self._members = {each: f"{host_of(each)}:{PORT + 1}" for each in names}
        self._turned = turned

    def _disk(self) -> SimDisk:
        return SimDisk(self.world, self._sync_ms)

    def _sync_ms(self) -> float:
        delay = 0.05 + self.faults.fsync_ms * self.world.dice.random()
        if not self.streams.healed and self.faults.fsync_tail and self.world.happens(self.faults.fsync_tail):
            delay *= 50
        return delay

    # -- lives -------------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.loop is not None and self.loop.alive

    def start(self) -> None:
        self.lives += 1
        self.refused, self.is_up = None, False
        self.streams.down.discard(self.host)
        loop = self.loop = Loop(self.world, self.streams, self.host, lambda: self._turned(self), self.faults.work_ms)  # type: ignore[abstract]
        self.disk.loop = loop
        self.broker = None
        loop.run(lambda: loop.create_task(self._live()))

    async def _opened(self) -> Broker:
        return await Broker.open(
            BrokerConfig(name="g", port=PORT, listen_host=self.host, queue_lock_ms=self.faults.lock_ms),
            StoreConfig(
                root=ROOT, segment_bytes=self.faults.segment_bytes, queue_file_entries=64, index_slots=101, index_entries=200,
                timer_file_bytes=16 << 10, message_bytes_max=16 << 10, scrub_enabled=False, retention_hours=0,
                clean_interval_ms=self.faults.clean_ms, queue_sync_interval_ms=self.faults.sync_queues_ms,
                delete_hours=tuple(range(24)), sync_flush_timeout_ms=2000,
            ),
            NetConfig(),
            self.clock,
            kernel=self.faults.kernel,
            files=self.disk,
            copies=CopiesConfig(
                group="g", members=self._members, member=self.name, append_bytes_max=self.faults.append_bytes_max
            ),
            machine=Given(bind_ports=self._bind, new_thread=lambda name: Inline(), boot_id=lambda: f"boot {self.boots}"),
        )  # fmt: skip

    def _bind(self, host: str, port: int, backlog: int, copies: int) -> list[Any]:
        assert self.loop is not None
        return [Listener(self.streams, self.loop, host, place) for place in (port, port - 2, copies or port + 1)]

    async def _live(self) -> None:
        try:
            broker = self.broker = await self._opened()
            await broker.start()
            self.is_up = True
            await broker.unfit()
            self.is_up = False
            await broker.stop()
            self.refused = "asks to be started again"
        except KappaError as error:
            self.refused = f"{type(error).__name__}: {error}"

    async def stop(self) -> None:
        """Stop the broker as an operator does."""
        if self.broker is not None and self.is_up:
            self.is_up = False
            await self.broker.stop()
            self.refused = "was stopped"

    def kill(self, *, power: bool) -> None:
        """End the process at once; with `power` the machine is switched off, and data that was not synced may be lost."""
        if not self.alive:
            return
        assert self.loop is not None
        self._end(self.found(power=power), power=power)

    def found(self, *, power: bool) -> SimDisk:
        """The disk as it would be found after a crash at this moment."""
        kept = self.world.dice.choice((0.0, 0.1, 0.5, 0.9, 1.0)) if power else 1.0
        disk = self._disk()
        self.disk.after_crash(self.world.dice, kept, disk)
        disk.full = self.disk.full
        return disk

    def _end(self, disk: SimDisk, *, power: bool) -> None:
        assert self.loop is not None
        self.is_up = False
        sides = list(self.loop.sides)
        old = self.disk
        self.loop.kill()
        old.call_before_each()
        self.disk = disk
        for place in [place for place in self.streams.listeners if place[0] == self.host]:
            del self.streams.listeners[place]
        if power:
            self.boots += 1
            self.streams.down.add(self.host)
        else:
            for side in sides:
                side.lose()

    def kill_within(self, operations: int, *, power: bool) -> None:
        """Kill it after so many more disk operations, in the middle of what it does."""
        disk, left = self.disk, operations

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                disk.call_before_each()
                found = self.found(power=power)
                # The running coroutine is finished first, on a disk that is never looked at again.
                assert self.loop is not None
                self.loop.alive = False
                self.loop.streams.down.add(self.host)
                self.world.after(0.0, self._ended, self.loop, found, power)

        disk.call_before_each(count)

    def _ended(self, loop: Loop, found: SimDisk, power: bool) -> None:
        if self.loop is loop:
            self.streams.down.discard(self.host)
            self._end(found, power=power)

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        assert not self.alive
        self.disk, self.me = self._disk(), None

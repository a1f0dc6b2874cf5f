"""Brokers whose message time stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.protocol.record import Record
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async

START_MS = 1_700_000_000_000


AT_ONCE = " ".join(["0s"] * 18)
"""Delay levels that delay nothing: what is parked is delivered as soon as the loop gets to it."""


async def settled(broker: Broker) -> None:
    """Everything that is due by now has happened, and can be seen."""
    agenda = broker.agenda
    agenda.wake()

    def is_quiet() -> bool:
        due = agenda.next_ms()
        if broker.store.dispatched.offset != broker.kernel.append_offset:
            return False
        return not agenda.is_working and (due is None or due > broker.clock.message_ms())

    await eventually_async(is_quiet, pause=0.0005, text="the agenda has nothing to do")


class Timed:
    """A broker, somebody who talks to it, and its clock."""

    def __init__(self, broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        self.broker = broker
        self.client = client
        self.clock = clock

    async def pass_ms(self, ms: int) -> None:
        """Let message time pass; returns when everything that is due then has happened."""
        self.clock.advance(ms=ms)
        await self.settle()

    async def settle(self) -> None:
        await settled(self.broker)

    async def send(self, body: bytes, topic: str = "tea", queue_id: int = 0, key: str = "", **pairs: Any) -> None:
        named = {"UNIQ_KEY": key or f"U{body.hex()}"} | {name: str(value) for name, value in pairs.items()}
        text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
        answer = await self.client.send(topic, body, queue_id, text)
        assert answer.code == 0, (answer.code, answer.remark)

    async def bodies(self, topic: str = "tea", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in await self.read(topic, queue_id)]

    async def read(self, topic: str = "tea", queue_id: int = 0) -> list[Record]:
        if self.broker.kernel.queue_state(topic, queue_id)[1] == 0:
            return []
        return await self.client.read(topic, queue_id)


@asynccontextmanager
async def timed(
    root: Path, mode: str = "twin", *, clock: VirtualClock | None = None, **options: Any
) -> AsyncIterator[Timed]:
    clock = clock or VirtualClock(message_ms=START_MS)
    async with running(root, mode, clock=clock, **options) as broker, speaking(broker) as client:
        yield Timed(broker, client, clock)

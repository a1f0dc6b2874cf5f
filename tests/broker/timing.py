"""Brokers whose message time stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.protocol.headers.client import RecallMessage
from kappamq.protocol.recall import RecallHandle
from kappamq.protocol.records.record import Record
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async

START_MS = 1_700_000_000_000


class MessageClock(VirtualClock):
    """Message time stands still until a test moves it; connections live on as ever."""

    __slots__ = ()

    def __init__(self, message_ms: int = START_MS) -> None:
        super().__init__(message_ms=message_ms)

    def liveness(self) -> float:
        return time.monotonic()


AT_ONCE = " ".join(["0s"] * 18)
"""Delay levels that delay nothing: what is parked is delivered as soon as the loop gets to it."""


async def settled(broker: Broker) -> None:
    """Everything that is due by now has happened, and can be seen."""
    agenda = broker.delivery.agenda
    agenda.wake()

    def is_quiet() -> bool:
        due = agenda.next_ms()
        if broker.store.marks.dispatched.offset != broker.kernel.append_offset:
            return False
        return not agenda.is_working and (due is None or due > broker.clock.message_ms())

    await eventually_async(is_quiet, pause=0.0005, text="the agenda has nothing to do")


class Timed:
    """A broker, somebody who talks to it, and its clock."""

    def __init__(self, broker: Broker, client: Speaker, clock: MessageClock) -> None:
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

    async def recall(self, handle: RecallHandle) -> None:
        answer = await self.client.ask(RecallMessage(topic=handle.topic, recall_handle=handle.encode()))
        assert answer.code == 0, (answer.code, answer.remark)

    async def bodies(self, topic: str = "tea", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in await self.read(topic, queue_id)]

    async def read(self, topic: str = "tea", queue_id: int = 0) -> list[Record]:
        low, end, _next, _stored = self.broker.kernel.queue_state(topic, queue_id)
        return await self.client.read(topic, queue_id, low) if end else []


@asynccontextmanager
async def timed(
    root: Path, mode: str = "twin", *, clock: MessageClock | None = None, **options: Any
) -> AsyncIterator[Timed]:
    clock = clock or MessageClock()
    options["store"] = {"sync_flush_timeout_ms": 60_000} | options.get("store", {})  # the disk may be busy with others
    async with running(root, mode, clock=clock, **options) as broker, speaking(broker) as client:
        yield Timed(broker, client, clock)

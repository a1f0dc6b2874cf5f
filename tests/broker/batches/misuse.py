"""Speaks the requests of batch transactions to a broker, one word each; for tests."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.batches import BatchOutcome, ChunkList
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import (
    AbortBatch,
    AbortBatchResponse,
    AwaitBatch,
    BeginBatch,
    BeginBatchResponse,
    DecideBatch,
    OpenScope,
    StageChunk,
    StageChunkResponse,
)
from kappamq.protocol.records import batch
from tests.broker.operating import ok
from tests.broker.running import Speaker
from tests.waiting import eventually_async

Chunk = list[int]  # place, CRC


def encoded(*bodies: bytes, properties: str = "") -> bytes:
    return batch.encode([batch.Member(body, properties) for body in bodies])


def stage_header(body: bytes, rows: int, transaction: str, **changes: Any) -> StageChunk:
    values: dict[str, Any] = {
        "topic": "t", "queue_id": 0, "scope": "s", "owner": "o", "number": 0, "transaction": transaction, "partition": 0,
        "attempt": 0, "sequence": 0, "rows": rows, "crc": zlib.crc32(body), "born_ms": 1_700_000_000_000,
    }  # fmt: skip
    return StageChunk(**(values | changes))


def decide_header(transaction: str, rows: int, **changes: Any) -> DecideBatch:
    values: dict[str, Any] = {
        "scope": "s",
        "owner": "o",
        "number": 0,
        "transaction": transaction,
        "rows": rows,
        "checksum": 0,
    }
    return DecideBatch(**(values | changes))


class Batching:
    """The client of one scope whose coordinator is this broker."""

    def __init__(self, client: Speaker, broker: str = "b", scope: str = "s", owner: str = "o") -> None:
        self.client = client
        self.broker = broker
        self.scope = scope
        self.owner = owner

    @property
    def _mine(self) -> dict[str, str]:
        return {"scope": self.scope, "owner": self.owner}

    async def open(self, client: Speaker | None = None) -> None:
        await ok(client or self.client, OpenScope(coordinator=self.broker, **self._mine))

    async def begin(self, number: int = 0) -> str:
        answer = await ok(self.client, BeginBatch(number=number, **self._mine))
        return BeginBatchResponse.decode(answer.ext).transaction or ""

    async def stage(
        self,
        transaction: str,
        bodies: Sequence[bytes],
        number: int = 0,
        client: Speaker | None = None,
        properties: str = "",
        **changes: Any,
    ) -> Chunk:
        body = encoded(*bodies, properties=properties)
        header = stage_header(body, len(bodies), transaction, number=number, **(self._mine | changes))
        answer = await ok(client or self.client, header, body)
        return [StageChunkResponse.decode(answer.ext).place, zlib.crc32(body)]

    async def try_decide(
        self, transaction: str, rows: int, chunks: dict[str, list[Chunk]], number: int = 0, **changes: Any
    ) -> Frame:
        header = decide_header(transaction, rows, number=number, **(self._mine | changes))
        return await self.client.ask(header, ChunkList(chunks).encode())

    async def decide(
        self, transaction: str, rows: int, chunks: dict[str, list[Chunk]], number: int = 0
    ) -> BatchOutcome:
        answer = await self.try_decide(transaction, rows, chunks, number)
        assert answer.code == 0, (answer.code, answer.remark)
        return BatchOutcome.decode(answer.body)

    async def abort(self, transaction: str, number: int = 0) -> bool:
        answer = await ok(self.client, AbortBatch(number=number, transaction=transaction, **self._mine))
        return AbortBatchResponse.decode(answer.ext).decided

    async def published(self, number: int = 0, wait_ms: int = 10_000) -> BatchOutcome:
        answer = await ok(self.client, AwaitBatch(number=number, wait_ms=wait_ms, **self._mine))
        return BatchOutcome.decode(answer.body)


async def bodies(client: Speaker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await client.read(topic, queue_id)]


async def nothing_staged(*brokers: Broker, ask: bool = True) -> None:
    """Whatever is left over is asked about and goes."""
    for broker in brokers:
        for scope in {one.scope for one in broker.delivery_tables.staged.table.values()} if ask else ():
            broker.delivery.batches.participant.settle(scope)
    await eventually_async(
        lambda: not any(broker.delivery_tables.staged.table for broker in brokers), text="nothing is staged"
    )
    assert not any(broker.delivery_tables.staged.bytes for broker in brokers)

"""Speaks the requests of batch transactions to one broker."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from kappamq.protocol.bodies.batches import BatchOutcome, ChunkList, ScopeList, ScopeState
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import (
    AbortBatch,
    AwaitBatch,
    BeginBatch,
    BeginBatchResponse,
    DecideBatch,
    OpenScope,
    QueryScopes,
    StageChunk,
)
from kappamq.protocol.records import batch
from tests.broker.operating import ok
from tests.broker.running import Speaker


def body_of(*bodies: bytes, properties: str = "") -> bytes:
    return batch.encode(batch.Member(body, properties) for body in bodies)


@dataclass
class Batcher:
    client: Speaker
    scope: str = "s"
    owner: str = "me"
    coordinator: str = "b"

    async def open(self) -> Frame:
        return await ok(self.client, OpenScope(scope=self.scope, owner=self.owner, coordinator=self.coordinator))

    async def begin(self, number: int) -> str | None:
        answer = await ok(self.client, BeginBatch(scope=self.scope, owner=self.owner, number=number))
        return BeginBatchResponse.decode(answer.ext).transaction

    def chunk(
        self, number: int, transaction: str, body: bytes, rows: int, topic: str = "t", queue_id: int = 0
    ) -> StageChunk:
        return StageChunk(
            topic=topic, queue_id=queue_id, scope=self.scope, owner=self.owner, number=number, transaction=transaction, partition=0,
            attempt=0, sequence=0, rows=rows, crc=zlib.crc32(body), born_ms=1_700_000_000_000,
        )  # fmt: skip

    async def stage(
        self, number: int, transaction: str, *bodies: bytes, topic: str = "t", queue_id: int = 0
    ) -> list[int]:
        """Returns what the decision lists: the place and the CRC."""
        body = body_of(*bodies)
        answer = await ok(self.client, self.chunk(number, transaction, body, len(bodies), topic, queue_id), body)
        return [int(answer.ext["place"]), zlib.crc32(body)]

    def decision(self, number: int, transaction: str, rows: int, checksum: int = 0) -> DecideBatch:
        return DecideBatch(
            scope=self.scope, owner=self.owner, number=number, transaction=transaction, rows=rows, checksum=checksum
        )

    async def decide(
        self, number: int, transaction: str, rows: int, *chunks: list[int], checksum: int = 0
    ) -> BatchOutcome:
        body = ChunkList({self.coordinator: list(chunks)}).encode()
        return BatchOutcome.decode(
            (await ok(self.client, self.decision(number, transaction, rows, checksum), body)).body
        )

    async def published(self, number: int) -> BatchOutcome:
        header = AwaitBatch(scope=self.scope, owner=self.owner, number=number, wait_ms=20_000)
        return BatchOutcome.decode((await ok(self.client, header)).body)

    async def abort(self, number: int, transaction: str) -> bool:
        header = AbortBatch(scope=self.scope, owner=self.owner, number=number, transaction=transaction)
        return (await ok(self.client, header)).ext["decided"] == "true"

    async def state(self) -> ScopeState:
        (found,) = ScopeList.decode((await ok(self.client, QueryScopes(scope=self.scope))).body).scopes
        return found

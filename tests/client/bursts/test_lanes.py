"""How much leaves in one request; more in test_sends.py."""

from __future__ import annotations

import asyncio

from kappamq.client.bursts.lanes import BURST_BYTES_MAX, BURST_COUNT_MAX
from kappamq.client.producer.producer import AsyncProducer
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.records import batch
from tests.client.fake import fake_cluster
from tests.client.loop import on_loop

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


@on_loop
async def test_a_request_has_so_many_messages_and_bytes_at_most() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(compress_over_bytes=10_000)) as producer:
        await producer.send(Message("tea", b"warm"))
        small = [producer.send_nowait(Message("tea", b"x")) for _ in range(BURST_COUNT_MAX + 10)]
        large = [producer.send_nowait(Message("tea", b"x" * 5000)) for _ in range(100)]
        await asyncio.gather(*small, *large)
        frames = cluster.broker.seen(BATCH)
        assert max(len(batch.split(frame.body)) for frame in frames) == BURST_COUNT_MAX
        assert all(len(frame.body) <= BURST_BYTES_MAX for frame in frames)
        assert len(frames) < 8


@on_loop
async def test_batches_shrink_for_a_broker_that_takes_only_smaller_ones() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"warm"))
        cluster.broker.script(BATCH, ResponseCode.MESSAGE_ILLEGAL)
        await asyncio.gather(*(producer.send_nowait(Message("tea", b"x" * 100)) for _ in range(20)))
        assert len(cluster.broker.stored("tea")) == 21
        await asyncio.gather(*(producer.send_nowait(Message("tea", b"y" * 100)) for _ in range(20)))
        sizes = [len(batch.split(frame.body)) for frame in cluster.broker.seen(BATCH)]
        assert sizes == [20, 10, 10]

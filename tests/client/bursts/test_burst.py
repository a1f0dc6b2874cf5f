"""One request in flight: what its answers mean for the messages in it; more in test_sends.py."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.bursts.burst import refused
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import Busy, IllegalMessage, NotConnected, NotSupported, RequestTimeout
from kappamq.message import Message, SendResult
from kappamq.protocol.codes import RequestCode, ResponseCode
from tests.client.fake import fake_cluster
from tests.client.loop import on_loop

BATCH = RequestCode.SEND_BATCH_MESSAGE


def test_what_counts_as_a_refusal_of_the_batch() -> None:
    assert refused(IllegalMessage("too large"))
    assert refused(NotSupported("what is a batch?"))
    assert not refused(Busy("later"))
    assert not refused(NotConnected("gone"))
    assert not refused(RequestTimeout("late"))


@on_loop
async def test_a_busy_broker_gets_the_whole_batch_again_or_another_broker_does() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        for queue in await producer.queues("tea"):
            await producer.send(Message("tea", b"warm"), queue=queue)
        for broker in cluster.brokers:
            broker.script(BATCH, ResponseCode.SYSTEM_BUSY)
        results = await asyncio.gather(*(producer.send_nowait(Message("tea", b"%d" % n)) for n in range(10)))
        assert all(result.ok for result in results)
        stored = [body for broker in cluster.brokers for body in broker.stored("tea")]
        assert sorted(stored) == sorted([b"warm", b"warm", *(b"%d" % n for n in range(10))])


@on_loop
async def test_an_error_of_a_whole_batch_is_told_to_each_with_its_own_id() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"warm"))
        cluster.broker.script(BATCH, *[ResponseCode.SYSTEM_BUSY] * 3)
        sent = [producer.send_nowait(Message("tea", b"%d" % n), key="k") for n in range(3)]
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, Busy) for one in done)
        assert len({id(one) for one in done}) == 3
        assert len(cluster.broker.seen(BATCH)) == 1, "a send with a key is not tried again"


@pytest.mark.parametrize("count", [2, 5])
@on_loop
async def test_an_answer_for_a_burst_gives_every_message_its_offset(count: int) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"warm"))
        results: list[SendResult] = await asyncio.gather(
            *(producer.send_nowait(Message("tea", b"x")) for _ in range(count))
        )
        assert [result.queue_offset for result in results] == list(range(1, count + 1))

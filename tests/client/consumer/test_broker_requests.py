"""What brokers ask of a consumer, over the connection it has opened."""

from __future__ import annotations

import threading
from typing import Any

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.message import RETRY, MessageQueue, ReceivedMessage
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus
from kappamq.protocol.bodies.clients import ResetOffset
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import ConsumeDirectly, GetClientStatus, GetRunningInfo, ResetClientOffset
from kappamq.protocol.headers.header import Header
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async

QUEUES = [MessageQueue("tea", "broker-0", n) for n in range(2)]


def consumer(cluster: FakeCluster, **options: object) -> AsyncConsumer:
    return AsyncConsumer(**cluster.options(group="g", topics="tea", consume_from="first", **options))


async def ask(cluster: FakeCluster, header: Header, body: bytes = b"") -> Frame:
    ((peer, _),) = cluster.broker.groups["g"].values()
    asked = request(header, body)
    peer.send(asked)
    return await eventually_async(lambda: next((a for a in peer.answers if a.opaque == asked.opaque), None))


@on_loop
async def test_running_info_shows_what_is_held_and_how_it_goes() -> None:
    release = threading.Event()

    def listen(message: ReceivedMessage) -> Any:
        if message.body == b"slow":
            release.wait(10)
        return RETRY if message.body == b"bad" else None

    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"good", b"bad", b"slow", b"waiting")
        async with consumer(cluster, listener=listen, consume_threads=1) as reader:
            await eventually_async(lambda: len(reader.inbox) == 1 and reader.positions[QUEUES[0]] == 2)
            answer = await ask(cluster, GetRunningInfo(consumer_group="g", client_id="x", stack=True))
            release.set()
        info = ConsumerRunningInfo.decode(answer.body)
        told = info.queues[QUEUES[0]]
        assert (told.commit_offset, told.cached_min_offset, told.cached_max_offset, told.cached_count) == (2, 2, 3, 2)
        assert told.last_pull_ms > 0
        assert told.last_consume_ms > 0
        assert info.statuses["tea"].consume_failed == 1
        assert info.statuses["tea"].pull_tps > 0
        assert "release.wait" in (info.stack or "")
        assert {subscription.topic for subscription in info.subscriptions} == {"tea", "%RETRY%g"}


@on_loop
async def test_the_status_is_the_offsets_of_one_topic() -> None:
    async with fake_cluster(tea=2, cake=1) as cluster, consumer(cluster) as reader:
        await reader.subscribe("cake")
        cluster.broker.put("tea", 1, b"a")
        assert await reader.poll(5)
        assert await reader.poll(0.01) is None
        answer = await ask(cluster, GetClientStatus(topic="tea", group="g"))
        assert ConsumerStatus.decode(answer.body).offsets == {QUEUES[0]: 0, QUEUES[1]: 1}


@on_loop
async def test_a_reset_moves_the_queues_named_and_is_stored() -> None:
    async with fake_cluster(tea=2) as cluster, consumer(cluster, commit_ms=60_000) as reader:
        cluster.broker.put("tea", 0, b"a", b"b", b"c")
        seen = [await reader.poll(5) for _ in range(3)]
        assert all(seen)
        await reader.commit()
        offsets = {QUEUES[0]: 1, MessageQueue("cake", "broker-0", 0): 5, MessageQueue("tea", "broker-9", 0): 5}
        header = ResetClientOffset(topic="tea", group="g", timestamp=0, force=True)
        await ask(cluster, header, ResetOffset(offsets=offsets).encode())
        await eventually_async(lambda: cluster.broker.offsets.get(("g", "tea", 0)) == 1)
        messages = [await reader.poll(5) for _ in range(2)]
        assert [message and message.body for message in messages] == [b"b", b"c"]


@on_loop
async def test_a_message_can_be_consumed_directly() -> None:
    seen = []
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("other", 0, b"try this", RETRY_TOPIC="tea")
        record = cluster.broker.log[-1]
        header = ConsumeDirectly(consumer_group="g", client_id="x", broker_name="broker-0")
        async with consumer(cluster, listener=seen.append, consume_batch=2):
            answer = await ask(cluster, header, record.encode())
            assert ConsumeDirectlyResult.decode(answer.body).result == "CR_SUCCESS"
            ((message,),) = seen
            assert (message.body, message.topic, message.queue.broker) == (b"try this", "tea", "broker-0")
            answer = await ask(cluster, header, b"not a record")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be decoded" in (answer.remark or "")
        async with consumer(cluster):
            answer = await ask(cluster, header, record.encode())
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "has no listener" in (answer.remark or "")


@on_loop
async def test_what_nobody_knows_is_said_to_be_unknown() -> None:
    async with fake_cluster(tea=1) as cluster, consumer(cluster):
        ((peer, _),) = cluster.broker.groups["g"].values()
        asked = Frame(9999, opaque=77, ext={"consumerGroup": "g"})
        peer.send(asked)
        await eventually_async(lambda: peer.answers)
        assert peer.answers[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

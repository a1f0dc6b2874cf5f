"""What lies in the queues of a topic."""

from __future__ import annotations

import asyncio
import json
import time

from kappamq.broker.broker import Broker
from kappamq.broker.upkeep.slices import QUEUES_AT_ONCE
from kappamq.protocol.bodies.admin import QueryConsumeQueueResponse, TopicStatsTable
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetTopicStats, QueryConsumeQueue
from kappamq.protocol.headers.client import HeartBeat
from kappamq.protocol.records.tags import java_hash
from tests.broker.operating import fill, make_topic, ok, on_broker, queue, refused
from tests.broker.running import Speaker
from tests.waiting import eventually_async as eventually


@on_broker()
async def test_every_queue_is_shown_empty_ones_too(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 3, write_queues=2)
    await fill(client, "t", [5, 2])
    before = time.time() * 1000
    table = TopicStatsTable.decode((await ok(client, GetTopicStats(topic="t"))).body)
    assert {key: (each.min_offset, each.max_offset) for key, each in table.offsets.items()} == {
        queue("t", 0): (0, 5),
        queue("t", 1): (0, 2),
        queue("t", 2): (0, 0),
    }
    for number in (0, 1):
        assert before - 30_000 < table.offsets[queue("t", number)].last_update_ms <= before + 1
    assert table.offsets[queue("t", 2)].last_update_ms == 0
    await refused(client, GetTopicStats(topic="nowhere"), ResponseCode.TOPIC_NOT_EXIST, "nowhere")


@on_broker()
async def test_the_answer_is_in_javas_dialect(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    body = (await ok(client, GetTopicStats(topic="t"))).body
    assert body == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}'
        b',"topicPutTps":0.0}'
    )


@on_broker()
async def test_a_thousand_queues_do_not_hold_up_others(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "wide", 1000)
    await fill(client, "wide", [1, 1])
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(somebody_else())
    table = TopicStatsTable.decode((await ok(client, GetTopicStats(topic="wide"))).body)
    task.cancel()
    assert turns > 1000 // QUEUES_AT_ONCE
    assert len(table.offsets) == 1000
    assert sum(each.max_offset for each in table.offsets.values()) == 2


@on_broker()
async def test_the_rate_of_a_topic(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [20, 20])

    async def rate() -> float:
        return TopicStatsTable.decode((await ok(client, GetTopicStats(topic="t"))).body).put_tps

    await eventually(rate)


@on_broker()
async def test_entries_as_they_lie_on_disk(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    for number in range(6):
        tag = "A" if number % 2 else "B"
        await client.send("t", b"x" * number + b"y", 1, f"UNIQ_KEY\x01U{number}\x02TAGS\x01{tag}")
    await client.subscribe("g", "t", "A", {java_hash("A")})
    header = QueryConsumeQueue(topic="t", queue_id=1, index=1, count=4, consumer_group="g")
    answer = QueryConsumeQueueResponse.decode((await ok(client, header)).body)
    assert (answer.min_index, answer.max_index, len(answer.entries)) == (0, 6, 4)
    assert [entry.matched for entry in answer.entries] == [True, False, True, False]
    assert [entry.tag_code for entry in answer.entries] == [java_hash("A"), java_hash("B")] * 2
    sizes = [entry.record_bytes for entry in answer.entries]
    assert sizes == list(range(sizes[0], sizes[0] + 4))
    assert answer.subscription is not None
    assert answer.subscription.expression == "A"

    whole = QueryConsumeQueue(topic="t", queue_id=1, index=0, count=1_000_000)
    assert len(QueryConsumeQueueResponse.decode((await ok(client, whole)).body).entries) == 6
    error = ResponseCode.SYSTEM_ERROR
    await refused(client, QueryConsumeQueue(topic="t", queue_id=1, index=6, count=1), error, "[0, 6)")
    await refused(client, QueryConsumeQueue(topic="t", queue_id=1, index=-1, count=1), error)
    await refused(client, QueryConsumeQueue(topic="t", queue_id=2, count=1), ResponseCode.INVALID_PARAMETER, "queue 2")
    await refused(client, QueryConsumeQueue(topic="nowhere", count=1), ResponseCode.TOPIC_NOT_EXIST)


@on_broker()
async def test_a_condition_is_shown_with_the_entries(broker: Broker, client: Speaker) -> None:
    await client.send("t", b"x", 1)
    wanted = SubscriptionData(topic="t", expression="n > 1", expression_type="SQL92", version=3)
    beat = HeartbeatData(client_id="c1", consumers=[ConsumerData(group="g", subscriptions=[wanted])])
    await ok(client, HeartBeat(), beat.encode())
    header = QueryConsumeQueue(topic="t", queue_id=1, index=0, count=1, consumer_group="g")
    answer = QueryConsumeQueueResponse.decode((await ok(client, header)).body)
    assert [entry.matched for entry in answer.entries] == [True], "the entry alone does not tell"
    shown = json.loads(answer.filter_data or "")
    assert (shown["expression"], shown["consumerGroup"], shown["deadTime"]) == ("n > 1", "g", 0)

"""How far consumer groups have come."""

from __future__ import annotations

import re

from kappamq.broker.admin import progress
from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.admin import (
    ConsumerOffsets,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
)  # fmt: skip
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import (
    GetAllConsumerOffsets,
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
)  # fmt: skip
from kappamq.protocol.headers.client import UpdateConsumerOffset
from tests.broker.operating import beat, fill, make_groups, make_topic, ok, on_broker, queue, refused
from tests.broker.running import Speaker
from tests.waiting import eventually_async as eventually


async def commit(client: Speaker, group: str, topic: str, offsets: list[int]) -> None:
    await make_groups(client, group)
    for queue_id, offset in enumerate(offsets):
        await ok(
            client, UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        )


@on_broker()
async def test_progress_of_a_group(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 3)
    await make_topic(client, "u", 1)
    await fill(client, "t", [5, 3])
    await fill(client, "u", [4])
    await commit(client, "g", "t", [2, 3])
    await commit(client, "g", "u", [1])
    stats = ConsumeStats.decode((await ok(client, GetConsumeStats(consumer_group="g"))).body)
    assert {key: (each.broker_offset, each.consumer_offset) for key, each in stats.offsets.items()} == {
        queue("t", 0): (5, 2),
        queue("t", 1): (3, 3),
        queue("t", 2): (0, 0),
        queue("u", 0): (4, 1),
    }
    assert stats.total_lag == 6
    # The time of the last message consumed, not of the newest one.
    record = (await client.read("t", 0))[1]
    assert stats.offsets[queue("t", 0)].last_ms == record.stored_ms
    assert stats.offsets[queue("t", 2)].last_ms == 0

    for header in (
        GetConsumeStats(consumer_group="g", topic="u"),
        GetConsumeStats(consumer_group="g", topics="u;u;nowhere"),
    ):
        some = ConsumeStats.decode((await ok(client, header)).body)
        assert some.offsets.keys() == {queue("u", 0)}
    nobody = ConsumeStats.decode((await ok(client, GetConsumeStats(consumer_group="nobody"))).body)
    assert nobody.offsets == {}


@on_broker()
async def test_what_was_pulled_and_not_yet_committed_is_in_flight(broker: Broker, client: Speaker) -> None:
    """By the slow way first, then by the kernel; and back again where the group was sent back."""
    await make_topic(client, "t", 2)
    await fill(client, "t", [50, 50])
    await beat(client, "c", consumers={"g": ["t"]})
    await commit(client, "g", "t", [10, 20])

    async def in_flight() -> tuple[list[int], int]:
        stats = ConsumeStats.decode((await ok(client, GetConsumeStats(consumer_group="g", topic="t"))).body)
        all_of_them = ConsumeStatsList.decode((await ok(client, GetBrokerConsumeStats(order=False))).body)
        offsets = [stats.offsets[queue("t", number)] for number in range(2)]
        return [each.pull_offset - each.consumer_offset for each in offsets], all_of_them.total_inflight

    assert await in_flight() == ([0, 0], 0), "nobody has pulled"
    before = broker.kernel.fast_frames
    for offset in (10, 42, 50):
        await client.pull("t", offset)
    assert broker.kernel.fast_frames > before
    assert await in_flight() == ([40, 0], 40)
    await client.pull("t", 40, queue_id=1)
    assert await in_flight() == ([40, 20], 60)
    await commit(client, "g", "t", [45, 50])
    assert await in_flight() == ([5, 0], 5)
    await client.pull("t", 10)
    assert await in_flight() == ([0, 0], 0), "never less than nothing"
    broker.topics.delete("t")
    assert broker.pulls.handed_out_to("g", "t", 0) == -1


@on_broker()
async def test_topics_that_an_online_group_has_given_up_do_not_count(broker: Broker, client: Speaker) -> None:
    for topic in ("t", "old"):
        await make_topic(client, topic, 1)
        await fill(client, topic, [3])
        await commit(client, "g", topic, [1])
    await beat(client, "c", consumers={"g": ["t"]})
    stats = ConsumeStats.decode((await ok(client, GetConsumeStats(consumer_group="g"))).body)
    assert stats.offsets.keys() == {queue("t", 0)}


@on_broker()
async def test_the_rate_of_a_group(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [50])
    consumed = 0

    async def rate() -> float:
        nonlocal consumed
        consumed += 1
        await commit(client, "g", "t", [consumed])
        return ConsumeStats.decode((await ok(client, GetConsumeStats(consumer_group="g"))).body).tps

    await eventually(rate, pause=0.2)


@on_broker()
async def test_progress_of_all_groups(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await make_topic(client, "ordered", 1, order=True)
    for topic in ("t", "ordered"):
        await fill(client, topic, [4])
    await commit(client, "g", "t", [1])
    await commit(client, "g", "ordered", [2])
    await commit(client, "h", "t", [4])
    answer = ConsumeStatsList.decode((await ok(client, GetBrokerConsumeStats(order=False))).body)
    assert answer.broker_address == broker.address
    assert answer.total_lag == 5
    by_group = {group: stats for row in answer.stats for group, stats in row.items()}
    assert by_group.keys() == {"g", "h"}
    assert [each.total_lag for each in by_group["g"]] == [2, 3]
    answer = ConsumeStatsList.decode((await ok(client, GetBrokerConsumeStats(order=True))).body)
    assert (answer.total_lag, len(answer.stats)) == (2, 1)


@on_broker()
async def test_time_spans(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    await fill(client, "t", [3])
    await commit(client, "g", "t", [1])
    records = await client.read("t", 0)
    spans = ConsumeTimeSpans.decode((await ok(client, QueryConsumeTimeSpan(topic="t", group="g"))).body).spans
    first, empty = sorted(spans, key=lambda span: span.queue.queue_id if span.queue is not None else -1)
    assert (first.min_ms, first.max_ms, first.consume_ms) == (
        records[0].stored_ms,
        records[2].stored_ms,
        records[0].stored_ms,
    )
    assert 0 <= first.delay_ms < 60_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}", first.min_text or "")
    assert (empty.min_ms, empty.max_ms, empty.consume_ms, empty.delay_ms) == (-1, -1, -1, 0)
    nowhere = QueryConsumeTimeSpan(topic="nowhere", group="g")
    await refused(client, nowhere, ResponseCode.TOPIC_NOT_EXIST, "nowhere")


@on_broker()
async def test_all_offsets_as_a_slave_wants_them(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    await fill(client, "t", [3, 3])
    await commit(client, "g", "t", [1, 2])
    body = (await ok(client, GetAllConsumerOffsets())).body
    assert ConsumerOffsets.decode(body).offsets == {"t@g": {0: 1, 1: 2}}
    assert b'"t@g":{0:1,1:2}' in body


@on_broker()
async def test_the_smallest_offset_of_all_groups(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 3)
    await fill(client, "t", [9, 9, 9])
    await commit(client, "fast", "t", [8, 8, 8])
    await commit(client, "slow", "t", [3, 7])
    await commit(client, "left_out", "t", [1, 1, 1])
    await commit(client, "compared", "t", [5, 5])
    header = QueryCorrectionOffset(topic="t", compare_group="compared", filter_groups="left_out,nobody")
    found = CorrectionOffsets.decode((await ok(client, header)).body).offsets
    assert found == {0: 3, 1: 5, 2: 8}
    header = QueryCorrectionOffset(topic="t", compare_group="left_out", filter_groups="left_out")
    found = CorrectionOffsets.decode((await ok(client, header)).body).offsets
    assert found == dict.fromkeys(range(3), (1 << 63) - 1), "it is behind all others"
    assert broker.offsets.queues("left_out", "t"), "leaving out is not forgetting"


def test_a_stamp_that_no_calendar_has_is_told_as_it_is() -> None:
    assert progress._text(1 << 60) == str(1 << 60)
    assert progress._text(-(1 << 60)) == str(-(1 << 60))

"""Failed messages come again in their group's retry topic, and end among its dead letters: what copies look like, and who is
told no."""

from __future__ import annotations

from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.delivery.retry import again, group_of, tries_max
from kappamq.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatch,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kappamq.protocol.codes import VERSION, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.admin import UpdateGroup, ViewBrokerStats
from kappamq.protocol.headers.client import HeartBeat, LockQueues, SendBack, UnlockQueues
from kappamq.protocol.names import SCHEDULE_TOPIC
from kappamq.protocol.records import batch, properties
from kappamq.protocol.records.ids import parse_offset_id
from kappamq.protocol.records.record import SYS_COMPRESSED, Record
from tests.broker.operating import beat, make_topic, ok, on_broker, queue, refused, topic_header
from tests.broker.running import Speaker, appended
from tests.broker.timing import AT_ONCE, settled

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
OLD = 120  # the last version whose maxReconsumeTimes is not looked at


def back(log_offset: int, level: int = 0, **changes: Any) -> SendBack:
    values: dict[str, Any] = {"log_offset": log_offset, "group": "g", "delay_level": level, "max_reconsume_times": 16}
    return SendBack(**(values | changes))


async def stored(client: Speaker, properties_text: str | None = None, body: bytes = b"tea", **changes: Any) -> Record:
    answer = await client.send("t", body, properties=properties_text, **changes)
    assert answer.code == 0, answer.remark
    return (await client.read("t"))[-1]


async def send_back(client: Speaker, record: Record, level: int = 0, **changes: Any) -> None:
    await ok(client, back(record.log_offset, level, **changes))


async def waiting(broker: Broker, client: Speaker) -> list[Record]:
    """Copies on their way to the retry topic, wherever they wait for their time."""
    await settled(broker)
    return await client.read(RETRY)


async def group(client: Speaker, **changes: Any) -> None:
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="g", **changes).encode())


@on_broker(delay_levels=AT_ONCE)
async def test_a_copy_says_what_it_is_a_copy_of(broker: Broker, client: Speaker) -> None:
    first = await stored(client, "UNIQ_KEY\x01u1\x02TAGS\x01a\x02KEYS\x01k1 k2\x02mine\x01yes", flag=7)
    await send_back(client, first)
    (copy,) = await waiting(broker, client)
    pairs = copy.property_map()
    assert (copy.topic, copy.body, copy.flag, copy.reconsume_times) == (RETRY, b"tea", 7, 1)
    assert (copy.born_ms, copy.born_host, copy.born_port) == (first.born_ms, first.born_host, first.born_port)
    source = broker.store.decoded(copy.prepared_offset)  # it has waited for its time: a copy of a copy
    assert source is not None
    assert (source.topic, source.prepared_offset) == (SCHEDULE_TOPIC, first.log_offset), "copies name their source"
    assert {"TAGS": "a", "KEYS": "k1 k2", "mine": "yes", "UNIQ_KEY": "u1"}.items() <= pairs.items()
    assert {
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": first.offset_id,
        "WAIT": "false",
        "DELAY": "3",
    }.items() <= pairs.items()


@on_broker(delay_levels=AT_ONCE)
async def test_each_try_is_later_and_the_first_origin_stays(broker: Broker, client: Speaker) -> None:
    first = record = await stored(client)
    for number in range(1, 4):
        await send_back(client, record, origin_topic="t")
        record = (await waiting(broker, client))[-1]
        pairs = record.property_map()
        assert (record.reconsume_times, pairs["DELAY"]) == (number, str(2 + number))
        assert (pairs["RETRY_TOPIC"], pairs["ORIGIN_MESSAGE_ID"]) == ("t", first.offset_id)
    await send_back(client, record, level=17)
    assert (await waiting(broker, client))[-1].property_map()["DELAY"] == "17", "the consumer chose"


@on_broker(delay_levels=AT_ONCE)
async def test_a_compressed_body_stays_as_it_is(broker: Broker, client: Speaker) -> None:
    record = await stored(client, body=b"not really zlib", sys_flag=SYS_COMPRESSED)
    await send_back(client, record)
    (copy,) = await waiting(broker, client)
    assert (copy.body, copy.sys_flag & SYS_COMPRESSED) == (b"not really zlib", SYS_COMPRESSED)


@on_broker(delay_levels=AT_ONCE)
async def test_a_member_of_a_batch_comes_alone(broker: Broker, client: Speaker) -> None:
    members = [batch.Member(b"%d" % n, f"UNIQ_KEY\x01u{n}", 0) for n in range(3)]
    assert (await client.send_batch("t", batch.encode(members))).code == 0
    first = (await client.read("t"))[0]
    assert properties.BATCH_BYTES in first.property_map()
    await send_back(client, first)
    (copy,) = await waiting(broker, client)
    parked = broker.store.decoded(copy.prepared_offset)
    assert parked is not None
    assert (parked.body, properties.BATCH_BYTES in parked.property_map()) == (b"0", False)


@on_broker(delay_levels=AT_ONCE)
async def test_after_the_last_try_it_is_a_dead_letter(broker: Broker, client: Speaker) -> None:
    record = first = await stored(client, "UNIQ_KEY\x01u1\x02KEYS\x01k")
    for _ in range(2):
        await send_back(client, record, max_reconsume_times=2)
        record = (await waiting(broker, client))[-1]
    await send_back(client, record, max_reconsume_times=2)
    (dead,) = await client.read(DLQ)
    pairs = dead.property_map()
    assert (dead.queue_id, dead.reconsume_times, dead.body) == (0, 3, b"tea")
    assert pairs["DELAY"] == "0", "it waits for nobody"
    assert (pairs["DLQ_ORIGIN_TOPIC"], pairs["DLQ_ORIGIN_MESSAGE_ID"]) == ("t", "u1")
    assert (pairs["RETRY_TOPIC"], pairs["ORIGIN_MESSAGE_ID"], pairs["KEYS"]) == ("t", first.offset_id, "k")
    topic = broker.topics.existing(DLQ)
    assert (topic.read_queues, topic.write_queues, topic.permission) == (1, 1, 6), "can be read, as Java's"
    assert len(await waiting(broker, client)) == 2


@on_broker(delay_levels=AT_ONCE)
async def test_a_negative_level_means_dead_at_once(broker: Broker, client: Speaker) -> None:
    await send_back(client, await stored(client), level=-1)
    assert [record.reconsume_times for record in await client.read(DLQ)] == [1]
    assert await waiting(broker, client) == []


@pytest.mark.parametrize(
    ("setting", "asked", "version", "most"),
    [
        (16, None, VERSION, 16),
        (5, None, VERSION, 5),
        (5, 2, VERSION, 2),
        (5, 0, VERSION, 0),
        (5, 2, OLD, 5),
        (5, -1, VERSION, 5),  # the consumer has no opinion
        (-1, None, VERSION, None),
        (-1, 3, VERSION, 3),
    ],
)
def test_how_many_tries(setting: int, asked: int | None, version: int, most: int | None) -> None:
    assert tries_max(SubscriptionGroupConfig(name="g", retry_times_max=setting), asked, version) == most


@on_broker(delay_levels=AT_ONCE)
async def test_the_groups_own_limit_counts_where_the_consumer_names_none(broker: Broker, client: Speaker) -> None:
    await group(client, retry_times_max=1)
    record = await stored(client)
    frame = request(back(record.log_offset, max_reconsume_times=0))
    frame.version = OLD
    assert (await client.channel.request(frame)).code == 0
    again_ = (await waiting(broker, client))[-1]
    await send_back(client, again_, max_reconsume_times=None)
    assert len(await client.read(DLQ)) == 1


@on_broker(delay_levels=AT_ONCE)
async def test_a_group_without_retry_queues_wants_nothing_again(broker: Broker, client: Speaker) -> None:
    await group(client, retry_queues=0)
    record = await stored(client)
    before = appended(broker)
    await send_back(client, record)
    assert appended(broker) == before
    assert broker.topics.get(RETRY) is None


@on_broker(delay_levels=AT_ONCE)
async def test_retry_queues_share_the_copies(broker: Broker, client: Speaker) -> None:
    await group(client, retry_queues=3)
    record = await stored(client)
    for _ in range(40):
        await send_back(client, record)
    assert broker.topics.existing(RETRY).write_queues == 3
    assert [bool(await client.read(RETRY, queue_id)) for queue_id in range(3)] == [True] * 3
    await group(client, retry_queues=30)  # the topic is not made again: nothing may land where nobody looks
    for _ in range(20):
        await send_back(client, record)
    assert sum([len(await client.read(RETRY, queue_id)) for queue_id in range(3)]) == 60


@on_broker(auto_create_group=False)
async def test_an_unknown_group(broker: Broker, client: Speaker) -> None:
    answer = await client.send("t", b"tea")
    offset = parse_offset_id(answer.ext["msgId"]).log_offset
    await refused(client, back(offset), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "[g] does not exist")
    assert broker.topics.get(RETRY) is None


@on_broker(delay_levels=AT_ONCE)
async def test_a_group_with_an_impossible_name(broker: Broker, client: Speaker) -> None:
    record = await stored(client)
    for name in ("a b", "../../x", "g" * 121, ""):
        header = back(record.log_offset, group=name)
        assert (await client.ask(header)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, name
    assert not [name for name in broker.topics.table if name.startswith("%")]


@on_broker(delay_levels=AT_ONCE)
async def test_an_offset_at_which_nothing_begins(broker: Broker, client: Speaker) -> None:
    record = await stored(client)
    for offset in (-1, record.log_offset + 1, broker.kernel.append_offset, 1 << 62):
        await refused(client, back(offset), ResponseCode.SYSTEM_ERROR, "look message by offset failed", str(offset))
    await refused(
        client, back(record.log_offset, origin_topic="other"), ResponseCode.SYSTEM_ERROR, "topic t, not other"
    )
    assert broker.topics.get(RETRY) is None, "nothing was made for nothing"
    await send_back(client, record)


@on_broker(delay_levels=AT_ONCE)
async def test_what_was_never_meant_for_consumers_does_not_get_to_them(broker: Broker, client: Speaker) -> None:
    """The log also holds the broker's own records, half messages and delayed ones that are not due."""
    await stored(client)
    found = broker.store.entry("rmq_sys_kappamq_metadata", 0, 0)
    assert found is not None
    await refused(client, back(found[0]), ResponseCode.SYSTEM_ERROR, "not a message for consumers")


@on_broker(delay_levels=AT_ONCE)
async def test_a_retry_topic_that_is_closed(broker: Broker, client: Speaker) -> None:
    record = await stored(client)
    await send_back(client, record)
    await ok(client, topic_header(RETRY, 1, permission=4))
    await refused(client, back(record.log_offset), ResponseCode.NO_PERMISSION, RETRY)
    await send_back(client, record, level=-1)
    await ok(client, topic_header(DLQ, 1, permission=4))
    await refused(client, back(record.log_offset, -1), ResponseCode.NO_PERMISSION, DLQ)


@on_broker(permission=4)
async def test_a_broker_that_takes_no_messages(broker: Broker, client: Speaker) -> None:
    await refused(client, back(0), ResponseCode.NO_PERMISSION, "sending message is forbidden")


@on_broker(delay_levels=AT_ONCE)
async def test_a_heartbeat_makes_the_retry_topic(broker: Broker, client: Speaker) -> None:
    await group(client, retry_queues=2)
    await make_topic(client, "ordered", order=True)
    for name, topic, unit in (("g", "t", False), ("h", "ordered", True)):
        consumer = ConsumerData(group=name, subscriptions=[SubscriptionData(topic=topic)], unit_mode=unit)
        await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=[consumer]).encode())
    plain, other = (broker.topics.existing(f"%RETRY%{name}") for name in "gh")
    assert (plain.write_queues, plain.order, plain.sys_flag) == (2, False, 0)
    assert (other.write_queues, other.order, other.sys_flag) == (1, True, 2)


# -- the message itself is sent, as clients do when naming it did not work -------------------------------------------------


async def resend(client: Speaker, times: int, **changes: Any) -> Frame:
    text = "UNIQ_KEY\x01u\x02RETRY_TOPIC\x01t\x02ORIGIN_MESSAGE_ID\x01first"
    return await client.send(RETRY, b"tea", properties=text, reconsume_times=times, **changes)


@on_broker(delay_levels=AT_ONCE)
async def test_one_more_try_than_for_a_named_record(broker: Broker, client: Speaker) -> None:
    """A named record is counted on when it is copied, one that is sent has been counted on by its consumer."""
    await group(client, retry_times_max=3)
    for times, topic in ((0, RETRY), (3, RETRY), (4, DLQ)):
        before = len(await client.read(topic)) if broker.topics.get(topic) else 0
        assert (await resend(client, times)).code == 0
        assert [record.reconsume_times for record in (await client.read(topic))[before:]] == [times], topic
    assert (await resend(client, 4, max_reconsume_times=5)).code == 0
    assert len(await client.read(DLQ)) == 1, "the consumer's own limit goes before the group's"
    frame = request(client.send_header(RETRY, 0, "UNIQ_KEY\x01u", reconsume_times=4, max_reconsume_times=5), b"tea")
    frame.version = OLD
    assert (await client.channel.request(frame)).code == 0
    assert len(await client.read(DLQ)) == 2, "too old a client to have one"


@on_broker(delay_levels=AT_ONCE)
async def test_what_a_dead_letter_that_was_sent_tells(broker: Broker, client: Speaker) -> None:
    answer = await resend(client, 17, queue_id=0)
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    (dead,) = await client.read(DLQ)
    pairs = dead.property_map()
    assert (dead.queue_id, dead.reconsume_times, pairs["DELAY"]) == (0, 17, "0")
    assert (pairs["DLQ_ORIGIN_TOPIC"], pairs["DLQ_ORIGIN_MESSAGE_ID"]) == ("t", "u")
    assert answer.ext["msgId"] == dead.offset_id


@on_broker(delay_levels=AT_ONCE)
async def test_who_consumes_in_order_retries_nothing_later(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await beat(client, "c", consumers={"g": ["t"]})
    lock = LockBatch(consumer_group="g", client_id="c", queues={queue("t", 0)}).encode()
    assert (await resend(client, 1)).code == 0
    assert len(await client.read(RETRY)) == 1
    await ok(client, LockQueues(), lock)
    assert (await resend(client, 1)).code == 0
    assert (len(await client.read(RETRY)), len(await client.read(DLQ))) == (1, 1)
    await ok(client, UnlockQueues(), lock)
    assert (await resend(client, 1)).code == 0
    assert (len(await client.read(RETRY)), len(await client.read(DLQ))) == (2, 1)


@on_broker(delay_levels=AT_ONCE)
async def test_the_first_send_makes_the_retry_topic(broker: Broker, client: Speaker) -> None:
    await group(client, retry_queues=2)
    assert (await resend(client, 0, queue_id=-1, default_topic="none")).code == 0
    assert broker.topics.existing(RETRY).write_queues == 2


@on_broker(auto_create_group=False)
async def test_no_retry_topic_without_a_group(broker: Broker, client: Speaker) -> None:
    answer = await resend(client, 0)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "[g] does not exist" in (answer.remark or "")
    assert broker.topics.get(RETRY) is None


@on_broker(delay_levels=AT_ONCE)
async def test_a_batch_is_not_retried(broker: Broker, client: Speaker) -> None:
    await group(client)
    answer = await client.send_batch(RETRY, batch.encode([batch.Member(b"x", "UNIQ_KEY\x01u", 0)]))
    assert (answer.code, "retry group" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)


@on_broker(delay_levels=AT_ONCE)
async def test_dead_letters_are_a_topic_like_others(broker: Broker, client: Speaker) -> None:
    await send_back(client, await stored(client), level=-1)
    assert (await client.send(DLQ, b"by hand")).code == 0
    assert [record.body for record in await client.read(DLQ)] == [b"tea", b"by hand"]


@on_broker(delay_levels=AT_ONCE)
async def test_how_much_was_sent_back_is_counted(broker: Broker, client: Speaker) -> None:
    record = await stored(client)
    await send_back(client, record)
    answer = await ok(client, ViewBrokerStats(name="SNDBCK_PUT_NUMS", key="t@g"))
    assert b'"sum":1' in answer.body


@on_broker(delay_levels=AT_ONCE, store={"flush": "sync"})
async def test_an_answer_means_as_much_as_that_to_a_send(broker: Broker, client: Speaker) -> None:
    record = await stored(client)
    await send_back(client, record)
    (copy,) = await waiting(broker, client)
    assert broker.store.marks.flushed.offset >= copy.log_offset + copy.size


def test_a_copy_of_a_copy_counts_on() -> None:
    record = Record(
        topic="%RETRY%g", body=b"x", properties="RETRY_TOPIC\x01t\x02DELAY\x013\x02", reconsume_times=4, log_offset=9
    )
    draft = again(record, 0)
    assert (draft.reconsume_times, draft.properties["DELAY"], draft.source) == (5, "7", 9)
    assert draft.properties["RETRY_TOPIC"] == "t"


def test_the_group_of_a_retry_topic() -> None:
    assert group_of("%RETRY%g") == "g"
    assert group_of("%RETRY%g+t") == "g"

"""The slow path of sending: what is added, what is dropped, what is refused, and when it is answered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.sending.send import Sent
from kappamq.errors import IllegalMessage, InvalidParameter
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import SendMessage
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import MODES, Speaker, crash_copy, run, running, speaking


def long_header(**changes: Any) -> SendMessage:
    values: dict[str, Any] = {
        "producer_group": "pg", "topic": "t", "default_topic": "TBW102", "default_topic_queues": 4, "queue_id": 0, "sys_flag": 0,
        "born_ms": 1_700_000_000_000, "flag": 7, "properties": "UNIQ_KEY\x01U", "reconsume_times": 2, "unit_mode": False,
    }  # fmt: skip
    return SendMessage(**(values | changes))


@pytest.mark.parametrize("mode", MODES)
def test_both_forms_of_the_header_store_the_same(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            for _ in range(2):
                assert (await client.ask(long_header(), b"x")).code == 0
                sent = await client.send("t", b"x", properties="UNIQ_KEY\x01U", flag=7, reconsume_times=2)
                assert sent.code == 0
            records = await client.read("t")
            seen = [
                (
                    record.body,
                    record.flag,
                    record.reconsume_times,
                    record.born_ms,
                    record.property_map(),
                    record.sys_flag,
                )
                for record in records
            ]
            assert len(seen) == 4
            assert all(row == seen[0] for row in seen)
            assert seen[0][:4] == (b"x", 7, 2, 1_700_000_000_000)

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_message_without_an_id_gets_one(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            answers = [await client.send("t", b"x", properties=text) for text in ("own\x01p", "", "own\x01p\x02")]
            ids = [answer.ext["transactionId"] for answer in answers]
            assert {len(one) for one in ids} == {32}
            assert len(set(ids)) == 3
            assert [record.property_map()["UNIQ_KEY"] for record in await client.read("t")] == ids

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_what_only_a_broker_may_say_is_not_believed(tmp_path: Path, mode: str) -> None:
    claims = "REAL_TOPIC CLUSTER __BATCH# POP_CK REAL_QID MSG_REGION TRACE_ON INNER_MULTI_QUEUE_OFFSET __CRC32#".split()
    claims += ["__HALF_MS#", "__END#"]

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            text = "".join(f"{name}\x01claimed\x02" for name in claims) + "UNIQ_KEY\x01U\x02own\x01mine"
            assert (await client.send("t", b"x", properties=text)).code == 0
            assert (await client.send_batch("t", batch.encode([Member(b"x", text), Member(b"y", text)]))).code == 0
            one, *members = await client.read("t")
            assert one.property_map() == {
                "UNIQ_KEY": "U", "own": "mine", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
            }  # fmt: skip
            for member in members:
                pairs = member.property_map()
                pairs.pop("__BATCH#", None)
                assert pairs == one.property_map()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_whoever_names_no_queue_gets_one(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t", 4, write_queues=2)
            chosen = {int((await client.send("t", b"x", -1)).ext["queueId"]) for _ in range(40)}
            assert chosen == {0, 1}, "any that may be written to"
            assert (await client.send("t", b"x", 3)).code == 0, "a queue that is still read may be named"
            await make_topic(client, "closed", 4, write_queues=0)
            assert (await client.send("closed", b"x", -1)).code == ResponseCode.INVALID_PARAMETER

    run(test())


@on_broker()
async def test_a_topic_of_many_tags_marks_its_messages(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", filter_type="MULTI_TAG")
    await make_topic(client, "u")
    for topic, flag in (("t", 2), ("u", 0)):
        assert (await client.send(topic, b"x")).code == 0
        assert [record.sys_flag & 2 for record in await client.read(topic)] == [flag]


@on_broker()
async def test_what_is_not_built_yet_is_refused(broker: Broker, client: Speaker) -> None:
    for config in (
        TopicConfig("batches", 1, 1, attributes={"queue.type": "BatchCQ"}),
        TopicConfig("compact", 1, 1, attributes={"cleanup.policy": "COMPACTION"}),
    ):
        broker.topics.update(config)
        answer = await client.send(config.name, b"x")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, config.name
        assert config.name in (answer.remark or "")
        assert await client.read(config.name) == []
    await make_topic(client, "t")
    for properties, code in [
        ("UNIQ_KEY\x01U\x02INNER_NUM\x013", ResponseCode.MESSAGE_ILLEGAL),
        ("UNIQ_KEY\x01U\x02TRAN_MSG\x01false", 0),
        ("UNIQ_KEY\x01U\x02DELAY\x010", 0),
    ]:
        assert (await client.send("t", b"x", properties=properties)).code == code, properties


@on_broker(permission=4)
async def test_a_broker_that_is_not_for_writing(broker: Broker, client: Speaker) -> None:
    broker.topics.update(TopicConfig("t", 1, 1))
    for topic in ("t", "fresh"):
        assert (await client.send(topic, b"x")).code == ResponseCode.NO_PERMISSION
    assert broker.topics.get("fresh") is None


# -- without a protocol ----------------------------------------------------------------------------------------------------


def sent(body: bytes, **changes: Any) -> Sent:
    return Sent(long_header(**changes), body, bytes([10, 0, 0, 7, 0, 0, 1, 2]), 479)


@on_broker()
async def test_a_message_needs_no_frame_and_no_connection(broker: Broker, client: Speaker) -> None:
    first, second = (
        broker.delivery.sends.send(sent(b"one")),
        broker.delivery.sends.send(sent(b"two", properties="UNIQ_KEY\x01U")),
    )
    assert (first.is_fresh, second.is_fresh) == (True, False)
    assert (first.queue_offset, second.queue_offset, second.unique) == (0, 1, "U")
    await broker.delivery.appender.answerable(second.end, flushed=second.waits)
    records = await client.read("t")
    assert [(record.body, record.born_host, record.born_port) for record in records] == [
        (b"one", bytes([10, 0, 0, 7]), 258),
        (b"two", bytes([10, 0, 0, 7]), 258),
    ]
    assert [record.offset_id for record in records] == [first.ids, second.ids]
    with pytest.raises(IllegalMessage, match="the message has no body"):
        broker.delivery.sends.send(sent(b""))


@on_broker()
async def test_a_batch_needs_no_frame_and_no_connection(broker: Broker, client: Speaker) -> None:
    members = sent(batch.encode([Member(b"a", ""), Member(b"b", "WAIT\x01false")]))
    target = broker.delivery.sends.batch_target(members)
    assert (target.topic.name, target.queue_id, target.is_fresh) == ("t", 0, True)
    stored = broker.delivery.sends.append_batch(broker.delivery.sends.read_batch(members, target))
    assert (stored.queue_id, stored.queue_offset, stored.waits, stored.is_fresh) == (0, 0, False, True)
    await broker.delivery.appender.answerable(stored.end, flushed=stored.waits)
    records = await client.read("t")
    assert [record.body for record in records] == [b"a", b"b"]
    assert ",".join(record.offset_id for record in records) == stored.ids
    with pytest.raises(IllegalMessage, match="the batch is empty"):
        broker.delivery.sends.read_batch(members._replace(body=b""), target)
    broker.delivery.sends.check_again(long_header(queue_id=1))
    await make_topic(client, "t", 1)
    with pytest.raises(InvalidParameter, match=r"queueId\[1\] is illegal"):
        broker.delivery.sends.check_again(long_header(queue_id=1))  # the topic was changed while the batch was read


@pytest.mark.parametrize("mode", MODES)
def test_no_property_makes_recovery_cut_the_log(tmp_path: Path, mode: str) -> None:
    """With a tail CRC of their own making, or the mark of a batch, senders once cut off what others had sent after them."""
    forged = [
        f"{before}{name}\x01{digits}\x02"
        for before in ("", "UNIQ_KEY\x01U\x02", "x", "UNIQ_KEY\x01U\x02x")
        for name in ("__CRC32#", "__BATCH#")
        for digits in ("0123456789", "9999999999")
    ]

    async def test() -> None:
        live, photo = tmp_path / "live", tmp_path / "photo"
        async with running(live, mode, store={"tail_crc": False}) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            sent = []
            for number, text in enumerate(forged):
                for body in (b"forged %d" % number, b"after %d" % number):
                    properties = text if body.startswith(b"forged") else None
                    assert (await client.send("t", body, properties=properties)).code == 0
                    sent.append(body)
                members = [Member(b"%d %d" % (number, n), text) for n in range(2)]
                assert (await client.send_batch("t", batch.encode(members))).code == 0
                sent += [member.body for member in members]
            in_value = "UNIQ_KEY\x01U\x02a\x01__CRC32#\x010123456789\x02"
            refused = await client.send("t", b"x", properties=in_value)
            assert (refused.code, "only a broker may write" in (refused.remark or "")) == (13, True)
            assert (await client.send_batch("t", batch.encode([Member(b"x", in_value)] * 2))).code == 13
            await crash_copy(broker, photo)
        (photo / "kappamq.position").unlink(missing_ok=True)  # every record is checked
        shutil.rmtree(photo / "consumequeue", ignore_errors=True)
        async with running(photo, mode, store={"tail_crc": False}) as broker, speaking(broker) as client:
            assert [record.body for record in await client.read("t")] == sent

    run(test())

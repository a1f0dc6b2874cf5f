"""How answers of several brokers become one. That brokers find the right messages is tested with real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.errors import InvalidParameter, QueryNotFound
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import OffsetResponse, QueryMessage, QueryMessageResponse, ViewMessage
from kappamq.protocol.records.record import Record
from tests.client.fake import FakeBroker, FakeCluster, Handler, fake_cluster
from tests.client.loop import on_loop

QUERY, VIEW = RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID
FOUND = QueryMessageResponse(index_ms=0, index_log_offset=0)


def record(broker: FakeBroker, key: str, stored_ms: int, topic: str = "tea") -> Record:
    return Record(
        topic=topic,
        body=b"%d" % stored_ms,
        properties=f"KEYS\x01{key} other\x02UNIQ_KEY\x01U{stored_ms}\x02",
        stored_ms=stored_ms,
        log_offset=stored_ms * 100,
        store_host=b"\x7f\0\0\1",
        store_port=broker.port,
    )


def answer(*records: Record) -> Handler:
    body = b"".join(one.encode() for one in records)
    return lambda peer, frame: reply(frame, header=FOUND, body=body)


@on_loop
async def test_by_key_asks_every_broker_drops_strangers_and_sorts_by_age() -> None:
    async with fake_cluster(brokers=3, tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        one, two, three = cluster.brokers
        one.script(QUERY, answer(record(one, "k", 30), record(one, "same-hash", 5)))
        two.script(QUERY, answer(record(two, "k", 10), record(two, "k", 20, topic="cake")))
        three.script(QUERY, ResponseCode.QUERY_NOT_FOUND)
        found = await admin.query_by_key("tea", "k", begin=1, end=99)
        assert [message.body for message in found] == [b"10", b"30"]
        assert [message.queue.broker for message in found] == ["broker-1", "broker-0"]
        asked = QueryMessage.decode(one.seen(QUERY)[0].ext)
        assert (asked.key, asked.begin_ms, asked.end_ms, asked.count_max, asked.unique_key) == ("k", 1, 99, 32, None)
        with pytest.raises(InvalidParameter, match="1 to 64"):
            await admin.query_by_key("tea", "k", count=1000)


@on_loop
async def test_by_the_producers_id_compares_it_exactly() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.broker.script(QUERY, answer(record(cluster.broker, "k", 1), record(cluster.broker, "k", 2)))
        assert (await admin.query_by_id("U2", "tea")).body == b"2"
        assert QueryMessage.decode(cluster.broker.seen(QUERY)[0].ext).unique_key is True


def view(cluster: FakeCluster, stored: Record) -> None:
    def look(peer: object, frame: Frame) -> Frame:
        if ViewMessage.decode(frame.ext).log_offset == stored.log_offset:
            return reply(frame, body=stored.encode())
        return reply(frame, ResponseCode.SYSTEM_ERROR, "can not find message by the offset")

    for broker in cluster.brokers:
        broker.script(VIEW, look)


@on_loop
async def test_by_offset_id_asks_the_broker_it_names_first() -> None:
    async with fake_cluster(brokers=3, tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        stored = record(cluster.brokers[2], "k", 7)
        view(cluster, stored)
        found = await admin.query_by_id(stored.offset_id.lower())
        assert (found.body, found.queue.broker) == (b"7", "broker-2")
        assert [len(broker.seen(VIEW)) for broker in cluster.brokers] == [0, 0, 1]


@on_loop
async def test_an_address_that_no_broker_has_is_never_connected_to() -> None:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        # As behind a router: the broker calls itself 10.9.9.9, we reach it at another address.
        stored = replace(record(cluster.brokers[1], "k", 7), store_host=b"\x0a\x09\x09\x09", store_port=1)
        cluster.brokers[0].script(VIEW, ResponseCode.SYSTEM_ERROR)
        cluster.brokers[1].script(VIEW, lambda peer, frame: reply(frame, body=stored.encode()))
        assert (await admin.query_by_id(stored.offset_id)).body == b"7"
        # A record at the same place of another broker is not the one that was asked for.
        other = record(cluster.brokers[0], "k", 7)
        for broker in cluster.brokers:
            broker.script(VIEW, lambda peer, frame: reply(frame, body=other.encode()))
        with pytest.raises(QueryNotFound, match="name the topic"):
            await admin.query_by_id(stored.offset_id)


@pytest.mark.parametrize("wrong", ["", "42", "not an id", "Z" * 32])
@on_loop
async def test_what_is_no_id_at_all_says_what_one_is(wrong: str) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        with pytest.raises(QueryNotFound, match="offset id"):
            await admin.query_by_id(wrong)


@on_loop
async def test_by_time_reads_each_queue_between_two_moments() -> None:
    async with fake_cluster(tea=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        for number in (0, 1):
            for n in range(10):
                cluster.broker.put("tea", number, b"%d-%d" % (number, n))
                cluster.broker.queues["tea", number][-1].stored_ms = 100 * n + number
        from_four = lambda peer, frame: reply(frame, header=OffsetResponse(offset=4))  # noqa: E731
        cluster.broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, *[from_four] * 6)
        found = await admin.query_by_time("tea", 401, 601)
        assert [message.body for message in found] == [b"1-4", b"0-5", b"1-5", b"0-6"]
        assert [message.body for message in await admin.query_by_time("tea", 400, count=3)] == [b"0-4", b"1-4", b"0-5"]
        assert set((await admin.offsets_at("tea", 400)).values()) == {4}

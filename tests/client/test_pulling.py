from __future__ import annotations

import logging
import zlib
from dataclasses import replace

import pytest

from kappamq.client.admin import AsyncAdmin
from kappamq.client.pulling import Interest, messages_in, pull
from kappamq.message import MessageQueue, PullResult, PullStatus
from kappamq.protocol import batch
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers_client import PULL_SUBSCRIPTION, PullMessage
from kappamq.protocol.record import SYS_COMPRESSED, SYS_INNER_BATCH, SYS_NEED_UNWRAP, Record
from kappamq.protocol.tags import Subscription
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop

QUEUE = MessageQueue("tea", "broker-0", 0)
RECORD = Record(topic="tea", body=b"x", properties="TAGS\x01hot\x02", queue_offset=5)


async def pulled(cluster: FakeCluster, offset: int, **options: object) -> PullResult:
    async with AsyncAdmin(**cluster.options()) as admin:
        wanted = {"count": 10, "hold_ms": 0, "timeout": 1.0, **options}
        return await pull(admin.start(), "g", QUEUE, offset, Interest("tea", "*", 7), **wanted)  # type: ignore[arg-type]


@on_loop
async def test_each_answer_has_its_status() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b", tag="hot")
        found = await pulled(cluster, 0)
        assert (found.status, [message.body for message in found.messages]) == (PullStatus.FOUND, [b"a", b"b"])
        assert (found.next_offset, found.min_offset, found.max_offset) == (2, 0, 2)
        assert found.messages[0].queue == QUEUE
        assert (await pulled(cluster, 2)).status is PullStatus.NO_NEW
        illegal = await pulled(cluster, 9)
        assert (illegal.status, illegal.next_offset) == (PullStatus.OFFSET_ILLEGAL, 2)


@on_loop
async def test_a_stranger_sends_its_subscription_along() -> None:
    async with fake_cluster(tea=1) as cluster:
        await pulled(cluster, 0, introduced=False)
        header = PullMessage.decode(cluster.broker.seen(RequestCode.PULL_MESSAGE)[0].ext)
        assert (header.sys_flag, header.subscription, header.subscription_version) == (PULL_SUBSCRIPTION, "*", 7)


@on_loop
async def test_any_other_answer_is_an_error() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.script(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION)
        with pytest.raises(Exception, match="scripted 16"):
            await pulled(cluster, 0)


def test_tags_are_compared_exactly() -> None:
    records = [replace(RECORD, properties=f"TAGS\x01{tag}\x02" if tag else "") for tag in ("Aa", "BB", "")]
    body = b"".join(record.encode() for record in records)
    assert [message.tags for message in messages_in(body, "b", Subscription.parse("Aa"))] == ["Aa"]
    assert [message.tags for message in messages_in(body, "b", Subscription.parse("*"))] == ["Aa", "BB", ""]


def test_a_record_that_holds_a_batch_is_unwrapped() -> None:
    inner = batch.encode([batch.Member(b"1"), batch.Member(b"2")])
    record = replace(RECORD, body=inner, sys_flag=SYS_NEED_UNWRAP | SYS_INNER_BATCH, properties="INNER_BASE\x0140\x02")
    assert [(m.body, m.queue_offset) for m in messages_in(record.encode(), "b")] == [(b"1", 40), (b"2", 41)]


def test_bodies_are_unpacked_and_one_that_cannot_be_is_handed_out_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    good = replace(RECORD, body=zlib.compress(b"tea"), sys_flag=SYS_COMPRESSED)
    bad = replace(RECORD, body=b"not compressed at all", sys_flag=SYS_COMPRESSED)
    with caplog.at_level(logging.WARNING):
        first, second, third = messages_in(good.encode() + bad.encode() + RECORD.encode(), "b")
    assert (first.body, first.sys_flag) == (b"tea", 0)
    assert (second.body, second.sys_flag) == (b"not compressed at all", SYS_COMPRESSED)
    assert third.body == b"x"
    assert "cannot be unpacked" in caplog.text


def test_an_interest_tells_the_broker_the_hashes() -> None:
    body = Interest("tea", "Aa || b", 9).to_body()
    assert (body.expression, body.tags, body.codes, body.version) == ("Aa || b", {"Aa", "b"}, {2112, 98}, 9)

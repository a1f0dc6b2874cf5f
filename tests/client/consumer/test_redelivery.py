"""Messages on their way back, with a fake broker; the same with real ones is in test_redelivery_real.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.redelivery import Redelivery
from kappamq.errors import KappaError, NoRoute
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import SendMessageV2
from kappamq.protocol.records import properties
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.client.messages import message

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def redelivery(reconsume_max: int = 16, retry: bool = True) -> AsyncIterator[tuple[FakeCluster, Redelivery]]:
    async with fake_cluster(tea=1) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.broker.put("tea", 0, b"cup")
        if retry:
            cluster.create("%RETRY%g", 1)
        yield cluster, Redelivery(admin.start(), "g", reconsume_max)


def sent(cluster: FakeCluster) -> SendMessageV2:
    (frame,) = cluster.broker.seen(SEND)
    return SendMessageV2.decode(frame.ext)


@on_loop
async def test_the_broker_is_asked_to_keep_it() -> None:
    async with redelivery() as (cluster, back):
        await back.give_back(message(0), 5)
        (header,) = cluster.broker.sent_back
        assert (header.group, header.log_offset, header.delay_level, header.max_reconsume_times) == ("g", 0, 5, 16)
        assert (header.origin_topic, header.origin_message_id, header.logical_broker) == ("tea", "id-0", "broker-0")
        assert cluster.broker.seen(SEND) == []


@on_loop
async def test_a_message_that_is_not_taken_back_is_sent_again_as_what_it_was() -> None:
    async with redelivery() as (cluster, back):
        cluster.broker.script(BACK, ResponseCode.SYSTEM_ERROR)
        named = {"UNIQ_KEY": "id-0", "TAGS": "hot", "TRAN_MSG": "true", "__BATCH#": "0000000099", "own": "value"}
        await back.give_back(message(0, properties=named, reconsume_times=2, born_ms=77, flag=3))
        header = sent(cluster)
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 3, 16)
        assert (header.producer_group, header.born_ms, header.flag) == ("CLIENT_INNER_PRODUCER", 77, 3)
        assert properties.decode(header.properties or "") == {
            "UNIQ_KEY": "id-0",
            "TAGS": "hot",
            "own": "value",
            "RETRY_TOPIC": "tea",
            "ORIGIN_MESSAGE_ID": "at-0",
            "DELAY": "5",
        }
        assert cluster.broker.stored("%RETRY%g") == [b"0"]


@on_loop
async def test_a_message_that_comes_again_keeps_where_it_came_from() -> None:
    async with redelivery() as (cluster, back):
        cluster.broker.script(BACK, ResponseCode.SYSTEM_ERROR)
        named = {"RETRY_TOPIC": "cake", "ORIGIN_MESSAGE_ID": "first"}
        await back.give_back(message(0, properties=named), 9)
        told = properties.decode(sent(cluster).properties or "")
        assert (told["RETRY_TOPIC"], told["ORIGIN_MESSAGE_ID"], told["DELAY"]) == ("cake", "first", "9")


@pytest.mark.parametrize("how", ["bury", "give back"])
@on_loop
async def test_a_dead_letter_is_sent_beyond_the_limit(how: str) -> None:
    async with redelivery(reconsume_max=4) as (cluster, back):
        if how == "bury":
            await back.bury(message(0, reconsume_times=1))
        else:
            cluster.broker.script(BACK, ResponseCode.SYSTEM_ERROR)
            await back.give_back(message(0, reconsume_times=1), -1)
        header = sent(cluster)
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 5, 4)


@on_loop
async def test_a_large_body_is_packed_again() -> None:
    async with redelivery() as (cluster, back):
        await back.bury(message(0, body=b"leaf " * 5000))
        (stored,) = cluster.broker.stored("%RETRY%g")
        assert len(stored) < 1000
        assert sent(cluster).sys_flag & 1


@on_loop
async def test_if_nobody_takes_it_that_is_said() -> None:
    async with redelivery() as (cluster, back):
        cluster.broker.script(BACK, ResponseCode.SYSTEM_BUSY)
        cluster.broker.script(SEND, ResponseCode.SERVICE_NOT_AVAILABLE)
        with pytest.raises(KappaError, match="scripted 14"):
            await back.give_back(message(0))
    async with redelivery(retry=False) as (cluster, back):
        cluster.broker.script(BACK, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(NoRoute, match="%RETRY%g"):
            await back.give_back(message(0))


@on_loop
async def test_stored_but_not_flushed_in_time_counts_as_taken() -> None:
    async with redelivery() as (cluster, back):
        cluster.broker.script(BACK, ResponseCode.SYSTEM_BUSY)
        cluster.broker.script(SEND, ResponseCode.FLUSH_DISK_TIMEOUT)
        await back.give_back(message(0))
        assert len(cluster.broker.seen(SEND)) == 1

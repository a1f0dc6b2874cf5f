"""The story of one message, from its traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.trace.story import Traced, story_of
from kappamq.errors import QueryNotFound
from kappamq.message import Message, ReceivedMessage, Redeliver
from kappamq.protocol import trace
from kappamq.protocol.names import TRACE_TOPIC
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Entry, Outcome, Recalled
from tests.client.loop import on_loop
from tests.client.real import real_cluster
from tests.protocol.test_trace import BEGUN, ENDED, ID, PUBLISHED, RECALLED, TRANSACTION
from tests.waiting import eventually_async


def told(*entries: Entry, client: str = "10.0.0.1") -> list[Traced]:
    return [Traced(entry, client) for entry in entries]


def test_begin_and_end_of_a_delivery_find_each_other_in_any_order() -> None:
    again = replace(BEGUN, request_id="R2", retry_times=3, time_ms=BEGUN.time_ms + 5000)
    done = replace(ENDED, request_id="R2", success=True, outcome=Outcome.SUCCESS, cost_ms=1)
    other = replace(BEGUN, request_id="R3", group="shipping", time_ms=BEGUN.time_ms + 1)
    story = story_of(ID, told(ENDED, done, PUBLISHED, again, other, BEGUN))
    assert [(one.request_id, one.success, one.state, one.retry_times) for one in story.consumed] == [
        ("R1", False, "exception", 2),
        ("R3", None, "not finished, or its end was not traced", 2),
        ("R2", True, "success", 3),
    ]
    assert story.groups == {"billing": True, "shipping": False}
    assert (story.topic, story.sent) == ("orders", [(PUBLISHED, "10.0.0.1")])


def test_what_is_told_about_other_messages_is_left_out_and_batches_of_java_are_understood() -> None:
    others = [replace(entry, message_id="other") for entry in (PUBLISHED, BEGUN, ENDED, TRANSACTION, RECALLED)]
    batch = replace(PUBLISHED, message_id=f"first,{ID}")
    story = story_of(ID, told(*others, batch))
    assert (len(story.sent), story.consumed, story.transactions, story.recalls) == (1, [], [], [])


def test_the_story_as_text_is_in_order_of_time() -> None:
    failed = replace(PUBLISHED, success=False, store_host="", kind=77)
    rolled = replace(TRANSACTION, time_ms=PUBLISHED.time_ms + 50, from_check=False, state=trace.ROLLED_BACK)
    recalled = replace(RECALLED, time_ms=PUBLISHED.time_ms + 60)
    kept = replace(recalled, success=False, time_ms=PUBLISHED.time_ms + 70)
    odd = replace(ENDED, request_id="R9", outcome=42, time_ms=BEGUN.time_ms + 1)
    story = story_of(ID, told(BEGUN, ENDED, rolled, PUBLISHED, failed, recalled, kept, odd))
    assert [line[25:] for line in story.lines()] == [
        "not sent by shop at 10.0.0.1 to orders on ?, 5 bytes, kind 77, in 3 ms",
        "sent by shop at 10.0.0.1 to orders on 192.168.1.2:10911, 5 bytes, delay, in 3 ms",
        "transaction ROLLBACK_MESSAGE by shop at 10.0.0.1, by the producer",
        "recalled by shop at 10.0.0.1",
        "not recalled by shop at 10.0.0.1",
        "consumed by billing at 10.0.0.1, delivery 3: exception in 7 ms",
        "consumed by billing at 10.0.0.1: failed in 7 ms",
    ]
    assert all(isinstance(entry, Recalled) for entry, _ in story.recalls)


@on_loop
async def test_a_message_is_followed_from_its_producer_to_its_consumers(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, trace_topic_enabled=True) as cluster,
        AsyncAdmin(cluster.nameserver) as admin,
    ):
        with pytest.raises(QueryNotFound, match=r"no trace of message ABC.*trace=True"):
            await admin.trace_of("ABC")
        options = cluster.options(trace=True, trace_flush_ms=10)
        calls: list[ReceivedMessage] = []

        def listen(message: ReceivedMessage) -> Redeliver | None:
            calls.append(message)
            return Redeliver(level=1) if len(calls) == 1 else None

        async with AsyncProducer(**options, group="shop") as producer:
            result = await producer.send(Message("orders", b"tea", keys="k"))
            async with AsyncConsumer(
                **options, group="billing", topics="orders", listener=listen, consume_from="first", consume_threads=1
            ):
                await eventually_async(lambda: len(calls) == 2, timeout=20)

            async def complete() -> bool:
                try:
                    story = await admin.trace_of(result.message_id)
                except QueryNotFound:
                    return False
                return len(story.consumed) == 2 and all(one.success is not None for one in story.consumed)

            await eventually_async(complete)
        story = await admin.trace_of(result.message_id)
        assert (story.topic, len(story.sent)) == ("orders", 1)
        sent, client = story.sent[0]
        assert (sent.group, sent.success, sent.offset_id, client) == ("shop", True, result.offset_id, "127.0.0.1")
        assert [(one.group, one.success, one.retry_times) for one in story.consumed] == [
            *[("billing", False, 0), ("billing", True, 1)]
        ]
        assert story.groups == {"billing": True}
        assert len(story.lines()) == 3


@on_loop
async def test_a_story_longer_than_one_answer_is_told_to_its_beginning(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, brokers=2, trace_topic_enabled=True) as cluster,
        AsyncAdmin(cluster.nameserver) as admin,
        AsyncProducer(**cluster.options()) as producer,
    ):
        for number in range(300):
            begun = ConsumeBegun(time_ms=number, group=f"g{number}", request_id=f"R{number}", message_id="M")
            ended = ConsumeEnded(request_id=f"R{number}", message_id="M", cost_ms=1, success=True)
            body = (trace.encode(begun) + trace.encode(ended)).encode()
            await producer.send(Message(TRACE_TOPIC, body, keys="M"))

        async def whole() -> bool:
            return len((await admin.trace_of("M")).consumed) == 300

        await eventually_async(whole)


@on_loop
async def test_without_a_trace_topic_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster, AsyncAdmin(cluster.nameserver) as admin:
        with pytest.raises(QueryNotFound, match="traceTopicEnable=true"):
            await admin.trace_of("ABC")

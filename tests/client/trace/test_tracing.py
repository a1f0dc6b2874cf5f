"""Traces: sent a few at a time, never waited for, dropped and counted when there are too many."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.trace.tracing import BODY_BYTES_MAX, Tracer, trace_group, traced
from kappamq.clock import SystemClock
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage, NotConnected
from kappamq.message import RETRY, Message, MessageQueue, ReceivedMessage
from kappamq.protocol import trace
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.names import TRACE_TOPIC
from kappamq.protocol.records.properties import TEXT_BYTES_MAX
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Entry, MessageKind, Outcome, Published, Recalled
from tests.client.fake import fake_cluster
from tests.client.loop import on_loop
from tests.client.real import real_cluster
from tests.waiting import eventually_async


def config(**options: Any) -> ClientConfig:
    return ClientConfig(nameservers=("a:1",), trace=True, **options)


def entry(number: int = 0, keys: str = "") -> ConsumeBegun:
    return ConsumeBegun(time_ms=1, group="g", request_id=f"R{number}", message_id=f"M{number}", keys=keys)


def received(number: int = 0, **changes: Any) -> ReceivedMessage:
    values: dict[str, Any] = {
        "topic": "t", "body": b"x", "queue": MessageQueue("t", "b", 0), "queue_offset": number, "log_offset": 0,
        "message_id": f"M{number}", "offset_id": "",
    }  # fmt: skip
    return ReceivedMessage(**(values | changes))


class Sink:
    """Where traces go to; may be made to wait or to fail."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.released = False

    async def send(self, message: Message) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.messages.append(message)

    async def release(self) -> None:
        self.released = True

    @property
    def entries(self) -> list[Entry]:
        return [entry for message in self.messages for entry in trace.decode(message.body)]

    def tracer(self, **options: Any) -> Tracer:
        return Tracer(config(**options), "g", SystemClock(), self.send, self.release)


@on_loop
async def test_a_full_message_leaves_at_once_and_the_rest_after_a_while() -> None:
    sink = Sink()
    tracer = sink.tracer(trace_flush_ms=60_000)
    tracer.add(*(entry(n) for n in range(9)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert sink.messages == []
    tracer.add(entry(9))
    await eventually_async(lambda: len(sink.entries) == 10)
    assert len(sink.messages) == 1
    assert sink.messages[0].topic == TRACE_TOPIC
    assert set(sink.messages[0].keys) == {f"M{n}" for n in range(10)}
    await tracer.close()
    assert sink.released
    sink = Sink()
    tracer = sink.tracer(trace_flush_ms=20)
    tracer.add(entry())
    await eventually_async(lambda: len(sink.entries) == 1)
    tracer.add(entry(1))
    await eventually_async(lambda: len(sink.entries) == 2)
    await tracer.close()


@on_loop
async def test_what_waits_leaves_when_the_client_closes() -> None:
    sink = Sink()
    tracer = sink.tracer()
    tracer.add(*(entry(n) for n in range(25)))
    await tracer.close()
    assert [len(trace.decode(message.body)) for message in sink.messages] == [10, 10, 5]
    assert sink.entries == [entry(n) for n in range(25)]
    tracer.add(entry())  # too late
    assert (tracer.dropped, len(sink.entries)) == (1, 25)


@on_loop
async def test_messages_and_keys_stay_within_their_limits() -> None:
    sink = Sink()
    tracer = sink.tracer(trace_batch=100)
    large = [entry(n, keys=" ".join(f"key-{n}-{k}" for k in range(1500))) for n in range(30)]
    tracer.add(*large)
    await tracer.close()
    assert sink.entries == large
    assert len(sink.messages) > 1
    for message in sink.messages:
        assert len(message.body) <= BODY_BYTES_MAX
        assert len(" ".join(message.keys)) < TEXT_BYTES_MAX // 2
        assert {one.message_id for one in trace.decode(message.body)} <= set(message.keys)


@on_loop
async def test_too_many_are_dropped_and_counted_and_nobody_waits() -> None:
    sink = Sink()
    sink.open.clear()
    tracer = sink.tracer(trace_waiting_max=100)
    threads = [threading.Thread(target=lambda: [tracer.add(entry(n)) for n in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert tracer.dropped == 4 * 500 - 100
    sink.open.set()
    await tracer.close()
    assert len(sink.entries) == 100


@on_loop
async def test_traces_that_cannot_be_sent_are_counted_and_complained_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink()
    sink.error = NotConnected("nobody there")
    tracer = sink.tracer()
    tracer.add(*(entry(n) for n in range(35)))
    await tracer.close()
    assert (tracer.failed, sink.messages) == (35, [])
    assert [record.getMessage() for record in caplog.records if "traces" in record.getMessage()] == [
        "group g: lost message traces (10 not sent, 0 dropped so far): nobody there"
    ]


def test_the_group_of_a_tracer_says_whose_it_is_and_is_not_too_long() -> None:
    assert trace_group("shop") == "_INNER_TRACE_PRODUCER-shop"
    assert len(trace_group("g" * 120)) == 120


# --- consuming ---


@pytest.mark.parametrize("asynchronous", [False, True])
@on_loop
async def test_a_listener_leaves_traces_of_what_it_did(asynchronous: bool) -> None:
    sink = Sink()
    tracer = sink.tracer()

    def listen(message: ReceivedMessage) -> str:
        if message.message_id == "M1":
            raise ValueError("no")
        return "verdict"

    async def listen_async(message: ReceivedMessage) -> str:
        return listen(message)

    call = traced(listen_async if asynchronous else listen, tracer)
    for number in range(2):
        try:
            result = call(received(number, keys=("k",), reconsume_times=number, properties={"MSG_REGION": "north"}))
            assert (await result if asynchronous else result) == "verdict"
        except ValueError:
            assert number == 1
    await tracer.close()
    begun, ended, begun_again, failed = sink.entries
    assert isinstance(begun, ConsumeBegun)
    assert isinstance(ended, ConsumeEnded)
    assert (begun.message_id, begun.region, begun.keys, begun.group, begun.retry_times) == ("M0", "north", "k", "g", 0)
    assert (ended.request_id, ended.success, ended.outcome) == (begun.request_id, True, Outcome.SUCCESS)
    assert isinstance(begun_again, ConsumeBegun)
    assert isinstance(failed, ConsumeEnded)
    assert begun_again.request_id != begun.request_id
    assert (begun_again.retry_times, failed.success, failed.outcome) == (1, False, Outcome.EXCEPTION)


@on_loop
async def test_a_broker_that_wants_no_traces_gets_none_also_not_of_part_of_a_batch() -> None:
    sink = Sink()
    tracer = sink.tracer()
    off = {"TRACE_ON": "false"}
    traced(lambda messages: None, tracer)([received(0, properties=off), received(1), received(2)])
    traced(lambda message: None, tracer)(received(3, properties=off))
    traced(lambda message: None, tracer)(received(4, topic=TRACE_TOPIC))
    await tracer.close()
    assert [(type(one), one.message_id) for one in sink.entries] == [
        *[(ConsumeBegun, "M1"), (ConsumeBegun, "M2")],
        *[(ConsumeEnded, "M1"), (ConsumeEnded, "M2")],
    ]
    assert len({one.request_id for one in sink.entries if isinstance(one, ConsumeBegun)}) == 1


@on_loop
async def test_a_listener_that_asks_for_the_message_again_or_is_stopped_has_not_succeeded() -> None:
    sink = Sink()
    tracer = sink.tracer()

    async def wait(message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    traced(lambda message: RETRY, tracer)(received())
    stopped = asyncio.ensure_future(traced(wait, tracer)(received()))
    await asyncio.sleep(0)
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    await tracer.close()
    ended = [one for one in sink.entries if isinstance(one, ConsumeEnded)]
    assert [(one.success, one.outcome) for one in ended] == [(False, Outcome.FAILED), (False, Outcome.TIMEOUT)]


@on_loop
async def test_messages_that_are_asked_for_are_traced_until_they_are_acknowledged_or_given_back() -> None:
    async with fake_cluster(tea=1, RMQ_SYS_TRACE_TOPIC=1) as cluster:
        cluster.broker.put("tea", 0, *(b"%d" % n for n in range(4)), UNIQ_KEY="u", KEYS="k")
        options = cluster.options(group="g", topics="tea", consume_from="first", trace=True)
        async with AsyncConsumer(**options) as consumer:
            assert await consumer.poll(5)
            assert await consumer.poll(5)
            received_message = await consumer.receive(5)
            assert received_message is not None
            consumer.ack(received_message)
            consumer.ack(received_message)
            given_back = await consumer.receive(5)
            assert given_back is not None
            await consumer.retry(given_back)
        entries = [entry for body in cluster.broker.stored(TRACE_TOPIC) for entry in trace.decode(body)]
        begun = [one for one in entries if isinstance(one, ConsumeBegun)]
        ended = {one.request_id: one.outcome for one in entries if isinstance(one, ConsumeEnded)}
        assert [ended[one.request_id] for one in begun] == [Outcome.SUCCESS] * 3 + [Outcome.FAILED]
        assert {(one.message_id, one.keys, one.group) for one in begun} == {("u", "k", "g")}


@on_loop
async def test_a_recall_is_traced_whether_it_came_in_time_or_not() -> None:
    sink = Sink()
    tracer = sink.tracer()
    tracer.recalled("t", "M1", success=True, region="north")
    tracer.recalled("t", "M2", success=False)
    await tracer.close()
    first, second = sink.entries
    assert isinstance(first, Recalled)
    assert isinstance(second, Recalled)
    assert (first.message_id, first.topic, first.group, first.success, first.region) == ("M1", "t", "g", True, "north")
    assert (second.message_id, second.success, second.region) == ("M2", False, "DefaultRegion")
    assert set(sink.messages[0].keys) == {"M1", "M2"}


# --- sending ---


@on_loop
async def test_sends_are_traced_single_and_in_batches() -> None:
    async with fake_cluster(tea=1, RMQ_SYS_TRACE_TOPIC=1) as cluster:
        async with AsyncProducer(**cluster.options(trace=True), group="shop") as producer:
            one = await producer.send(Message("tea", b"12345", tags="hot", keys=("a", "b"), sharding_key="s"))
            two = await producer.send_batch([Message("tea", b"1", keys="c"), Message("tea", b"22", tags="t")])
            await producer.send(Message("tea", b"later", delay_level=3))
        (body,) = cluster.broker.stored(TRACE_TOPIC)
        first, second, third, delayed = trace.decode(body)
        assert isinstance(first, Published)
        assert (first.message_id, first.topic, first.group, first.tags, first.keys, first.body_bytes) == (
            *(one.message_id, "tea", "shop", "hot"),
            *("a b", 5),
        )
        assert (first.store_host, first.offset_id, first.success) == (cluster.broker.address, one.offset_id, True)
        assert (first.kind, first.region) == (MessageKind.ORDER, "DefaultRegion")
        assert [second.message_id, third.message_id] == [result.message_id for result in two]
        assert isinstance(delayed, Published)
        assert delayed.kind == MessageKind.DELAY


@on_loop
async def test_a_send_that_failed_is_traced_as_such() -> None:
    async with fake_cluster(tea=1, RMQ_SYS_TRACE_TOPIC=1) as cluster:
        async with AsyncProducer(**cluster.options(trace=True), group="shop") as producer:
            cluster.broker.script(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(IllegalMessage):
                await producer.send(Message("tea", b"x"))
            with pytest.raises(IllegalMessage):
                await producer.send(Message("tea", b""))  # never tried, so there is nothing to tell
        (body,) = cluster.broker.stored(TRACE_TOPIC)
        (sent,) = trace.decode(body)
        assert isinstance(sent, Published)
        assert (sent.success, sent.offset_id, sent.topic) == (False, "", "tea")


@pytest.mark.parametrize("trace_on", [True, False])
@on_loop
async def test_the_broker_decides_whether_traces_are_written(tmp_path: Path, trace_on: bool) -> None:
    async with real_cluster(tmp_path, trace_on=trace_on, trace_topic_enabled=True) as cluster:
        async with AsyncProducer(**cluster.options(trace=True), group="shop") as producer:
            await producer.send(Message("tea", b"x"))
            await producer.send_batch([Message("tea", b"x")])
            await producer.send(Message(TRACE_TOPIC, b"not traced itself"))
        end = cluster.broker.kernel.queue_state(TRACE_TOPIC, 0).end
        assert end == (2 if trace_on else 1)


@on_loop
async def test_without_the_trace_topic_messages_are_sent_all_the_same(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, auto_create_topic=False) as cluster:
        async with AsyncProducer(**cluster.options(trace=True), group="shop") as producer:
            await producer.send(Message("BenchmarkTest", b"x"))
            tracer = producer._tracer
            assert tracer is not None
        assert tracer.failed == 1

"""Sends that leave together: what is in a request, what becomes of each message, and that the books agree."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.client.bursts.lanes import BURST_COUNT_MAX
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import (
    ClientClosed,
    ClientError,
    IllegalMessage,
    InvalidParameter,
    KappaError,
    SendTimeout,
    TooManyRequests,
)
from kappamq.message import Message, MessageQueue, SendResult
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import SendMessageV2
from kappamq.protocol.records import batch, properties
from tests.client.fake import FakeBroker, FakeCluster, Peer, fake_cluster, hang_up, never
from tests.client.loop import on_loop
from tests.client.messages import Unreadable
from tests.waiting import eventually_async

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


class Holding:
    """Answers a request only when told to."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.release = asyncio.Event()

    async def __call__(self, peer: Peer, frame: Frame) -> Frame:
        await self.release.wait()
        answer = self.broker.handle(peer, frame)
        assert isinstance(answer, Frame)
        return answer


async def warm(producer: AsyncProducer, topic: str = "tea") -> None:
    """Route and connections are there; the queues are empty of what tests count."""
    for queue in await producer.queues(topic):
        await producer.send(Message(topic, b"warm"), queue=queue)


def sizes(broker: FakeBroker) -> list[int]:
    """How many messages each request had."""
    found = [frame for frame in broker.requests if frame.code in (SEND, BATCH)]
    return [1 if frame.code == SEND else len(batch.split(frame.body)) for frame in found]


def told(done: list[Any]) -> set[str]:
    return {type(one).__name__ for one in done}


@on_loop
async def test_what_is_sent_in_one_turn_leaves_in_one_request_per_queue() -> None:
    async with fake_cluster(tea=2) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        cluster.broker.requests.clear()
        results = await asyncio.gather(*(producer.send(Message("tea", b"%d" % n, keys=f"k{n}")) for n in range(100)))
        assert sizes(cluster.broker) == [50, 50]
        assert len({result.message_id for result in results}) == 100
        for number, result in enumerate(results):
            record = cluster.broker.queues["tea", result.queue.queue_id][result.queue_offset]
            assert record.body == b"%d" % number
            named = record.property_map()
            assert named == {"UNIQ_KEY": result.message_id, "KEYS": f"k{number}"}
            assert result.ok
            assert result.offset_id == f"broker-0-{result.queue_offset}"
        frame = cluster.broker.seen(BATCH)[0]
        assert properties.decode(SendMessageV2.decode(frame.ext).properties or "") == {}


@on_loop
async def test_a_lone_send_is_no_batch_and_waits_for_nobody() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await producer.send(Message("tea", b"x"))
        await producer.send_nowait(Message("tea", b"y"))
        assert [frame.code for frame in cluster.broker.requests if frame.code in (SEND, BATCH)] == [SEND, SEND]


@on_loop
async def test_what_comes_while_a_request_is_in_flight_leaves_with_the_next_one() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        cluster.broker.requests.clear()
        holding = Holding(cluster.broker)
        cluster.broker.script(SEND, holding)
        sent = [producer.send_nowait(Message("tea", b"0"))]
        await eventually_async(lambda: cluster.broker.seen(SEND))
        for n in range(1, 6):
            sent.append(producer.send_nowait(Message("tea", b"%d" % n)))
            await asyncio.sleep(0)
        assert sizes(cluster.broker) == [1]
        assert producer.under_way == 6
        holding.release.set()
        results = await asyncio.gather(*sent)
        assert sizes(cluster.broker) == [1, 5]
        assert [result.queue_offset for result in results] == [1, 2, 3, 4, 5, 6]
        assert producer.under_way == 0


@on_loop
async def test_only_what_may_share_a_request_does() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        cluster.broker.requests.clear()
        queue = MessageQueue("tea", "broker-0", 0)
        messages = [
            *(Message("tea", b"a"), Message("tea", b"b")),
            *(Message("tea", b"c", delay_level=1), Message("tea", b"d", flag=7), Message("tea", b"z" * 5000)),
            *(Message("tea", b"e", wait_stored=False), Message("tea", b"f", wait_stored=False), Message("tea", b"g")),
        ]
        results = await asyncio.gather(*(producer.send_nowait(message, queue=queue) for message in messages))
        assert sizes(cluster.broker) == [2, 1, 1, 1, 2, 1]
        assert [result.queue_offset for result in results] == list(range(1, 9)), "in order, although some travel alone"
        texts = [SendMessageV2.decode(frame.ext).properties or "" for frame in cluster.broker.seen(BATCH)]
        assert [properties.decode(text) for text in texts] == [{}, {"WAIT": "false"}]


@on_loop
async def test_one_bad_message_fails_alone_and_before_anything_is_sent() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        bad = [
            *(Message("tea", b""), Message("tea", b"x", tags="a\2b"), Message("tea", b"x", properties={"KEYS": "x"})),
            *(Message("tea", b"x", properties={"p": "v" * 40_000}), Message("tea", b"x", tags="\ud800")),
            *(Message("no such name!", b"x"), Message("SCHEDULE_TOPIC_XXXX", b"x")),
        ]
        sent = [producer.send_nowait(message) for one in bad for message in (Message("tea", b"good"), one)]
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, SendResult) for one in done[::2])
        assert all(isinstance(one, Exception) for one in done[1::2])
        assert isinstance(done[1], IllegalMessage)
        assert "reserved by RocketMQ" in str(done[5])
        assert "split" in str(done[7]) or "limit is 32767" in str(done[7])
        assert isinstance(done[11], InvalidParameter)
        assert cluster.broker.stored("tea").count(b"good") == len(bad)
        assert len(cluster.broker.stored("tea")) == len(bad) + 1
        with pytest.raises(TypeError, match="message must be a Message"):
            producer.send_nowait(b"x")  # type: ignore[arg-type]
        for send in (producer.send_nowait, producer.send):
            with pytest.raises(RuntimeError, match="unreadable"):
                await send(Unreadable("tea", b"x"))
        assert producer.sending.pressure.count == 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("where", ["encoding", "attempt"])
@on_loop
async def test_an_unexpected_error_fails_what_was_taken_and_no_lane_behind_it(
    where: str, full: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count = BURST_COUNT_MAX if full else 3  # so many leave at once, fewer at the end of the turn
    async with fake_cluster(tea=3) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        owner, name = (producer._sends._encoder, "batch") if where == "encoding" else (producer.sending, "attempt")  # type: ignore[union-attr]
        works = getattr(owner, name)
        calls: list[int] = []

        def fail_once(*args: Any, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("unexpected")
            return works(*args, **more)

        monkeypatch.setattr(owner, name, fail_once)
        queues = await producer.queues("tea")
        for attempt in range(2):
            sent = [producer.send_nowait(Message("tea", b"x"), queue=queue) for queue in queues for _ in range(count)]
            done = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 10)
            bad = [one for one in done if not isinstance(one, SendResult)]
            assert [str(one) for one in bad] == ["unexpected"] * (count if attempt == 0 else 0)
            assert done[: len(bad)] == bad
        assert producer.under_way == 0
        assert producer.sending.pressure.count == 0
    assert "could not be sent" in caplog.text


@on_loop
async def test_an_unexpected_error_of_a_route_fails_what_waits_and_the_topic_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:

        async def fail(*_: Any) -> Any:
            raise RuntimeError("unexpected")

        with monkeypatch.context() as patched:
            patched.setattr(producer.sending, "route", fail)
            sent = [producer.send_nowait(Message("tea", b"x")) for _ in range(3)]
            done = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 2)
        assert [str(one) for one in done] == ["unexpected"] * 3
        assert (await asyncio.wait_for(producer.send_nowait(Message("tea", b"y")), 10)).ok
        assert producer.under_way == 0
    assert "the route of topic 'tea' could not be looked up" in caplog.text


@pytest.mark.parametrize("ordered", [False, True])
@on_loop
async def test_of_a_refused_batch_only_the_members_fail_that_are_the_reason(ordered: bool) -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        cluster.broker.script(BATCH, ResponseCode.MESSAGE_ILLEGAL)
        cluster.broker.script(SEND, *(cluster.broker.handle if n != 2 else refuse for n in range(5)))
        key = "k" if ordered else None
        sent = [producer.send_nowait(Message("tea", b"%d" % n), key=key) for n in range(5)]
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert [isinstance(one, SendResult) for one in done] == [True, True, False, True, True]
        assert isinstance(done[2], IllegalMessage)
        assert cluster.broker.stored("tea") == [b"warm", b"0", b"1", b"3", b"4"]


def refuse(peer: Peer, frame: Frame) -> Frame:
    return reply(frame, ResponseCode.MESSAGE_ILLEGAL, "bad one")


@on_loop
async def test_a_broker_that_stores_a_burst_and_dies_gets_it_again_with_the_same_ids() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)

        def store_and_die(peer: Peer, frame: Frame) -> None:
            cluster.broker.handle(peer, frame)
            peer.drop()

        cluster.broker.script(BATCH, store_and_die)
        results = await asyncio.gather(*(producer.send_nowait(Message("tea", b"%d" % n)) for n in range(3)))
        records = cluster.broker.queues["tea", 0][1:]
        assert [record.body for record in records] == [b"0", b"1", b"2"] * 2
        ids = [record.property_map()["UNIQ_KEY"] for record in records]
        assert ids == [result.message_id for result in results] * 2
        assert [result.queue_offset for result in results] == [4, 5, 6]


@on_loop
async def test_a_time_out_says_for_each_message_whether_it_was_sent() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        cluster.broker.script(SEND, never)
        cluster.broker.script(BATCH, never)
        queue = MessageQueue("tea", "broker-0", 0)
        sent = [producer.send_nowait(Message("tea", b"a"), queue=queue, timeout=0.3)]
        await eventually_async(lambda: len(cluster.broker.seen(SEND)) == 2)
        sent.append(producer.send_nowait(Message("tea", b"b"), queue=queue, timeout=0.1))
        first, second = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(first, SendTimeout)
        assert "may have been stored" in str(first)
        assert isinstance(second, SendTimeout)
        assert "waited for earlier messages" in str(second)
        assert "nothing was sent" in str(second)
        # Together in one request, with different times.
        late = [producer.send_nowait(Message("tea", b"x"), queue=queue, timeout=timeout) for timeout in (0.1, 0.4)]
        done = await asyncio.gather(*late, return_exceptions=True)
        assert all("may have been stored" in str(one) for one in done)
        assert "within 0.1 s" in str(done[0])
        assert producer.under_way == 0
        assert producer.sending.pressure.count == 0


@on_loop
async def test_what_has_no_time_left_before_its_topic_is_known_is_settled_once() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        with pytest.raises(SendTimeout):
            await producer.send(Message("tea", b"late"), timeout=1e-9)
        sends = producer._sends
        assert sends is not None
        assert (len(sends), sends.left_over()) == (0, (0, 0))


@on_loop
async def test_a_cancelled_send_says_whether_it_was_sent() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        holding = Holding(cluster.broker)
        cluster.broker.script(SEND, holding)
        notes: list[str] = []

        async def send(body: bytes) -> None:
            try:
                await producer.send(Message("tea", body))
            except asyncio.CancelledError as error:
                notes.extend(error.__notes__)
                raise

        tasks = [asyncio.create_task(send(b"sent"))]
        await eventually_async(lambda: len(cluster.broker.seen(SEND)) == 2)
        tasks.append(asyncio.create_task(send(b"waits")))
        future = producer.send_nowait(Message("tea", b"future"))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        future.cancel()
        await asyncio.wait(tasks)
        assert "was sent: it may have been stored" in notes[0]
        assert notes[1] == "the message for 'tea' was not sent"
        holding.release.set()
        await producer.flush()
        assert cluster.broker.stored("tea") == [b"warm", b"sent"]
        assert producer.sending.pressure.count == 0
        assert producer.under_way == 0


@on_loop
async def test_back_pressure_refuses_and_lets_go() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(inflight_max=3)) as producer:
        await warm(producer)
        holding = Holding(cluster.broker)
        cluster.broker.script(BATCH, holding)
        sent = [producer.send_nowait(Message("tea", b"%d" % n)) for n in range(3)]
        with pytest.raises(TooManyRequests, match="3 sends with 3 bytes"):
            producer.send_nowait(Message("tea", b"3"))
        room = asyncio.create_task(producer.drain())
        waits = asyncio.create_task(producer.send(Message("tea", b"4")))
        await eventually_async(lambda: cluster.broker.seen(BATCH))
        assert not room.done()
        holding.release.set()
        await asyncio.gather(room, waits, *sent)
        await producer.drain()
        assert cluster.broker.stored("tea") == [b"warm", b"0", b"1", b"2", b"4"]


@on_loop
async def test_lingering_waits_for_others_and_a_flush_ends_it() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(linger_ms=20_000)) as producer:
        flushed = asyncio.create_task(asyncio.sleep(0))
        sent = [producer.send_nowait(Message("tea", b"a"), timeout=60)]
        await flushed
        sent.append(producer.send_nowait(Message("tea", b"b"), timeout=60))
        await eventually_async(lambda: producer._core is not None and producer._core.routes.ready("tea"))
        await producer.flush()
        assert all(one.done() for one in sent)
        assert cluster.broker.stored("tea") == [b"a", b"b"]
        assert sizes(cluster.broker) == [2]


@on_loop
async def test_keys_keep_their_order_when_the_topic_gets_more_queues() -> None:
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
        await warm(producer)
        holding = Holding(cluster.broker)
        cluster.broker.script(SEND, holding)
        sent = [producer.send_nowait(Message("tea", b"first"), key="a")]
        await eventually_async(lambda: len(cluster.broker.seen(SEND)) == 2)
        cluster.create("tea", 8)
        core = producer.running()
        await core.routes.refresh("tea", at_once=True)
        sent += [producer.send_nowait(Message("tea", b"%d" % n), key="a") for n in range(3)]
        await producer.send(Message("tea", b"unkeyed"))  # is not held up
        assert b"0" not in cluster.broker.stored("tea"), "the first one is not stored yet"
        holding.release.set()
        results = await asyncio.gather(*sent)
        assert results[0].queue.queue_id == 0
        assert len({result.queue for result in results[1:]}) == 1
        assert results[1].queue.queue_id != 0, "the key means another queue of eight"


@on_loop
async def test_closing_waits_for_what_was_handed_over() -> None:
    async with fake_cluster(tea=1) as cluster:
        producer = AsyncProducer(**cluster.options())
        sent = [producer.send_nowait(Message("tea", b"%d" % n)) for n in range(10)]
        await producer.close()
        assert all(one.result().ok for one in sent)
        with pytest.raises(ClientClosed):
            producer.send_nowait(Message("tea", b"late"))


def test_a_producer_stays_with_its_loop() -> None:
    async def scene(cluster: FakeCluster) -> AsyncProducer:
        producer = AsyncProducer(**cluster.options())
        await producer.send_nowait(Message("tea", b"x"))
        return producer

    async def elsewhere(producer: AsyncProducer) -> None:
        with pytest.raises(ClientError, match="another event loop"):
            producer.send_nowait(Message("tea", b"y"))
        assert producer.sending.pressure.count == 0

    async def first() -> AsyncProducer:
        async with fake_cluster(tea=1) as cluster:
            return await scene(cluster)

    producer = asyncio.run(first())
    asyncio.run(elsewhere(producer))


# --- the books: what was sent, acknowledged and stored ---

sends = st.tuples(st.just("send"), st.sampled_from(["", "", "k1", "k2"]), st.sampled_from([0, 0, 0, 1]))
faults = st.tuples(
    st.just("fault"), st.sampled_from([SEND, BATCH]), st.sampled_from(["refuse", "busy", "drop", "store", "never"])
)
others = st.sampled_from([("turn",), ("pause",), ("cancel",), ("grow",)])


@settings(max_examples=40, deadline=None)
@given(st.lists(sends | sends | sends | faults | others, max_size=40))
def test_the_books_agree_whatever_happens(actions: list[tuple[Any, ...]]) -> None:
    asyncio.run(asyncio.wait_for(the_books_agree(actions), 60))


async def the_books_agree(actions: list[tuple[Any, ...]]) -> None:
    async with fake_cluster(brokers=2, tea=2) as cluster:
        options = cluster.options(send_timeout_ms=400, send_retries=2)
        async with AsyncProducer(**options) as producer:
            sent: dict[bytes, asyncio.Future[SendResult]] = {}
            keys: dict[bytes, str] = {}
            queues = 2
            for action in actions:
                if action[0] == "send":
                    body = b"%d" % len(sent)
                    keys[body] = action[1]
                    sent[body] = producer.send_nowait(Message("tea", body, flag=action[2]), key=action[1] or None)
                elif action[0] == "fault":
                    for broker in cluster.brokers:
                        broker.script(action[1], fault(broker, action[2]))
                elif action[0] == "turn":
                    await asyncio.sleep(0)
                elif action[0] == "pause":
                    await asyncio.sleep(0.002)  # a step of the story: requests get their answers meanwhile
                elif action[0] == "cancel" and sent:
                    list(sent.values())[-1].cancel()
                elif action[0] == "grow":
                    queues += 1
                    cluster.create("tea", queues)
                    await producer.running().routes.refresh("tea", at_once=True)
            await producer.flush()
            assert producer.under_way == 0
            assert producer.sending.pressure.count == producer.sending.pressure.bytes == 0
        agree(cluster, sent, keys)


def fault(broker: FakeBroker, kind: str) -> Any:
    def store(peer: Peer, frame: Frame) -> None:
        broker.handle(peer, frame)
        peer.drop()

    codes = {"refuse": ResponseCode.MESSAGE_ILLEGAL, "busy": ResponseCode.SYSTEM_BUSY}
    return codes.get(kind) or {"drop": hang_up, "store": store, "never": never}[kind]


def agree(cluster: FakeCluster, sent: dict[bytes, asyncio.Future[SendResult]], keys: dict[bytes, str]) -> None:
    places: dict[bytes, list[tuple[str, int, int, str]]] = defaultdict(list)
    for broker in cluster.brokers:
        for (_, queue_id), records in broker.queues.items():
            for record in records:
                message_id = record.property_map()["UNIQ_KEY"]
                places[record.body].append((broker.name, queue_id, record.queue_offset, message_id))
    assert not set(places) - set(sent), "nothing is stored that nobody sent"
    for body, future in sent.items():
        assert future.done()
        if future.cancelled():
            continue
        error = future.exception()
        if error is None:
            got = future.result()
            where = (got.queue.broker, got.queue.queue_id, got.queue_offset, got.message_id)
            assert where in places[body], "what was acknowledged is where its result says"
            assert len({place[3] for place in places[body]}) == 1, "every copy has the same id"
        else:
            assert isinstance(error, KappaError)
            if "nothing was sent" in str(error):
                assert body not in places
    for key in ("k1", "k2"):
        done = [
            body for body in sent if keys[body] == key and not sent[body].cancelled() and not sent[body].exception()
        ]
        by_queue = defaultdict(list)
        for body in done:
            got = sent[body].result()
            by_queue[got.queue].append(got.queue_offset)
        for offsets in by_queue.values():
            assert offsets == sorted(offsets), "messages of a key are stored in the order in which they were sent"


@on_loop
async def test_a_selection_that_fails_fails_its_message_alone() -> None:
    class Moody:
        def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
            if len(chosen) == 1:
                chosen.append(None)
                raise ZeroDivisionError("no queue today")
            chosen.append(queues[0])
            return queues[0]

    chosen: list[MessageQueue | None] = []
    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(), selection=Moody()) as producer:
        sent = [producer.send_nowait(Message("tea", b"%d" % n)) for n in range(3)]  # the route is looked up meanwhile
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(one).__name__ for one in done] == ["SendResult", "ZeroDivisionError", "SendResult"]
        assert producer.under_way == producer.sending.pressure.count == 0


@on_loop
async def test_a_selection_that_returns_no_queue_fails_its_message_at_once() -> None:
    class Nowhere:
        def choose(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
            return None  # type: ignore[return-value]

    async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options(), selection=Nowhere()) as producer:
        for _ in range(2):  # while the route is looked up, and when it is known
            with pytest.raises(TypeError, match="must choose one of the queues"):
                await producer.send(Message("tea", b"x"))
        assert producer.under_way == producer.sending.pressure.count == 0


def test_send_nowait_in_a_thread_says_what_to_use_there() -> None:
    async def scene() -> None:
        async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
            await producer.send(Message("tea", b"x"))
            with pytest.raises(ClientError, match=r"in threads, use Producer\.send_async"):
                await asyncio.to_thread(producer.send_nowait, Message("tea", b"y"))

    asyncio.run(scene())

"""Messages that threads hand to the loop: order, limits, callbacks, and what becomes of those that come too late."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import wait

import pytest

from kappamq.client.blocking.clients import Producer
from kappamq.client.blocking.loop_thread import loop_thread
from kappamq.errors import ClientClosed, IllegalMessage, TooManyRequests
from kappamq.message import Message, SendResult
from kappamq.protocol.codes import RequestCode
from tests.client.fake import FakeCluster, never
from tests.client.fake_thread import cluster
from tests.client.messages import Unreadable
from tests.waiting import eventually

__all__ = ["cluster"]

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def test_each_thread_keeps_its_order_per_key_and_nothing_is_lost(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(inflight_max=50)) as producer:

        def work(name: int) -> None:
            wait([producer.send_async(Message("tea", b"%d %d" % (name, n)), key=name) for n in range(200)], 30)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert producer.under_way == 0
    by_name = defaultdict(list)
    for body in (record.body for number in range(4) for record in cluster.broker.queues["tea", number]):
        name, number = body.split()
        by_name[name].append(int(number))
    assert by_name == {b"%d" % name: list(range(200)) for name in range(4)}
    assert cluster.broker.seen(BATCH), "what waits leaves together"


def test_a_callback_is_told_once_and_may_send(cluster: FakeCluster) -> None:
    told: list[tuple[bytes, SendResult | None, BaseException | None]] = []
    with Producer(**cluster.options()) as producer:

        def again(result: SendResult | None, error: BaseException | None) -> None:
            told.append((b"first", result, error))
            producer.send_callback(Message("tea", b"second"), lambda *what: told.append((b"second", *what)))

        producer.send_callback(Message("tea", b"first"), again)
        producer.send_callback(Message("tea", b""), lambda *what: told.append((b"empty", *what)))
        eventually(lambda: len(told) == 3)
        producer.flush()
    by_body = {body: (result, error) for body, result, error in told}
    assert by_body[b"first"][0] is not None
    assert by_body[b"second"][0] is not None
    assert isinstance(by_body[b"empty"][1], IllegalMessage)
    assert sorted(cluster.broker.stored("tea")) == [b"first", b"second"]


def test_a_callback_that_finds_no_room_is_refused_instead_of_stopping_the_loop(cluster: FakeCluster) -> None:
    refused: list[BaseException] = []
    settled = threading.Event()
    with Producer(**cluster.options(inflight_max=2)) as producer:
        producer.send(Message("tea", b"warm"))

        def again(_result: SendResult | None, _error: BaseException | None) -> None:
            try:  # its own room has been given back
                for _ in range(3):
                    producer.send_callback(Message("tea", b"more"), lambda *_: None)
            except TooManyRequests as error:
                refused.append(error)
            settled.set()

        producer.send_callback(Message("tea", b"first"), again)
        assert settled.wait(10)
        producer.flush()
    assert len(refused) == 1


def test_callbacks_that_send_at_the_limit_are_not_refused(cluster: FakeCluster) -> None:
    most, count = 20, 400
    refused: list[BaseException] = []
    stored: list[SendResult] = []
    with Producer(**cluster.options(inflight_max=most)) as producer:
        producer.send(Message("tea", b"warm"))

        def again(result: SendResult | None, _error: BaseException | None) -> None:
            if result is not None:
                stored.append(result)
            if len(stored) > count - most:
                return
            try:
                producer.send_callback(Message("tea", b"more"), again)
            except TooManyRequests as error:
                refused.append(error)

        for _ in range(most):
            producer.send_callback(Message("tea", b"first"), again)
        eventually(lambda: bool(refused) or len(stored) == count)
    assert not refused
    assert len(stored) == count


def test_a_flush_waits_for_what_was_handed_over_before(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(linger_ms=20_000)) as producer:
        producer.flush()  # nothing was ever sent
        futures = [producer.send_async(Message("tea", b"%d" % n), timeout=60) for n in range(20)]
        producer.flush()
        assert all(future.done() for future in futures)
        assert producer.under_way == 0


def test_a_message_that_cannot_be_read_is_refused_alone(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:
        producer.send(Message("tea", b"warm"))
        together = threading.Event()
        loop_thread().loop.call_soon_threadsafe(together.wait, 10)  # all of them in one burst
        messages = Message("tea", b"x"), Unreadable("tea", b"wrong"), Message("tea", b"y")
        good, bad, behind = [producer.send_async(message) for message in messages]
        together.set()
        assert good.result(10).ok
        with pytest.raises(RuntimeError, match="unreadable"):
            bad.result(10)
        assert behind.result(10).ok
        producer.flush()
        assert producer.under_way == 0
        assert producer._allowance._count == producer.inner.config.inflight_max


def test_closing_waits_and_what_comes_later_is_told_so(cluster: FakeCluster) -> None:
    producer = Producer(**cluster.options())
    futures = [producer.send_async(Message("tea", b"%d" % n)) for n in range(20)]
    producer.close()
    assert all(future.result(0).ok for future in futures)
    late = producer.send_async(Message("tea", b"late"))
    with pytest.raises(ClientClosed, match="create a new one"):
        late.result(10)
    told: list[BaseException | None] = []
    producer.send_callback(Message("tea", b"late"), lambda _, error: told.append(error))
    eventually(lambda: len(told) == 1)
    assert isinstance(told[0], ClientClosed)
    producer._allowance.take(0, 0)
    assert producer._allowance._count == producer.inner.config.inflight_max - 1, "what was refused takes no room"


def test_a_cancelled_future_keeps_its_message_from_being_sent(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(linger_ms=20_000)) as producer:
        kept, dropped = (producer.send_async(Message("tea", body), timeout=60) for body in (b"kept", b"dropped"))
        assert dropped.cancel()
        producer.flush()
        assert kept.result(10).ok
        assert cluster.broker.stored("tea") == [b"kept"]
        assert producer.under_way == 0


def test_what_is_larger_than_the_limit_of_bytes_goes_alone(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(inflight_bytes_max=10)) as producer:
        for _ in range(3):
            assert producer.send_async(Message("tea", b"x" * 100)).result(10).ok
        producer.flush()
        assert producer._allowance._size == 10


def test_full_limits_refuse_after_the_time_of_a_send(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(inflight_max=1)) as producer:
        producer.send(Message("tea", b"warm"))
        cluster.broker.script(SEND, never)
        stuck = producer.send_async(Message("tea", b"x"), timeout=0.3)
        with pytest.raises(TooManyRequests, match=r"none was answered within 0\.05 s"):
            producer.send_async(Message("tea", b"y"), timeout=0.05)
        with pytest.raises(Exception, match="may have been stored"):
            stuck.result(10)

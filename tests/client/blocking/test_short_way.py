"""Sends that a thread does by itself: when it may, what it does when something fails, and what others see of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kappamq.client.blocking import short_way
from kappamq.client.blocking.clients import Producer
from kappamq.client.blocking.loop_thread import loop_thread
from kappamq.errors import ClientClosed, ClientError, IllegalMessage, NotConnected, SendTimeout
from kappamq.message import Message, MessageQueue
from kappamq.net import line as lines
from kappamq.net.line import Line
from kappamq.protocol.codes import RequestCode, ResponseCode
from tests.client.fake import FakeCluster, hang_up, never
from tests.client.fake_thread import cluster
from tests.waiting import eventually

__all__ = ["cluster"]

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that have asked by themselves."""
    found: list[str] = []
    ask = Line.ask

    def noted(line: Line, *args: Any) -> Any:
        found.append(threading.current_thread().name)
        return ask(line, *args)

    monkeypatch.setattr(Line, "ask", noted)
    return found


def warm(producer: Producer) -> None:
    """Two sends go by the loop, then there are lines."""
    for _ in range(3):
        producer.send(Message("tea", b"warm"))


def test_a_thread_that_waits_sends_by_itself(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options(), group="shop") as producer:
        warm(producer)
        assert asked == [threading.current_thread().name]
        result = producer.send(Message("tea", b"x" * 5000, tags="new", keys="k", properties={"cups": "2"}))
        assert len(asked) == 2
    record = cluster.broker.queues["tea", result.queue.queue_id][result.queue_offset]
    assert record.property_map() == {
        "UNIQ_KEY": result.message_id,
        "TAGS": "new",
        "KEYS": "k",
        "cups": "2",
        "WAIT": "true",
    }
    assert len(record.body) < 5000, "large bodies are compressed"
    assert result.ok


@pytest.mark.parametrize("how", ["tls_off_trace", "latency", "selection"])
def test_where_threads_would_need_what_belongs_to_the_loop_all_goes_by_it(
    cluster: FakeCluster, asked: list[str], how: str
) -> None:
    class First:
        def choose(self, queues: Any, avoid: str | None = None) -> MessageQueue:
            return queues[0]  # type: ignore[no-any-return]

    options: dict[str, Any] = {
        "tls_off_trace": {"trace": True},
        "latency": {"latency_faults": True},
        "selection": {"selection": First()},
    }[how]
    with Producer(**cluster.options(), **options) as producer:
        warm(producer)
        assert producer.send(Message("tea", b"x")).ok
    assert not asked


def test_nothing_of_the_same_key_is_overtaken(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)
        asked.clear()
        for number in range(30):
            producer.send_async(Message("tea", b"%d a" % number), key="k")
            producer.send(Message("tea", b"%d b" % number), key="k")
        producer.flush()
        asked.clear()  # the short way was taken where the message before was answered already
        producer.send(Message("tea", b"last", sharding_key="k"))
        assert len(asked) == 1
    stored = [record.body for queue in cluster.broker.queues.values() for record in queue if record.body != b"warm"]
    assert stored == [b"%d %s" % (number, part) for number in range(30) for part in (b"a", b"b")] + [b"last"]


def test_several_threads_share_one_line_and_the_loop(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)

        def work(name: int) -> None:
            for n in range(50):
                assert producer.send(Message("tea", b"%d %d" % (name, n)), key=name).ok

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for name in range(4):
        own = [
            record.body
            for queue in cluster.broker.queues.values()
            for record in queue
            if record.body.startswith(b"%d " % name)
        ]
        assert own == [b"%d %d" % (name, n) for n in range(50)]


def test_a_lost_connection_is_tried_again_with_the_same_id(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)

        def store_and_die(peer: Any, frame: Any) -> None:
            cluster.broker.handle(peer, frame)
            peer.drop()

        cluster.broker.script(SEND, store_and_die)
        result = producer.send(Message("tea", b"twice"))
        records = [record for queue in cluster.broker.queues.values() for record in queue if record.body == b"twice"]
        assert [record.property_map()["UNIQ_KEY"] for record in records] == [result.message_id] * 2


def test_a_busy_broker_is_asked_again_and_a_refusal_is_an_error(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)
        cluster.broker.script(SEND, ResponseCode.SYSTEM_BUSY)
        assert producer.send(Message("tea", b"x")).ok
        cluster.broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(IllegalMessage):
            producer.send(Message("tea", b"y"))
        with pytest.raises(IllegalMessage, match="is empty"):
            producer.send(Message("tea", b""))
        with pytest.raises(IllegalMessage, match="but the given queue is"):
            producer.send(Message("tea", b"z"), queue=MessageQueue("coffee", "broker-0", 0))
        with pytest.raises(TypeError, match="message must be a Message"):
            producer.send(b"x")  # type: ignore[arg-type]


def test_silence_and_a_hung_up_keyed_send_say_what_is_known(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)
        cluster.broker.script(SEND, never)
        with pytest.raises(SendTimeout, match="may have been stored"):
            producer.send(Message("tea", b"x"), timeout=0.2)
        warm(producer)
        cluster.broker.script(SEND, hang_up, hang_up, hang_up, hang_up)
        with pytest.raises(Exception, match="may have been stored"):
            producer.send(Message("tea", b"x"), key="k", timeout=0.5)


def test_a_line_that_was_closed_while_idle_costs_nothing(cluster: FakeCluster, asked: list[str]) -> None:
    with Producer(**cluster.options(send_retries=0)) as producer:
        warm(producer)
        place = next(iter(producer._short_way._places.values()))
        assert place.line is not None
        place.line.close()
        assert producer.send(Message("tea", b"x")).ok


def test_a_line_that_nobody_uses_is_closed_without_another_send(
    cluster: FakeCluster, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_way, "LOOK_S", 0.01)
    with Producer(**cluster.options()) as producer:
        warm(producer)
        place = next(iter(producer._short_way._places.values()))
        line = place.line
        assert line is not None
        used = threading.Event()
        loop_thread().loop.call_soon_threadsafe(loop_thread().loop.call_later, 0.05, used.set)
        assert used.wait(10)
        assert place.line is line, "it was looked at, and may be used again"
        monkeypatch.setattr(lines, "IDLE_S", 0.0)
        eventually(lambda: place.line is None)
        assert not line.is_usable
        eventually(lambda: not producer._short_way._looking)
        monkeypatch.undo()
        assert producer.send(Message("tea", b"x")).ok
        assert place.line is not None


def test_closing_waits_for_a_send_and_later_ones_are_told(cluster: FakeCluster, asked: list[str]) -> None:
    producer = Producer(**cluster.options())
    warm(producer)
    release = threading.Event()
    results: list[Any] = []
    place = next(iter(producer._short_way._places.values()))
    assert place.line is not None
    ask = place.line.ask

    def held(*args: Any) -> Any:
        release.wait(10)
        return ask(*args)

    place.line.ask = held  # type: ignore[method-assign]
    sending = threading.Thread(target=lambda: results.append(producer.send(Message("tea", b"x"))))
    sending.start()
    eventually(place.lock.locked)
    closing = threading.Thread(target=producer.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    release.set()
    sending.join(10)
    closing.join(10)
    assert results[0].ok
    with pytest.raises(ClientClosed, match="create a new one"):
        producer.send(Message("tea", b"late"))


def test_closing_in_a_callback_is_refused_even_while_a_thread_waits_for_the_loop(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, closing = threading.Event(), threading.Event()
    ask = Line.ask

    def ask_and_break(line: Line, *args: Any) -> Any:
        ask(line, *args)
        stored.set()
        assert closing.wait(10)
        raise NotConnected("the connection broke")  # the loop has to go on with it

    with Producer(**cluster.options()) as producer:
        warm(producer)
        monkeypatch.setattr(Line, "ask", ask_and_break)
        results: list[Any] = []
        refused: list[BaseException | None] = []
        sending = threading.Thread(target=lambda: results.append(producer.send(Message("tea", b"x"))), daemon=True)
        sending.start()
        assert stored.wait(10)

        def close(*_: Any) -> None:
            closing.set()
            lock = next(iter(producer._short_way._places.values())).lock
            monkeypatch.setattr(Line, "ask", ask)
            assert lock.locked()
            try:
                producer.close()
            except ClientError as error:
                refused.append(error)
            else:
                refused.append(None)

        producer.send_callback(Message("tea", b"y"), close)
        sending.join(10)
        assert [str(error).partition(":")[0] for error in refused] == [
            "a blocking call from the client's own event loop would deadlock"
        ]
        assert results[0].ok
        assert producer.send(Message("tea", b"z")).ok, "it is still open"


@pytest.mark.parametrize("timeout", [0, -1, 1e-9])
def test_without_time_nothing_is_sent(cluster: FakeCluster, asked: list[str], timeout: float) -> None:
    with Producer(**cluster.options()) as producer:
        warm(producer)
        with pytest.raises(SendTimeout, match="nothing was sent"):
            producer.send(Message("tea", b"x"), timeout=timeout)
    assert b"x" not in cluster.broker.stored("tea")

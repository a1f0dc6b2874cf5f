"""Batches on their way: in order per queue, and sent again where that may help."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from kappamq.errors import IllegalMessage, NotConnected, TooManyRequests
from kappamq.message import Message, MessageQueue
from kappamq.spark import patience as module
from kappamq.spark.sink.outbox import IN_FLIGHT, Outbox, Parcel, Single

QUEUES = [MessageQueue("t", "b", number) for number in range(20)]


class FakeProducer:
    """Keeps what is sent; a send fails as often as it is told to."""

    def __init__(self) -> None:
        self.sent: list[Parcel | Single] = []
        self.open: dict[MessageQueue | None, list[Future[Any]]] = {}
        self.open_most = 0
        self.failures: list[Exception] = []
        self.full = 0

    def send_encoded_async(self, topic: str, body: bytes, *, queue: MessageQueue | None = None) -> Future[Any]:
        return self._take(Parcel(topic, body, queue, 1))

    def send_async(self, message: Message, *, queue: MessageQueue | None = None) -> Future[Any]:
        return self._take(Single(message, queue))

    def _take(self, parcel: Parcel | Single) -> Future[Any]:
        if self.full:
            self.full -= 1
            raise TooManyRequests("wait")
        lane = self.open.setdefault(parcel.queue, [])
        assert parcel.queue is None or not [one for one in lane if not one.done()], "one per queue"
        future: Future[Any] = Waited(self)
        lane.append(future)
        self.sent.append(parcel)
        self.open_most = max(self.open_most, self.under_way())
        return future

    def under_way(self) -> int:
        return sum(not one.done() for futures in self.open.values() for one in futures)


class Waited(Future[Any]):
    """Is done when somebody waits for it, and not before: the worst case."""

    def __init__(self, producer: FakeProducer) -> None:
        super().__init__()
        self._producer = producer

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            if self._producer.failures:
                self.set_exception(self._producer.failures.pop(0))
            else:
                self.set_result(None)
        return super().result(timeout)


def test_a_queue_has_one_on_its_way_and_all_together_a_few() -> None:
    producer = FakeProducer()
    outbox = Outbox(producer)  # type: ignore[arg-type]
    for number in range(200):
        outbox.send(Parcel("t", b"%d" % number, QUEUES[number % 20] if number % 3 else None, 1))
    outbox.close()
    assert [bytes_of(parcel) for parcel in producer.sent] == [b"%d" % number for number in range(200)]
    assert producer.open_most <= IN_FLIGHT


def bytes_of(parcel: Parcel | Single) -> bytes:
    return parcel.body if isinstance(parcel, Parcel) else parcel.message.body


def test_single_messages_go_in_a_window_of_their_own_size() -> None:
    producer = FakeProducer()
    outbox = Outbox(producer, in_flight=20)  # type: ignore[arg-type]
    for number in range(200):
        outbox.send(Single(Message("t", b"%d" % number), QUEUES[number % 20] if number % 3 else None))
    outbox.close()
    assert [bytes_of(parcel) for parcel in producer.sent] == [b"%d" % number for number in range(200)]
    assert IN_FLIGHT < producer.open_most <= 20


def test_what_may_pass_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    producer = FakeProducer()
    producer.failures = [NotConnected("away"), NotConnected("still away")]
    outbox = Outbox(producer)  # type: ignore[arg-type]
    outbox.send(Parcel("t", b"x", QUEUES[0], 1))
    outbox.send(Single(Message("t", b"y"), QUEUES[1]))
    outbox.close()
    assert [bytes_of(parcel) for parcel in producer.sent] == [b"x", b"y", b"x", b"x"]
    assert pauses == [0.1, 0.2]


def test_a_client_that_is_full_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    producer = FakeProducer()
    producer.full = 2
    outbox = Outbox(producer)  # type: ignore[arg-type]
    outbox.send(Single(Message("t", b"x"), None))
    outbox.close()
    assert [bytes_of(parcel) for parcel in producer.sent] == [b"x"]


def test_after_a_failure_nothing_is_left_on_its_way() -> None:
    producer = FakeProducer()
    outbox = Outbox(producer)  # type: ignore[arg-type]
    for queue in QUEUES[:5]:
        outbox.send(Parcel("t", b"x", queue, 1))
    producer.failures = [IllegalMessage("too large"), NotConnected("away")]
    with pytest.raises(IllegalMessage):
        outbox.close()
    outbox.settle()
    assert producer.under_way() == 0
    outbox.close()


def test_what_never_passes_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("it waited"))
    producer = FakeProducer()
    producer.failures = [IllegalMessage("too large")]
    outbox = Outbox(producer)  # type: ignore[arg-type]
    outbox.send(Parcel("t", b"x", None, 1))
    with pytest.raises(IllegalMessage, match="too large"):
        outbox.close()


def test_patience_ends() -> None:
    producer = FakeProducer()
    producer.failures = [NotConnected("away")]
    outbox = Outbox(producer, patience_s=0.0)  # type: ignore[arg-type]
    outbox.send(Parcel("t", b"x", None, 1))
    with pytest.raises(NotConnected, match="away"):
        outbox.close()

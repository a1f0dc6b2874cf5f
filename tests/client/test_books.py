"""kill -9 of a real broker while every way of sending is under way: what was sent, acknowledged and stored agrees."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from kappamq.client import Admin, Producer, PullConsumer
from kappamq.errors import KappaError
from kappamq.message import Message, SendResult
from tests.interop.targets import Target
from tests.waiting import eventually

Fresh = Callable[[str], str]

KILLS = 2
BETWEEN = 600
"""Acknowledged messages before each kill, and after the last."""
MAYBE = "may have been stored"


class Books:
    def __init__(self) -> None:
        self.acknowledged: dict[bytes, SendResult] = {}
        self.failed: dict[bytes, BaseException] = {}
        self.sent: set[bytes] = set()

    def told(self, body: bytes, result: SendResult | None, error: BaseException | None) -> None:
        assert body not in self.acknowledged, "told twice"
        assert body not in self.failed, "told twice"
        if result is not None:
            self.acknowledged[body] = result
        else:
            assert error is not None
            self.failed[body] = error


@pytest.mark.slow
def test_whatever_was_acknowledged_is_there_and_what_failed_is_absent_or_in_doubt(
    own_server: Target, fresh: Fresh
) -> None:
    name, books, stop = fresh("T"), Books(), threading.Event()
    with Admin(own_server.nameserver) as admin:
        admin.create_topic(name, queues=3)
    ended: list[str] = []
    with Producer(own_server.nameserver, group="shop", send_timeout_ms=3000, inflight_max=100) as producer:

        def sending(way: Callable[[bytes], object]) -> threading.Thread:
            def run() -> None:
                for number in itertools.count():
                    if stop.is_set():
                        break
                    body = b"%s %d" % (way.__name__.encode(), number)
                    books.sent.add(body)
                    try:
                        way(body)
                    except KappaError as error:  # no room within the time of a send, or the send itself
                        books.told(body, None, error)
                ended.append(way.__name__)

            thread = threading.Thread(target=run, name=way.__name__)
            thread.start()
            return thread

        def keyed(body: bytes) -> None:
            def done(future: Future[SendResult]) -> None:
                error = future.exception()
                books.told(body, None if error is not None else future.result(), error)

            producer.send_async(Message(name, body), key="k").add_done_callback(done)

        def anywhere(body: bytes) -> None:
            producer.send_callback(Message(name, body), lambda result, error: books.told(body, result, error))

        def waiting(body: bytes) -> None:
            books.told(body, producer.send(Message(name, body), key="w"), None)

        def alone(body: bytes) -> None:
            books.told(body, producer.send(Message(name, body, flag=1)), None)

        threads = [sending(way) for way in (keyed, anywhere, waiting, alone)]
        try:
            for number in range(KILLS + 1):
                enough = len(books.acknowledged) + BETWEEN
                eventually(lambda enough=enough: len(books.acknowledged) >= enough, timeout=60)  # type: ignore[misc]
                if number < KILLS:
                    own_server.kill()
                    own_server.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        producer.flush()
        assert producer.under_way == 0
    assert sorted(ended) == ["alone", "anywhere", "keyed", "waiting"]
    assert set(books.acknowledged) | set(books.failed) == books.sent
    places = stored(own_server, name)
    assert not set(places) - books.sent, "nothing is stored that nobody sent"
    for body, result in books.acknowledged.items():
        assert (result.queue.queue_id, result.queue_offset, result.message_id) in places.get(body, []), body
    for body, error in books.failed.items():
        known = " ".join([str(error), *getattr(error, "__notes__", [])])
        assert body not in places or MAYBE in known, f"{body!r} is stored, and its sender was told: {known}"
    for way in ("keyed", "waiting"):
        by_queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for body, result in books.acknowledged.items():
            if body.startswith(way.encode()):
                by_queue[result.queue.queue_id].append((int(body.split()[1]), result.queue_offset))
        for found in by_queue.values():
            offsets = [offset for _, offset in sorted(found)]
            assert offsets == sorted(offsets), f"{way}: messages of a key are in the order in which they were sent"


def stored(server: Target, topic: str) -> dict[bytes, list[tuple[int, int, str]]]:
    """Where each body is, with its id: queue and offset."""
    places: dict[bytes, list[tuple[int, int, str]]] = defaultdict(list)
    with PullConsumer(server.nameserver, group="books") as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                for message in result.messages:
                    places[message.body].append((queue.queue_id, message.queue_offset, message.message_id))
                offset = result.next_offset
    return places

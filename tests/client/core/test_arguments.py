"""Every public call refuses a value of the wrong type with a text that says what it takes: no riddles from deep inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kappamq.client import Admin, Consumer, LitePullConsumer, Producer, PullConsumer, TransactionProducer
from kappamq.client.core import arguments
from kappamq.errors import ConfigError
from kappamq.message import Message, MessageQueue
from kappamq.testing import BrokerKit

TEA = Message("tea", b"cup")
NAMESERVER = "127.0.0.1:9"  # nobody needs to answer: what is wrong is seen before anybody is asked


def test_the_text_names_the_argument_what_it_takes_and_what_it_got() -> None:
    with pytest.raises(TypeError, match=r"^queue is a MessageQueue, such as queues\(topic\) returns; got 99 \(int\)$"):
        arguments.queue(99)
    with pytest.raises(TypeError, match=r"got 'x{79}\.\.\. \(str\)$"):
        arguments.number("offset", "x" * 10_000)
    with pytest.raises(TypeError, match="True"):
        arguments.number("offset", True)
    with pytest.raises(ValueError, match="nan"):
        arguments.seconds("timeout", float("nan"))
    arguments.seconds("timeout", None)
    arguments.key(None)
    for good in ("a", 1, b"a"):
        arguments.key(good)


PRODUCING: list[tuple[Callable[[Any], object], str]] = [
    *[(lambda p, wrong=wrong: p.send(wrong), "message is a Message") for wrong in ("x", b"x", None, 5, [TEA])],
    (lambda p: p.send_oneway("x"), "message is a Message"),
    (lambda p: p.send_async("x"), "message is a Message"),
    (lambda p: p.request("x"), "message is a Message"),
    (lambda p: p.send(TEA, queue=99), "queue is a MessageQueue"),
    (lambda p: p.send_async(TEA, queue=99).result(30), "queue is a MessageQueue"),
    (lambda p: p.send_oneway(TEA, queue="tea"), "queue is a MessageQueue"),
    (lambda p: p.send_batch([TEA], queue=99), "queue is a MessageQueue"),
    *[(lambda p, wrong=wrong: p.send(TEA, key=wrong), "key is a text") for wrong in (1.5, [1], True)],
    *[
        (lambda p, wrong=wrong: p.send(TEA, timeout=wrong), "timeout is a number of seconds")
        for wrong in ("1", [1], True)
    ],
    (lambda p: p.request(TEA, timeout="1"), "timeout is a number of seconds"),
    (lambda p: p.send_batch(TEA), "a batch is a list of messages"),
    (lambda p: p.send_batch(None), "a batch is a list of messages"),
    (lambda p: p.send_batch([TEA, "x"]), "message is a Message"),
    (lambda p: list(p.in_batches(TEA)), "messages are several"),
    (lambda p: list(p.in_batches(["x"])), "message is a Message"),
    (lambda p: list(p.in_batches([TEA], "many")), "count_max is a whole number"),
    (lambda p: p.queues(5), "topic is a text"),
    (lambda p: p.recall(5), "what is recalled is the SendResult"),
    (lambda p: p.reply(TEA, b"x"), "request is the ReceivedMessage"),
]


@pytest.mark.parametrize(("call", "text"), PRODUCING)
def test_producers(call: Callable[[Any], object], text: str) -> None:
    with Producer(NAMESERVER) as producer, pytest.raises(TypeError, match=text):
        call(producer)


ADMINISTERING: list[tuple[Callable[[Any], object], str]] = [
    *[
        (
            lambda a, wrong=wrong: a.reset_offset("g", "tea", wrong),
            r"to is a datetime, or milliseconds since 1970 as int \(0: all messages\), or None for the end; got",
        )
        for wrong in ("first", "last", 1.5, True)
    ],
    (lambda a: a.create_topic(5), "the name of a topic is a text"),
    (lambda a: a.create_topic("tea", "4"), "queues is a whole number"),
    (lambda a: a.create_topic("tea", read_queues=1.5), "read_queues is a whole number"),
    (lambda a: a.resize_topic("tea", "4"), "queues is a whole number"),
    (lambda a: a.create_group(5), "group is a name"),
    (lambda a: a.delete_group(5), "group is a text"),
    (lambda a: a.consumer_progress(5), "group is a text"),
    (lambda a: a.clone_offsets("g", 5), "the name of a group is a text"),
    (lambda a: a.query_by_key("tea", 5), "key is a text"),
    (lambda a: a.query_by_id(5), "message_id is a text"),
    (lambda a: a.query_by_time("tea", "yesterday"), "a time is a datetime"),
    (lambda a: a.runtime_info(5), "broker is its name"),
]


@pytest.mark.parametrize(("call", "text"), ADMINISTERING)
def test_admins(call: Callable[[Any], object], text: str) -> None:
    with Admin(NAMESERVER) as admin, pytest.raises(TypeError, match=text):
        call(admin)


QUEUE = MessageQueue("tea", "broker-0", 0)
PULLING: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.pull(5), "queue is a MessageQueue"),
    (lambda c: c.pull(QUEUE, "0"), "offset is a whole number"),
    (lambda c: c.pull(QUEUE, 0, count="x"), "count is a whole number"),
    (lambda c: c.pull(QUEUE, 0, wait="x"), "wait is a number of seconds"),
    (lambda c: c.pull(QUEUE, 0, tags=5), "tags is a text"),
    (lambda c: c.seek(QUEUE, "x"), "offset is a whole number"),
    (lambda c: c.seek(5, 0), "queue is a MessageQueue"),
    (lambda c: c.commit(5), "queue is a MessageQueue"),
    (lambda c: c.commit(QUEUE, "x"), "offset is a whole number"),
    (lambda c: c.committed(5), "queue is a MessageQueue"),
    (lambda c: c.search(QUEUE, "x"), "a time is a datetime"),
    (lambda c: c.min_offset(5), "queue is a MessageQueue"),
    (lambda c: c.max_offset(5), "queue is a MessageQueue"),
    (lambda c: list(c.read(QUEUE, "x")), "start is a whole number"),
    (lambda c: list(c.read(QUEUE, 0, "x")), "stop is a whole number"),
    (lambda c: c.queues(5), "topic is a text"),
]


@pytest.mark.parametrize(("call", "text"), PULLING)
def test_pull_consumers(call: Callable[[Any], object], text: str) -> None:
    with PullConsumer(NAMESERVER, group="g") as consumer, pytest.raises(TypeError, match=text):
        call(consumer)


@pytest.fixture(scope="module")
def kit() -> Iterator[BrokerKit]:
    with BrokerKit() as broker:
        with broker.admin() as admin:
            admin.create_topic("tea")
        yield broker


CONSUMING: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.receive("x"), "timeout is a number of seconds"),
    (lambda c: c.poll("x"), "timeout is a number of seconds"),
    (lambda c: c.ack("x"), "message is a ReceivedMessage"),
    (lambda c: c.retry("x"), "message is a ReceivedMessage"),
    (lambda c: c.pause(5), "queues is a list of queues"),
    (lambda c: c.resume(["x"]), "queue is a MessageQueue"),
    (lambda c: c.close("x"), "drain is a number of seconds"),
]
POLLING: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.poll("x"), "timeout is a number of seconds"),
    (lambda c: c.poll(0, "x"), "count_max is a whole number"),
    (lambda c: c.seek(QUEUE, "x"), "offset is a whole number"),
    (lambda c: c.seek("x", 0), "queue is a MessageQueue"),
    (lambda c: c.seek_to_time(QUEUE, "x"), "a time is a datetime"),
    (lambda c: c.commit(5), "offsets is a mapping"),
    (lambda c: c.commit({QUEUE: "x"}), "offset is a whole number"),
    (lambda c: c.commit({"q": 1}), "queue is a MessageQueue"),
]


def test_members_of_a_group(kit: BrokerKit) -> None:
    with Consumer(kit.nameserver, group="g", topics="tea") as consumer:
        for call, text in CONSUMING:
            with pytest.raises(TypeError, match=text):
                call(consumer)
    with LitePullConsumer(kit.nameserver, group="lite", topics="tea") as reader:
        for call, text in POLLING:
            with pytest.raises(TypeError, match=text):
                call(reader)
    with LitePullConsumer(kit.nameserver, group="lite") as reader:
        for wrong, text in ((5, "queues is a list of queues"), (["x"], "queue is a MessageQueue")):
            with pytest.raises(TypeError, match=text):
                reader.assign(wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"group": 5}, TypeError, "the name of a group is a text"),
        ({"topics": 5}, ConfigError, "topics is a text"),
        ({"topics": [5]}, TypeError, "the name of a topic is a text"),
        ({"idle_timeout": "x"}, TypeError, "idle_timeout is a number of seconds"),
        ({"nameserver": 5}, ConfigError, "nameserver is host:port"),
        ({"config": 5}, ConfigError, "config is a ClientConfig"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, LitePullConsumer])
def test_making_a_consumer(kind: Any, wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(**{"nameserver": NAMESERVER, "group": "g", "topics": "tea", **wrong})


def test_making_a_transaction_producer() -> None:
    with pytest.raises(ConfigError, match="check is a function"):
        TransactionProducer(NAMESERVER, group="g", check=5)  # type: ignore[arg-type]

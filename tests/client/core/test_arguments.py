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
    with pytest.raises(
        TypeError, match=r"^queue must be a MessageQueue, such as queues\(topic\) returns; got 99 \(int\)$"
    ):
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
    *[(lambda p, wrong=wrong: p.send(wrong), "message must be a Message") for wrong in ("x", b"x", None, 5, [TEA])],
    (lambda p: p.send_oneway("x"), "message must be a Message"),
    (lambda p: p.send_async("x"), "message must be a Message"),
    (lambda p: p.request("x"), "message must be a Message"),
    (lambda p: p.send(TEA, queue=99), "queue must be a MessageQueue"),
    (lambda p: p.send_async(TEA, queue=99).result(30), "queue must be a MessageQueue"),
    (lambda p: p.send_oneway(TEA, queue="tea"), "queue must be a MessageQueue"),
    (lambda p: p.send_batch([TEA], queue=99), "queue must be a MessageQueue"),
    *[(lambda p, wrong=wrong: p.send(TEA, key=wrong), "key must be a str") for wrong in (1.5, [1], True)],
    *[
        (lambda p, wrong=wrong: p.send(TEA, timeout=wrong), "timeout must be a number of seconds")
        for wrong in ("1", [1], True)
    ],
    (lambda p: p.request(TEA, timeout="1"), "timeout must be a number of seconds"),
    (lambda p: p.send_batch(TEA), "a batch must be a list of messages"),
    (lambda p: p.send_batch(None), "a batch must be a list of messages"),
    (lambda p: p.send_batch([TEA, "x"]), "message must be a Message"),
    (lambda p: list(p.in_batches(TEA)), "messages must be an iterable of messages"),
    (lambda p: list(p.in_batches(["x"])), "message must be a Message"),
    (lambda p: list(p.in_batches([TEA], "many")), "count_max must be an int"),
    (lambda p: p.queues(5), "topic must be a str"),
    (lambda p: p.recall(5), "sent must be the SendResult"),
    (lambda p: p.reply(TEA, b"x"), "request must be the ReceivedMessage"),
]


@pytest.mark.parametrize(("call", "text"), PRODUCING)
def test_producers(call: Callable[[Any], object], text: str) -> None:
    with Producer(NAMESERVER) as producer, pytest.raises(TypeError, match=text):
        call(producer)


ADMINISTERING: list[tuple[Callable[[Any], object], str]] = [
    *[
        (
            lambda a, wrong=wrong: a.reset_offset("g", "tea", wrong),
            r"to must be a datetime, or milliseconds since 1970 as int \(0: all messages\), or None for the end; got",
        )
        for wrong in ("first", "last", 1.5, True)
    ],
    (lambda a: a.create_topic(5), "the name of a topic must be a str"),
    (lambda a: a.create_topic("tea", "4"), "queues must be an int"),
    (lambda a: a.create_topic("tea", read_queues=1.5), "read_queues must be an int"),
    (lambda a: a.resize_topic("tea", "4"), "queues must be an int"),
    (lambda a: a.create_group(5), "group must be a name"),
    (lambda a: a.delete_group(5), "group must be a str"),
    (lambda a: a.consumer_progress(5), "group must be a str"),
    (lambda a: a.clone_offsets("g", 5), "the name of a group must be a str"),
    (lambda a: a.query_by_key("tea", 5), "key must be a str"),
    (lambda a: a.query_by_id(5), "message_id must be a str"),
    (lambda a: a.query_by_time("tea", "yesterday"), "a time must be a datetime"),
    (lambda a: a.runtime_info(5), "broker must be a name"),
]


@pytest.mark.parametrize(("call", "text"), ADMINISTERING)
def test_admins(call: Callable[[Any], object], text: str) -> None:
    with Admin(NAMESERVER) as admin, pytest.raises(TypeError, match=text):
        call(admin)


QUEUE = MessageQueue("tea", "broker-0", 0)
PULLING: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.pull(5), "queue must be a MessageQueue"),
    (lambda c: c.pull(QUEUE, "0"), "offset must be an int"),
    (lambda c: c.pull(QUEUE, 0, count="x"), "count must be an int"),
    (lambda c: c.pull(QUEUE, 0, wait="x"), "wait must be a number of seconds"),
    (lambda c: c.pull(QUEUE, 0, tags=5), "tags must be a str"),
    (lambda c: c.seek(QUEUE, "x"), "offset must be an int"),
    (lambda c: c.seek(5, 0), "queue must be a MessageQueue"),
    (lambda c: c.commit(5), "queue must be a MessageQueue"),
    (lambda c: c.commit(QUEUE, "x"), "offset must be an int"),
    (lambda c: c.committed(5), "queue must be a MessageQueue"),
    (lambda c: c.search(QUEUE, "x"), "a time must be a datetime"),
    (lambda c: c.min_offset(5), "queue must be a MessageQueue"),
    (lambda c: c.max_offset(5), "queue must be a MessageQueue"),
    (lambda c: list(c.read(QUEUE, "x")), "start must be an int"),
    (lambda c: list(c.read(QUEUE, 0, "x")), "stop must be an int"),
    (lambda c: c.queues(5), "topic must be a str"),
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
    (lambda c: c.receive("x"), "timeout must be a number of seconds"),
    (lambda c: c.poll("x"), "timeout must be a number of seconds"),
    (lambda c: c.ack("x"), "message must be a ReceivedMessage"),
    (lambda c: c.retry("x"), "message must be a ReceivedMessage"),
    (lambda c: c.pause(5), "queues must be a list of queues"),
    (lambda c: c.resume(["x"]), "queue must be a MessageQueue"),
    (lambda c: c.close("x"), "drain must be a number of seconds"),
]
POLLING: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.poll("x"), "timeout must be a number of seconds"),
    (lambda c: c.poll(0, "x"), "count_max must be an int"),
    (lambda c: c.seek(QUEUE, "x"), "offset must be an int"),
    (lambda c: c.seek("x", 0), "queue must be a MessageQueue"),
    (lambda c: c.seek_to_time(QUEUE, "x"), "a time must be a datetime"),
    (lambda c: c.commit(5), "offsets must be a mapping"),
    (lambda c: c.commit({QUEUE: "x"}), "offset must be an int"),
    (lambda c: c.commit({"q": 1}), "queue must be a MessageQueue"),
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
        for wrong, text in ((5, "queues must be a list of queues"), (["x"], "queue must be a MessageQueue")):
            with pytest.raises(TypeError, match=text):
                reader.assign(wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"group": 5}, TypeError, "the name of a group must be a str"),
        ({"topics": 5}, ConfigError, "topics must be a string"),
        ({"topics": [5]}, TypeError, "the name of a topic must be a str"),
        ({"idle_timeout": "x"}, TypeError, "idle_timeout must be a number of seconds"),
        ({"nameserver": 5}, ConfigError, "nameserver must be host:port"),
        ({"config": 5}, ConfigError, "config must be a ClientConfig"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, LitePullConsumer])
def test_making_a_consumer(kind: Any, wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(**{"nameserver": NAMESERVER, "group": "g", "topics": "tea", **wrong})


def test_making_a_transaction_producer() -> None:
    with pytest.raises(ConfigError, match="check must be a function"):
        TransactionProducer(NAMESERVER, group="g", check=5)  # type: ignore[arg-type]

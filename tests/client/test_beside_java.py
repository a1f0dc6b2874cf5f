"""Our client and the official Java client on one broker, on one topic, in one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kappamq.client import Admin, Consumer, Producer, PullConsumer
from kappamq.message import Message, ReceivedMessage
from tests.interop import jars
from tests.interop.probe import JsonLines, java_probe
from tests.interop.targets import Target
from tests.needs import needs
from tests.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300), needs("maven")]


@pytest.fixture(scope="module")
def java(server: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonLines]:
    with java_probe(jars.CLIENT_5, server.nameserver, tmp_path_factory.mktemp("java"), "beside") as probe:
        yield probe


@pytest.fixture
def topic(server: Target, fresh: Callable[[str], str]) -> str:
    name = fresh("J")
    with Admin(server.nameserver) as admin:
        admin.create_topic(name, queues=4)
    return name


def test_java_reads_what_we_write(server: Target, java: JsonLines, topic: str) -> None:
    large = bytes(ord("a") + n % 23 for n in range(20_000))  # the pattern that the probe checks
    with Producer(server.nameserver) as producer:
        sent = [producer.send(Message(topic, b"plain", tags="a", keys=("k1", "k2"), properties={"p": "q"}))]
        sent += producer.send_batch([Message(topic, b"batch %d" % n) for n in range(3)])
        for kind in ("zlib", "lz4", "zstd"):
            with Producer(server.nameserver, compress_kind=kind) as packing:
                sent.append(packing.send(Message(topic, large)))
    received = {message["msgId"]: message for message in java("pull", topic=topic)}
    assert set(received) == {result.message_id for result in sent}
    plain = received[sent[0].message_id]
    assert (plain["tags"], plain["keys"], plain["body"]) == ("a", "k1 k2", "plain")
    assert [received[result.message_id]["body"] for result in sent[1:4]] == ["batch 0", "batch 1", "batch 2"]
    for result in sent[4:]:
        packed = received[result.message_id]
        assert (packed["size"], packed["patternIntact"]) == (20_000, True)
        assert packed["storeSize"] < 5_000


def test_we_read_what_java_writes(server: Target, java: JsonLines, topic: str) -> None:
    messages = [{"body": f"from java {n}", "tags": "j", "keys": f"key-{n}"} for n in range(10)]
    java("send", topic=topic, mode="sync", messages=messages)
    java("send", topic=topic, mode="batch", messages=[{"body": "big" * 3000}, {"body": "b"}])
    with PullConsumer(server.nameserver, group="beside") as consumer:

        def received() -> list[ReceivedMessage]:
            return [m for queue in consumer.queues(topic) for m in consumer.read(queue, 0)]

        eventually(lambda: len(received()) == 12)
        bodies = sorted(message.text for message in received())
    assert bodies == sorted([*(message["body"] for message in messages), "big" * 3000, "b"])


def test_both_share_one_group(server: Target, java: JsonLines, topic: str, fresh: Callable[[str], str]) -> None:
    group, ours, theirs = fresh("G"), set[str](), set[str]()
    sent: set[str] = set()

    def share() -> int:
        return sum(queue.topic == topic for queue in consumer.assigned)

    def everything_came() -> bool:
        theirs.update(message["body"] for message in java("push_got", id=group, count=1, millis=100))
        return ours | theirs == sent

    java("push_start", topic=topic, group=group)
    consumer = Consumer(
        server.nameserver,
        group=group,
        topics=topic,
        consume_from="first",
        listener=lambda message: ours.add(message.text),
    )
    with Producer(server.nameserver) as producer, consumer:
        eventually(lambda: share() == 2, timeout=60, text="two queues for us, two for Java")
        for queue in producer.queues(topic) * 10:
            text = f"shared {len(sent)}"
            sent.add(text)
            producer.send(Message(topic, text.encode()), queue=queue)
        eventually(everything_came, timeout=60)
        assert len(ours) >= 20
        assert len(theirs) >= 20
        java("push_stop", id=group)
        eventually(lambda: share() == 4, timeout=60, text="all queues for us")
        for queue in producer.queues(topic):
            text = f"ours alone {len(sent)}"
            sent.add(text)
            producer.send(Message(topic, text.encode()), queue=queue)
        eventually(lambda: ours | theirs == sent, timeout=60)

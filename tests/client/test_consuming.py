"""Consumers of every kind with a real broker in this process, whose message time a test can turn forward."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq import (
    RETRY,
    Admin,
    Consumer,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    Redeliver,
    errors,
)
from kappamq.client.core.core import ClientCore
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetConsumerStatusByBroker
from kappamq.protocol.headers.client import ConsumeDirectly, GetRunningInfo
from kappamq.protocol.headers.header import Header
from kappamq.testing import BrokerKit
from tests.waiting import eventually

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kit() -> Iterator[BrokerKit]:
    with BrokerKit() as running:
        yield running


@pytest.fixture(scope="module")
def admin(kit: BrokerKit) -> Iterator[Admin]:
    with kit.admin() as made:
        yield made


@pytest.fixture(scope="module")
def producer(kit: BrokerKit) -> Iterator[Producer]:
    with kit.producer() as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"G{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"T{next(_numbers)}"
    admin.create_topic(name, queues=2)
    return name


def consumer(kit: BrokerKit, group: str, topic: str, **options: Any) -> Consumer:
    given = {"consume_from": "first", "commit_ms": 100, "rebalance_ms": 500, **options}
    return kit.consumer(group=group, topics=topic, **given)


def send(producer: Producer, topic: str, *bodies: bytes, queue: int = 0) -> None:
    chosen = producer.queues(topic)[queue]
    for body in bodies:
        producer.send(Message(topic, body), queue=chosen)


class Noted:
    """A listener that remembers what it got, and says to each body what it was told to."""

    def __init__(self, **answers: Any) -> None:
        self.seen: list[tuple[bytes, int, str]] = []
        self._answers = {body.encode(): answer for body, answer in answers.items()}

    def __call__(self, message: ReceivedMessage) -> Any:
        self.seen.append((message.body, message.reconsume_times, message.topic))
        answer = self._answers.get(message.body)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def times(self, body: bytes) -> list[int]:
        return [times for seen, times, _ in self.seen if seen == body]


# --- side by side ---


def test_what_fails_comes_again_later_and_later_and_ends_as_a_dead_letter(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    noted = Noted(bad=ValueError("spilled"), worse=RETRY)
    send(producer, topic, b"bad", b"good", b"worse")
    with consumer(kit, group, topic, listener=noted, reconsume_max=2):
        eventually(lambda: len(noted.seen) == 3)
        for number, pause in enumerate(("10s", "30s"), 1):
            kit.clock.advance(pause)
            eventually(lambda n=number: noted.times(b"bad") == noted.times(b"worse") == list(range(n + 1)))
        eventually(lambda: sorted(kit.bodies(f"%DLQ%{group}")) == [b"bad", b"worse"])
    assert noted.times(b"good") == [0]
    assert {name for _, _, name in noted.seen} == {topic}  # not the retry topic


def test_a_listener_chooses_the_delay_or_the_dead_letters(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    noted = Noted(soon=Redeliver(level=1), dead=Redeliver(level=-1))
    send(producer, topic, b"soon", b"dead")
    with consumer(kit, group, topic, listener=noted):
        eventually(lambda: kit.bodies(f"%DLQ%{group}") == [b"dead"])
        eventually(lambda: len(noted.seen) == 2)
        kit.clock.advance("1s")
        eventually(lambda: noted.times(b"soon") == [0, 1])
    assert noted.times(b"dead") == [0]


def test_of_a_list_only_the_rest_comes_again(kit: BrokerKit, producer: Producer, group: str, topic: str) -> None:
    lists: list[list[bytes]] = []

    def listen(messages: list[ReceivedMessage]) -> Redeliver | None:
        lists.append([message.body for message in messages])
        return Redeliver(done=2, level=1) if len(messages) > 2 else None

    send(producer, topic, b"1", b"2", b"3", b"4")
    with consumer(kit, group, topic, listener=listen, consume_batch=10):
        eventually(lambda: len(lists) == 1)
        kit.clock.advance("1s")
        eventually(lambda: sorted(itertools.chain(*lists[1:])) == [b"3", b"4"])
    assert lists[0] == [b"1", b"2", b"3", b"4"]


def test_a_listener_that_hangs_is_given_up_and_others_do_not_notice(
    kit: BrokerKit, admin: Admin, producer: Producer, group: str, topic: str
) -> None:
    release, seen = threading.Event(), Counter[bytes]()

    def listen(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        if message.body == b"hang":
            release.wait(30)

    send(producer, topic, b"hang", *(b"%d" % n for n in range(20)))
    options: dict[str, Any] = {"consume_from": "first", "listener": listen, "config": kit.client_config}
    hanging = Consumer(group=group, topics=topic, consume_threads=1, consume_timeout_ms=2000, commit_ms=50, **options)
    with hanging as reader:
        eventually(lambda: len(seen) == 21)
        # Given back: nothing holds the offset any more, and the broker has it in the retry topic.
        eventually(lambda: all(reader.positions[queue] in (0, 21) for queue in reader.assigned if queue.topic == topic))
        progress = eventually(lambda: [o for o in admin.consumer_progress(group, topic).values() if o.consumer_offset])
        assert progress[0].consumer_offset == 21
        release.set()
    kit.clock.advance("10s")
    assert kit.bodies(f"%RETRY%{group}") == [b"hang"]


# --- in order ---


def test_in_order_a_failure_stops_its_queue_and_only_that(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    seen: list[tuple[int, bytes, int]] = []

    def listen(message: ReceivedMessage) -> Redeliver | None:
        seen.append((message.queue.queue_id, message.body, message.reconsume_times))
        return RETRY if message.body == b"2" and message.queue.queue_id == 0 and message.reconsume_times < 3 else None

    for queue in (0, 1):
        send(producer, topic, *(b"%d" % n for n in range(5)), queue=queue)
    with consumer(kit, group, topic, listener=listen, ordered=True, suspend_ms=30):
        eventually(lambda: len(seen) == 13)
    first = [(body, times) for queue, body, times in seen if queue == 0]
    tries = [(b"2", times) for times in range(4)]
    assert first == [(b"0", 0), (b"1", 0), *tries, (b"3", 0), (b"4", 0)]
    assert [body for queue, body, _ in seen if queue == 1] == [b"0", b"1", b"2", b"3", b"4"]


def test_in_order_too_many_failures_end_as_a_dead_letter(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    noted = Noted(bad=RuntimeError("spilled"))
    send(producer, topic, b"first", b"bad", b"last")
    with consumer(kit, group, topic, listener=noted, ordered=True, suspend_ms=10, reconsume_max=2):
        eventually(lambda: noted.times(b"last") == [0])
        eventually(lambda: kit.bodies(f"%DLQ%{group}") == [b"bad"])
    assert [body for body, _, _ in noted.seen] == [b"first", b"bad", b"bad", b"bad", b"last"]


def test_in_order_the_next_owner_begins_when_the_last_one_has_finished(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    begun, release, events = threading.Event(), threading.Event(), []

    def slow(message: ReceivedMessage) -> None:
        events.append(("ann begins", message.queue.queue_id, message.body))
        if message.body == b"1":
            begun.set()
            release.wait(20)
        events.append(("ann ends", message.queue.queue_id, message.body))

    def quick(message: ReceivedMessage) -> None:
        events.append(("bob", message.queue.queue_id, message.body))

    for queue in (0, 1):
        send(producer, topic, *(b"%d" % n for n in range(4)), queue=queue)
    given: dict[str, Any] = {"consume_from": "first", "ordered": True, "rebalance_ms": 200, "config": kit.client_config}
    with Consumer(group=group, topics=topic, listener=slow, **given) as ann:
        assert begun.wait(10)
        with Consumer(group=group, topics=topic, listener=quick, **given) as bob:
            # Ann has left a queue to Bob, but works on a message of it: he must wait.
            eventually(lambda: sum(queue.topic == topic for queue in ann.assigned) == 1)
            assert [event for event in events if event[0] == "bob"] == []
            release.set()
            eventually(lambda: sum(event[0] != "ann begins" for event in events) == 8)
            assert sum(queue.topic == topic for queue in bob.assigned) == 1
    for queue in (0, 1):
        bodies = [body for who, of, body in events if of == queue and who != "ann begins"]
        assert bodies == [b"0", b"1", b"2", b"3"]


# --- broadcasting ---


def test_everybody_gets_a_broadcast_once_and_goes_on_where_it_was(
    kit: BrokerKit, producer: Producer, group: str, topic: str, tmp_path: Path
) -> None:
    seen = {name: Counter[bytes]() for name in ("ann", "bob")}

    def member(name: str) -> Consumer:
        def listen(message: ReceivedMessage) -> None:
            seen[name][message.body] += 1
            if message.body == b"1":
                raise ValueError("let it go")

        return Consumer(
            group=group,
            topics=topic,
            listener=listen,
            broadcasting=True,
            consume_from="first",
            config=kit.client_config,
            instance=name,
            offsets_dir=tmp_path,
        )

    send(producer, topic, *(b"%d" % n for n in range(5)))
    with member("ann"), member("bob"):
        eventually(lambda: all(len(counted) == 5 for counted in seen.values()))
    send(producer, topic, b"5")
    with member("ann"):
        eventually(lambda: seen["ann"][b"5"] == 1)
    assert [set(counted.values()) for counted in seen.values()] == [{1}, {1}]
    assert len(seen["bob"]) == 5
    assert kit.bodies(f"%RETRY%{group}") == []
    assert sorted(path.parent.parent.name.partition("@")[2] for path in tmp_path.rglob("offsets.json")) == [
        "ann",
        "bob",
    ]


def test_two_broadcasting_consumers_of_one_name_are_told_to_take_two(
    kit: BrokerKit, group: str, topic: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"group": group, "topics": topic, "broadcasting": True, "offsets_dir": tmp_path}
    with Consumer(config=kit.client_config, **options):
        second = Consumer(config=kit.client_config, **options)
        with pytest.raises(errors.ConfigError, match="give each its own `instance`"):
            second.start()
    with Consumer(config=kit.client_config, **options):
        pass  # the first one has left


# --- where to start, and back again ---


# As in RocketMQ a new group is given all of a topic that is still young and small, even if it asks for the end: whoever
# starts a little later than the first producer misses nothing. Elsewhere "last" is the end, see test_offsets.py.
@pytest.mark.parametrize(("start", "expected"), [("first", 5), ("last", 5), ("time", 3)])
def test_a_new_group_begins_where_it_is_told(
    kit: BrokerKit, producer: Producer, group: str, topic: str, start: str, expected: int
) -> None:
    send(producer, topic, b"0", b"1")
    kit.clock.advance("1h")
    moment = kit.clock.message_ms()
    send(producer, topic, b"2", b"3", b"4")
    where: Any = moment if start == "time" else start
    bodies: list[bytes] = []
    with LitePullConsumer(group=group, topics=topic, consume_from=where, config=kit.client_config) as reader:
        while len(bodies) < expected:
            messages = reader.poll(10)
            assert messages, f"only {bodies} came"
            bodies += [message.body for message in messages]
    assert bodies == [b"%d" % n for n in range(5 - expected, 5)]


def test_a_reset_reaches_consumers_that_are_connected(
    kit: BrokerKit, admin: Admin, producer: Producer, group: str, topic: str
) -> None:
    seen = Counter[bytes]()
    send(producer, topic, b"0", b"1")
    kit.clock.advance("1h")
    moment = kit.clock.message_ms()
    send(producer, topic, b"2", b"3")
    with consumer(kit, group, topic, listener=lambda message: seen.update([message.body])):
        eventually(lambda: len(seen) == 4)
        admin.reset_offset(group, topic, moment)
        eventually(lambda: seen == {b"0": 1, b"1": 1, b"2": 2, b"3": 2})
        send(producer, topic, b"4")
        eventually(lambda: seen[b"4"] == 1)
    progress = admin.consumer_progress(group, topic)
    assert max(offset.consumer_offset for offset in progress.values()) == 5


# --- several topics, changes at run time ---


def test_topics_come_and_go_while_it_runs(
    kit: BrokerKit, admin: Admin, producer: Producer, group: str, topic: str
) -> None:
    other = f"{topic}_other"
    admin.create_topic(other, queues=1)
    noted = Noted()
    send(producer, topic, b"a")
    send(producer, other, b"b")
    with consumer(kit, group, topic, listener=noted) as reader:
        eventually(lambda: noted.times(b"a") == [0])
        reader.subscribe(other, "*")
        eventually(lambda: noted.times(b"b") == [0])
        reader.unsubscribe(topic)
        eventually(lambda: topic not in {queue.topic for queue in reader.assigned})
        eventually(lambda: set(admin.consumers(group).subscriptions) == {other, f"%RETRY%{group}"})
        send(producer, topic, b"unheard")
        send(producer, other, b"c")
        eventually(lambda: noted.times(b"c") == [0])
    assert noted.times(b"unheard") == []


def test_nobody_is_disturbed_by_a_topic_that_does_not_exist(
    kit: BrokerKit, producer: Producer, group: str, topic: str
) -> None:
    noted = Noted()
    send(producer, topic, b"a")
    with kit.consumer(group=group, topics=[topic, "not_there_at_all"], consume_from="first", listener=noted):
        eventually(lambda: noted.times(b"a") == [0])


# --- what administrators ask ---


def ask(admin: Admin, kit: BrokerKit, header: Header) -> Frame:
    async def asked() -> Frame:
        core: ClientCore = admin.inner.start()
        return await core.ask(kit.address, header)

    return admin._run(asked())


def test_administrators_ask_through_the_broker(
    kit: BrokerKit, admin: Admin, producer: Producer, group: str, topic: str
) -> None:
    noted = Noted()
    result = producer.send(Message(topic, b"cup"), queue=producer.queues(topic)[0])
    with consumer(kit, group, topic, listener=noted, ordered=True):
        eventually(lambda: len(noted.seen) == 1)
        (connection,) = admin.consumers(group).connections
        queue: MessageQueue = result.queue
        header = GetRunningInfo(consumer_group=group, client_id=connection.client_id, stack=True)
        info = ConsumerRunningInfo.decode(ask(admin, kit, header).body)
        assert info.properties["PROP_CONSUMEORDERLY"] == "true"
        eventually(lambda: ConsumerRunningInfo.decode(ask(admin, kit, header).body).queues[queue].commit_offset == 1)
        assert info.queues[queue].locked
        assert f"kappamq-{group}" in (info.stack or "")
        status = ask(admin, kit, GetConsumerStatusByBroker(topic=topic, group=group))
        assert ConsumerStatus.decode(status.body).clients[connection.client_id][queue] == 1
        direct = ConsumeDirectly(
            consumer_group=group, client_id=connection.client_id, message_id=result.offset_id, topic=topic
        )
        told = ConsumeDirectlyResult.decode(ask(admin, kit, direct).body)
        assert (told.result, told.order) == ("CR_SUCCESS", True)
        assert [body for body, _, _ in noted.seen] == [b"cup", b"cup"]

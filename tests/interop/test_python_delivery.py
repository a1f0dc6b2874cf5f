"""Our Python client, the same scenarios with our broker and with Apache's: filters, failures, order, delays, replies, traces."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kappamq import (
    Admin,
    Consumer,
    Decision,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Redeliver,
    TransactionProducer,
    errors,
    replying,
    sql,
)
from tests.interop import targets
from tests.waiting import eventually

ROUGH_MS = 2500  # how late a delayed message may be on a busy machine


@pytest.fixture(scope="module", params=["kappamq", "apache"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[targets.Target]:
    started = targets.KINDS[request.param](tmp_path_factory.mktemp(request.param), properties=targets.FEATURES)
    try:
        yield started.start()
    finally:
        started.kill()


@pytest.fixture
def topic(server: targets.Target, topic: str) -> str:
    with Admin(server.nameserver) as admin:
        admin.create_topic(topic, queues=4)
    return topic


class Heard:
    """A listener that keeps what it is given; `verdict` says what it returns for each message."""

    def __init__(self, verdict: Callable[[ReceivedMessage], Redeliver | None] = lambda message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.times_ms: list[int] = []
        self._verdict = verdict
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> Redeliver | None:
        with self._lock:
            self.messages.append(message)
            self.times_ms.append(time.time_ns() // 1_000_000)
            return self._verdict(message)

    def wait(self, count: int, timeout: float = 30) -> list[ReceivedMessage]:
        eventually(
            lambda: len(self.messages) >= count, timeout=timeout, text=f"{count} messages, not {len(self.messages)}"
        )
        assert len(self.messages) == count, [message.body for message in self.messages]
        return self.messages

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]


def test_filter_by_sql(server: targets.Target, topic: str) -> None:
    with Producer(server.nameserver, group=f"P_{topic}") as producer:
        for n in range(20):
            properties = {"price": str(n), "country": ["PE", "DE"][n % 2]}
            producer.send(Message(topic, b"%d" % n, properties=properties, tags="even" if n % 2 == 0 else "odd"))
        producer.send(Message(topic, b"nothing"))
        heard = Heard()
        wanted = {topic: sql("price BETWEEN 5 AND 8 OR price IS NULL")}
        with Consumer(server.nameserver, group=f"G_{topic}", topics=wanted, listener=heard, consume_from="first"):
            assert sorted(m.text for m in heard.wait(5)) == ["5", "6", "7", "8", "nothing"]
            producer.send(Message(topic, b"no", properties={"price": "9"}))
            producer.send(Message(topic, b"yes", properties={"price": "7"}))
            assert heard.wait(6)[5].text == "yes"
    with PullConsumer(server.nameserver, group=f"L_{topic}") as puller:
        found = [
            message.text
            for queue in puller.queues(topic)
            for message in puller.read(queue, 0, tags=sql("TAGS = 'odd' AND price > 14 AND country = 'DE'"))
        ]
    assert sorted(found) == ["15", "17", "19"]
    with pytest.raises(errors.SubscriptionInvalid):
        Consumer(server.nameserver, group=f"B_{topic}", topics={topic: sql("price > 'ten'")}).start()


def test_what_fails_comes_again_and_ends_as_a_dead_letter(server: targets.Target, topic: str) -> None:
    seen = itertools.count()
    heard = Heard(lambda m: Redeliver(level=1) if m.text == "bad" and next(seen) < 2 else None)
    with Producer(server.nameserver, group=f"P_{topic}") as producer:
        producer.send(Message(topic, b"good"))
        sent = producer.send(Message(topic, b"bad", keys="k", tags="T", properties={"a": "b"}))
        producer.send(Message(topic, b"hopeless", keys="h"))
    with Consumer(server.nameserver, group=f"G_{topic}", topics={topic: "*"}, listener=heard, consume_from="first"):
        heard.wait(5)
    bad = [(m, at) for m, at in zip(heard.messages, heard.times_ms, strict=True) if m.text == "bad"]
    assert [m.reconsume_times for m, _at in bad] == [0, 1, 2]
    for (_before, sooner), (_after, later) in itertools.pairwise(bad):
        assert 1000 <= later - sooner < 1000 + 2 * ROUGH_MS
    for message, _at in bad:
        assert (message.topic, message.keys, message.tags, message.properties["a"]) == (topic, ("k",), "T", "b")
        assert message.message_id == sent.message_id
    group = f"D_{topic}"
    dead = Heard(lambda m: Redeliver(level=-1) if m.text == "hopeless" else None)
    with Consumer(server.nameserver, group=group, topics={topic: "*"}, listener=dead, consume_from="first"):
        dead.wait(3)
        with PullConsumer(server.nameserver, group="reader") as reader:

            def letters() -> list[ReceivedMessage]:
                try:
                    queues = reader.queues(f"%DLQ%{group}")
                except errors.NoRoute:
                    return []
                return [message for queue in queues for message in reader.read(queue, 0)]

            (letter,) = eventually(letters, timeout=30, text="the dead letter")
    assert (letter.text, letter.keys) == ("hopeless", ("h",))


def test_order(server: targets.Target, topic: str) -> None:
    fails = itertools.count()
    heard = Heard(lambda m: Redeliver(pause_ms=100) if m.text == "b-1" and next(fails) < 2 else None)
    with Producer(server.nameserver, group=f"P_{topic}") as producer:
        for n in range(5):
            for key in "abc":
                producer.send(Message(topic, f"{key}-{n}".encode()), key=key)
    with Consumer(
        server.nameserver, group=f"G_{topic}", topics=topic, listener=heard, ordered=True, consume_from="first"
    ):
        heard.wait(17)
    for key in "ac":
        assert [text for text in heard.texts if text[0] == key] == [f"{key}-{n}" for n in range(5)]
    assert [text for text in heard.texts if text[0] == "b"] == ["b-0", "b-1", "b-1", "b-1", "b-2", "b-3", "b-4"]


def test_broadcasting(server: targets.Target, topic: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Producer(server.nameserver, group=f"P_{topic}") as producer:
        for n in range(10):
            producer.send(Message(topic, b"%d" % n))
    both = [Heard(), Heard()]
    options = {"group": f"G_{topic}", "topics": topic, "broadcasting": True, "consume_from": "first"}
    first, second = (
        Consumer(
            server.nameserver, listener=heard, offsets_dir=tmp_path_factory.mktemp("o"), instance=f"i{n}", **options
        )
        for n, heard in enumerate(both)
    )
    with first, second:
        for heard in both:
            assert sorted(m.text for m in heard.wait(10)) == [str(n) for n in range(10)]


def test_lite_pull(server: targets.Target, topic: str) -> None:
    with Producer(server.nameserver, group=f"P_{topic}") as producer:
        for n in range(20):
            producer.send(Message(topic, b"%d" % n))
    options = {"topics": topic, "consume_from": "first", "idle_timeout": 3}
    with LitePullConsumer(server.nameserver, group=f"G_{topic}", **options) as consumer:
        got = list(itertools.islice(consumer, 20))
    assert sorted(int(m.text) for m in got) == list(range(20))


def test_delay_levels(server: targets.Target, topic: str) -> None:
    heard = Heard()
    with (
        Producer(server.nameserver, group=f"P_{topic}") as producer,
        Consumer(server.nameserver, group=f"G_{topic}", topics=topic, listener=heard, consume_from="first"),
    ):
        started = time.time_ns() // 1_000_000
        late = producer.send(Message(topic, b"in 5 s", delay_level=2, keys="k"))
        producer.send(Message(topic, b"in 1 s", delay_level=1))
        producer.send(Message(topic, b"now"))
        told = time.time_ns() // 1_000_000
        heard.wait(3)
    assert heard.texts == ["now", "in 1 s", "in 5 s"]
    for at, delay in zip(heard.times_ms[1:], (1000, 5000), strict=True):
        assert started + delay <= at <= told + delay + ROUGH_MS, "never early"
    assert (heard.messages[2].keys, heard.messages[2].message_id) == (("k",), late.message_id)


def test_request_and_reply(server: targets.Target, topic: str) -> None:
    name = server.nameserver
    with Producer(name, group=f"R_{topic}") as replies, Producer(name, group=f"P_{topic}") as asking:
        with pytest.raises(errors.RequestTimeout):
            asking.request(Message(topic, b"is anybody there?"), timeout=1)
        listener = replying(replies, lambda request: request.text.upper())
        with Consumer(name, group=f"G_{topic}", topics=topic, listener=listener, consume_from="first"):
            for text in ("one", "two"):
                assert asking.request(Message(topic, text.encode()), timeout=20).text == text.upper()


def test_traces(server: targets.Target, topic: str) -> None:
    with Producer(server.nameserver, group=f"P_{topic}", trace=True) as producer:
        sent = producer.send(Message(topic, b"followed", keys="k1"))
    heard = Heard()
    options = {"topics": topic, "listener": heard, "consume_from": "first", "trace": True}
    with Consumer(server.nameserver, group=f"G_{topic}", **options):
        heard.wait(1)
    with Admin(server.nameserver) as admin:

        def told() -> bool:
            try:
                return len(admin.trace_of(sent.message_id).consumed) == 1
            except errors.QueryNotFound:
                return False

        eventually(told, timeout=20, text="the story of the message")
        assert admin.trace_of(sent.message_id).groups == {f"G_{topic}": True}


def test_transactions(server: targets.Target, topic: str) -> None:
    asked: list[str] = []
    verdicts = {"later yes": [Decision.UNKNOWN, Decision.COMMIT], "later no": [Decision.ROLLBACK]}

    def check(message: ReceivedMessage) -> Decision:
        asked.append(message.text)
        return verdicts[message.text].pop(0) if verdicts.get(message.text) else Decision.UNKNOWN

    heard = Heard()
    with (
        TransactionProducer(server.nameserver, group=f"P_{topic}", check=check) as producer,
        Consumer(server.nameserver, group=f"G_{topic}", topics=topic, listener=heard, consume_from="first"),
    ):
        with producer.transaction(Message(topic, b"yes", keys="k")):
            assert not heard.messages
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"no")):
            raise ZeroDivisionError
        for text in verdicts:
            with producer.transaction(Message(topic, text.encode())) as transaction:
                transaction.leave_open()
        heard.wait(2, timeout=40)
        # What is decided is not asked about again: a round of checks later there is nothing new.
        eventually(lambda: sorted(set(asked)) == ["later no", "later yes"], timeout=20)
    assert heard.texts == ["yes", "later yes"]
    assert heard.messages[0].keys == ("k",)
    assert asked.count("later yes") >= 2
    if server.kind == "kappamq":
        assert sorted(asked) == ["later no", "later yes", "later yes"]

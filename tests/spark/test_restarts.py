"""Brokers that restart, come and go while a stream reads: a retry, never a lost or a repeated message. Real processes, kill -9."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kappamq import Admin, Message, Producer
from kappamq.errors import ConfigError, KappaError
from kappamq.spark import connection, patience
from kappamq.spark.topic import topics
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import QueueRange
from kappamq.spark.topic.reading import RangeReader
from kappamq.spark.topic.streaming import StreamReader
from tests.interop.targets import KappaTarget
from tests.spark.cluster import broker
from tests.waiting import eventually

COUNT = 30_000
T = TypeVar("T")


@pytest.fixture
def tea(tmp_path: Path) -> Iterator[KappaTarget]:
    """A broker in a process of its own that comes back on the same ports, with 30,000 messages."""
    target = KappaTarget(tmp_path / "one").start()
    try:
        with Admin(target.nameserver) as admin:
            admin.create_topic("tea", queues=2)
        send(target.nameserver, 0, COUNT)
        yield target
    finally:
        connection.close_all()
        target.kill()


def send(nameserver: str, first: int, count: int) -> None:
    with Producer(nameserver, group="tests") as producer:
        for start in range(first, first + count, 500):
            numbers = range(start, min(start + 500, first + count))
            producer.send_batch([Message("tea", b"%d" % number) for number in numbers])


def options(nameserver: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nameservers": nameserver, "topic": "tea", **more})


def rows(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    tasks = stream.partitions(start, end)
    return [int(body) for task in tasks for batch in stream.read(task) for body in batch.column("body").to_pylist()]


def meets_a_restart(target: KappaTarget, retried: threading.Event, read: Callable[[], T]) -> T:
    """Read while the broker is killed; start it again when the reader has met its absence."""
    retried.clear()
    target.kill()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read)
        assert retried.wait(60)
        target.start()  # by this thread: the broker ends with the thread that has started it
        return found.result(60)


@pytest.fixture
def retried(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody waits before a second try."""
    found = threading.Event()
    real = patience.time.sleep

    def sleep(seconds: float) -> None:
        found.set()
        real(min(seconds, 0.2))

    monkeypatch.setattr(patience.time, "sleep", sleep)
    return found


def test_a_restart_in_the_middle_of_a_range(tea: KappaTarget, retried: threading.Event) -> None:
    with Admin(tea.nameserver) as admin:
        ranges = [QueueRange(queue, at.min_offset, at.max_offset) for queue, at in admin.topic_stats("tea").items()]
    batches = RangeReader(options(tea.nameserver), ("body",)).read(ranges)
    first = next(batches)
    rest = meets_a_restart(tea, retried, lambda: list(batches))
    found = [int(body) for batch in (first, *rest) for body in batch.column("body").to_pylist()]
    assert len(found) == COUNT
    assert sorted(found) == list(range(COUNT))


def test_a_restart_between_the_steps_of_a_batch(tea: KappaTarget, retried: threading.Event) -> None:
    stream = StreamReader(options(tea.nameserver, maxMessagesPerTrigger="10000"), ["body"])
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    # The name server may be back before the broker: then nothing is new, and Spark asks again.
    end = meets_a_restart(
        tea, retried, lambda: eventually(lambda: (found := stream.latestOffset(start, limit)) != start and found)
    )
    first = meets_a_restart(tea, retried, lambda: rows(stream, start, end))
    assert len(first) == 10_000
    rest = rows(stream, end, stream.latestOffset(end, ReadAllAvailable()))
    assert sorted(first + rest) == list(range(COUNT))


def test_who_was_never_reached_is_told_at_once(tea: KappaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamReader(options(tea.nameserver), ["body"])
    stream.initialOffset()
    tea.kill()
    connection.close_all()
    monkeypatch.setattr(topics, "_answered", set())  # as in a new process
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(KappaError, match=tea.nameserver):
        stream.initialOffset()


def test_a_second_broker_comes_goes_and_comes_back(tea: KappaTarget, tmp_path: Path) -> None:
    stream = StreamReader(options(tea.nameserver, group="etl"), ["body"])
    offset = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    second = broker(tmp_path / "two", tea.nameserver, "second")
    try:
        second.start()
        with Admin(tea.nameserver) as admin:
            admin.create_topic("tea", queues=2)
            eventually(lambda: any(queue.broker == "second" for queue in admin.topic_stats("tea")))
        send(tea.nameserver, COUNT, 4000)
        end = stream.latestOffset(offset, ReadAllAvailable())
        assert {name.split("/")[1] for name in end["queues"]} == {"broker-a", "second"}
        assert sorted(rows(stream, offset, end)) == list(range(COUNT, COUNT + 4000))
        second.process.kill()
        with Admin(tea.nameserver) as admin:
            eventually(lambda: all(queue.broker != "second" for queue in admin.topic_stats("tea")))
        send(tea.nameserver, COUNT + 4000, 500)
        without = stream.latestOffset(end, ReadAllAvailable())
        assert without["queues"].keys() == end["queues"].keys(), "queues of a broker that is away are kept"
        assert sorted(rows(stream, end, without)) == list(range(COUNT + 4000, COUNT + 4500))
        second.start()
        with Admin(tea.nameserver) as admin:
            eventually(lambda: any(queue.broker == "second" for queue in admin.topic_stats("tea")))
            progress = admin.consumer_progress("etl")
        assert stream.latestOffset(without, ReadAllAvailable()) == without, "nothing is read twice"
        assert progress
    finally:
        second.kill()


def test_a_topic_that_is_gone_at_the_start_is_an_error(tea: KappaTarget) -> None:
    wrong = ReadOptions.parse({"nameservers": tea.nameserver, "topic": "tee"})
    with pytest.raises(ConfigError, match=r"topic 'tee' does not exist \(did you mean tea\?\)"):
        StreamReader(wrong, ["body"]).initialOffset()

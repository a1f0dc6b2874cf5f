"""kill -9 of brokers while a batch is staged, decided and published: the tasks and the committer wait, and each row is there once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from kappamq import Admin
from kappamq.client.batches import patience as client_patience
from kappamq.client.batches.scope import Scope
from kappamq.errors import RequestTimeout
from kappamq.spark import connection
from kappamq.spark.sink import scopes
from kappamq.spark.sink.exactly_once import Staged, commit, stage_rows
from kappamq.spark.sink.options import ExactlyOnce, WriteOptions
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.source import BatchReader
from tests.spark.cluster import Server, cluster
from tests.waiting import eventually

T = TypeVar("T")
ROWS = 3000
EACH_S_MAX = 100.0


def bodies_of(nameserver: str, topic: str) -> list[bytes]:
    """All messages of a topic, through the batch read of the pipeline."""
    options = ReadOptions.parse({"nameservers": nameserver, "topic": topic, "columns": "body"})
    reader = BatchReader(options, ["body"])
    tasks = reader.partitions()
    return [body for task in tasks for batch in reader.read(task) for body in batch.column("body").to_pylist()]


class Shop:
    """Two brokers with a topic on both, and a query that writes to it."""

    def __init__(self, nameserver: str, brokers: dict[str, Server]) -> None:
        self.nameserver, self.brokers = nameserver, brokers
        self.options = WriteOptions(nameservers=nameserver, topic="bills", exactly_once=ExactlyOnce("shop"))
        self.coordinator = scopes.opened(self.options, "query").coordinator
        (self.participant,) = {*brokers} - {self.coordinator}

    def stage(self, number: int, tasks: int = 4, attempt: str = "a") -> list[Staged]:
        bodies = [[b"%d %d" % (number, row) for row in range(task, ROWS, tasks)] for task in range(tasks)]
        return [
            stage_rows(self.options, "query", number, attempt, iter([pa.record_batch({"body": some})]))
            for some in bodies
        ]

    def commit(self, number: int, staged: list[Staged]) -> None:
        commit(self.options, number, staged, streaming=True)

    def check(self, batches: int) -> None:
        """Every row of so many batches is there once, and nothing is staged any more."""
        with Admin(self.nameserver) as admin:

            def at_rest() -> bool:
                states = admin.scopes("shop")["shop"]
                return len(states) == len(self.brokers) and not any(
                    state.staged_chunks or state.publishing for state in states.values()
                )

            eventually(at_rest, timeout=EACH_S_MAX)
        bodies = bodies_of(self.nameserver, "bills")
        assert len(bodies) == len(set(bodies)) == batches * ROWS
        assert set(bodies) == {b"%d %d" % (number, row) for number in range(batches) for row in range(ROWS)}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with cluster(tmp_path / "cluster") as (nameserver, brokers):
        try:
            with Admin(nameserver) as admin:
                admin.create_topic("bills", queues=2)
            yield Shop(nameserver, brokers)
        finally:
            connection.close_all()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody waits before a second try."""
    found = threading.Event()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.set()
        await real(min(seconds, 0.2))

    monkeypatch.setattr(client_patience.asyncio, "sleep", sleep)
    return found


def meets_a_kill(server: Server, waiting: threading.Event, work: Callable[[], T]) -> T:
    """Work while a broker is killed; start it again when somebody has met its absence."""
    waiting.clear()
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        assert waiting.wait(60)
        server.start()  # by this thread: the broker ends with the thread that has started it
        return done.result(EACH_S_MAX)


@pytest.mark.parametrize("who", ["coordinator", "participant"])
def test_kills_at_each_step(shop: Shop, waiting: threading.Event, who: str) -> None:
    server = shop.brokers[getattr(shop, who)]
    staged = meets_a_kill(server, waiting, lambda: shop.stage(0))  # begin and stage meet it
    assert {one.ticket for one in staged} == {staged[0].ticket}, "a lost answer begins no second transaction"
    meets_a_kill(server, waiting, lambda: shop.commit(0, staged))  # the decision does
    shop.check(1)
    staged = shop.stage(1)
    server.kill()
    server.start()
    shop.commit(1, staged)
    server.kill()  # while messages are published, or just behind it
    server.start()
    shop.commit(1, staged)
    shop.check(2)


def test_everybody_is_killed(shop: Shop) -> None:
    staged = shop.stage(0)
    for server in shop.brokers.values():
        server.kill()
    for server in shop.brokers.values():
        server.start()
    shop.commit(0, staged)
    shop.check(1)


def test_a_decision_whose_answer_is_lost(shop: Shop, waiting: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator dies when it has decided, before anybody hears of it; the same is asked again."""
    staged = shop.stage(0)
    server = shop.brokers[shop.coordinator]
    real = Scope._ask
    lost = [True]

    async def losing(self: Scope, *given: object, **named: object) -> object:
        answer = await real(self, *given, **named)  # type: ignore[arg-type]
        if lost and type(given[0]).__name__ == "DecideBatch":
            lost.pop()
            raise RequestTimeout("the answer is lost")
        return answer

    monkeypatch.setattr(Scope, "_ask", losing)
    with pytest.raises(RequestTimeout):
        shop.commit(0, staged)
    server.kill()
    server.start()
    shop.commit(0, staged)  # by the committer of the next run of Spark, say
    again = shop.stage(0, tasks=3, attempt="b")
    assert all(one.ticket.transaction is None for one in again)
    shop.commit(0, again)
    shop.check(1)

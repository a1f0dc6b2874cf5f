"""Gathering messages into chunks: bounded, in order, staged again if an answer is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client import AsyncProducer
from kappamq.client.batches.scope import Ticket, open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import IllegalMessage, InvalidParameter, RequestTimeout
from kappamq.message import Message, MessageQueue
from tests.broker.running import run
from tests.client.batches.test_batch_transaction import bodies, topic_on_all
from tests.client.real import real_cluster


def test_chunks_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            ticket = await scope.begin(0)
            assert ticket.transaction is not None
            few = Ticket("s", "me", 0, ticket.transaction, 10)
            stager = Stager(core, producer.config, few, producer._next_id)
            for number in range(25):
                await stager.add(Message("t", b"%d" % number))
            for _ in range(3):
                await stager.add(Message("t", b"x" * 150_000))
            part = await stager.finish()
            assert (part.rows, sum(map(len, part.chunks.values()))) == (28, 5)
            await scope.decide(ticket, [part])
            assert len(await bodies(cluster, "t")) == 28

    run(test())


def test_a_lost_answer_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            ticket = await scope.begin(0)
            ask, lost = core.ask, [True, True]

            async def losing(*given: object, **named: object) -> object:
                answer = await ask(*given, **named)  # type: ignore[arg-type]
                if lost and lost.pop():
                    raise RequestTimeout("the answer is lost")
                return answer

            monkeypatch.setattr(core, "ask", losing)
            stager = Stager(core, producer.config, ticket, producer._next_id)
            await stager.add(Message("t", b"a"))
            part = await stager.finish()
            assert len(cluster.broker.delivery_tables.staged.table[ticket.transaction or ""].chunks) == 3
            await scope.decide(ticket, [part])
            assert await bodies(cluster, "t") == [b"a"]

    run(test())


def test_what_cannot_be_staged_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            core = producer.running()
            ticket = await (await open_scope(core, "s", "me")).begin(0)
            stager = Stager(core, producer.config, ticket, producer._next_id)
            with pytest.raises(IllegalMessage, match="empty"):
                await stager.add(Message("t", b""))
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", "broker-0", 99))
            with pytest.raises(InvalidParameter, match=r"queueId\[99\]"):
                await stager.finish()
            stager.cancel()

    run(test())


def test_a_broker_that_joined_later_learns_of_the_scope(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            scope = await producer.open_scope("s", "me")
            cluster.names.append("broker-9")
            await cluster.start_broker("broker-9")
            await topic_on_all(cluster, "t")
            ticket = await scope.begin(0)
            stager = producer.stager(ticket)
            for number in range(3):
                await stager.add(Message("t", b"%d" % number), queue=MessageQueue("t", "broker-9", number % 2))
            part = await stager.finish()
            assert set(part.chunks) == {"broker-9"}
            await scope.decide(ticket, [part])
            assert sorted(await bodies(cluster, "t")) == [b"0", b"1", b"2"]

    run(test())

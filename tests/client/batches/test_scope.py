"""Scopes and parts of a batch: what several writers staged is decided as one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kappamq.broker.batches.batch_requests import BATCH_CODES
from kappamq.broker.requests.request import Request
from kappamq.broker.sending.gate import not_master
from kappamq.client import AsyncProducer
from kappamq.client.batches.scope import CHECKSUM_MASK, Part, Ticket, open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import NotConnected, NotSupported, TransactionFailed
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode
from tests.broker.running import run
from tests.client.announcing import announced
from tests.client.batches.test_batch_transaction import bodies, topic_on_all
from tests.client.real import real_cluster
from tests.interop.process import free_port


def test_parts_add_up() -> None:
    whole = Part({"a": [[1, 2]]}, 3, CHECKSUM_MASK)
    whole.add(Part({"a": [[3, 4]], "b": [[5, 6]]}, 4, 2))
    assert whole == Part({"a": [[1, 2], [3, 4]], "b": [[5, 6]]}, 7, 1)


def test_several_writers_stage_one_batch(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            assert scope.last == -1
            ticket: Ticket = pickle.loads(pickle.dumps(await scope.begin(0)))
            parts = []
            for partition in range(3):
                for attempt in range(2):  # both are alive at once; one counts
                    stager = Stager(
                        core, producer.config, ticket, producer._next_id, partition=partition, attempt=attempt
                    )
                    await stager.add(Message("t", b"%d" % partition))
                    part = pickle.loads(pickle.dumps(await stager.finish()))
                parts.append(part)
            outcome = await scope.decide(ticket, parts)
            assert (outcome.rows, outcome.published, outcome.repeated) == (3, True, False)
            assert sorted(await bodies(cluster, "t")) == [b"0", b"1", b"2"]
            assert not await scope.abort(ticket), "an abort after the decision changes nothing"
            assert (await open_scope(core, "s", "me")).last == 0
            with pytest.raises(TransactionFailed, match="not open"):
                await scope.decide(Ticket("s", "me", 1, "x", 10), [])

    run(test())


def test_a_coordinator_without_the_role_is_asked_until_there_is_a_master(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await topic_on_all(cluster, "t")
            scope = await open_scope(producer.running(), "s", "me")
            ticket = await scope.begin(0)
            handlers = cluster.broker.bursts.handlers
            decide, refusals = handlers[RequestCode.DECIDE_BATCH], [not_master(None) for _ in range(3)]

            def refuse_at_first(request: Request[Any]) -> Any:
                if refusals:
                    raise refusals.pop()
                return decide(request)

            handlers[RequestCode.DECIDE_BATCH] = refuse_at_first
            assert (await scope.decide(ticket, [])).number == 0
            assert not refusals

    run(test())


def test_without_its_coordinator_a_scope_cannot_be_used(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            core = producer.running()
            scope = await open_scope(core, "s", "me", patience_s=0.05)
            await cluster.stop_broker(scope.coordinator)
            with pytest.raises(
                NotConnected, match=f"{scope.coordinator}, which coordinates scope s, is not registered"
            ):
                await open_scope(core, "s", "me")
            with pytest.raises(NotConnected, match=f"{scope.coordinator}, which coordinates"):
                await scope.begin(0)

    run(test())


def test_writers_of_one_attempt_share_a_transaction(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            scope = await producer.open_scope("s", "me")
            first, second = await scope.begin(0, attempt="a"), await scope.begin(0, attempt="a")
            assert first == second
            later = await scope.begin(0, attempt="b")
            assert later.transaction not in (None, first.transaction)
            with pytest.raises(TransactionFailed, match=r"attempt a at batch 0 .* was replaced by a later one"):
                await scope.begin(0, attempt="a")
            assert await scope.begin(0, attempt="b") == later
            await scope.decide(later, [])
            assert (await scope.begin(0, attempt="b")).transaction is None
            assert (await scope.published(0)).rows == 0

    run(test())


def test_all_masters_are_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            await producer.check_masters("s")
            gone = f"127.0.0.1:{free_port()}"
            told = f"broker gone at {gone} cannot be reached, and might know more"
            async with announced(cluster.nameserver, "gone", gone):
                with pytest.raises(NotConnected, match=told):
                    await producer.check_masters("s")

    run(test())


def _not_known(_request: object) -> NoReturn:
    raise NotSupported("as RocketMQ answers")


def test_a_broker_that_does_not_know_them_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster, AsyncProducer(cluster.nameserver) as producer:
            cluster.broker.bursts.replace_handlers(dict.fromkeys(BATCH_CODES, _not_known))
            with pytest.raises(NotSupported, match="does not know batch transactions, only KappaMQ brokers do"):
                await open_scope(producer.running(), "s", "me")

    run(test())

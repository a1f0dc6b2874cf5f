"""Listing and resetting scopes on all brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client import AsyncAdmin, AsyncProducer
from kappamq.client.batches.scope import open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import IllegalOperation, InvalidParameter, KappaError
from kappamq.message import Message, MessageQueue
from tests.broker.running import run
from tests.client.batches.test_batch_transaction import bodies, topic_on_all
from tests.client.real import real_cluster
from tests.waiting import eventually_async


def test_a_scope_is_listed_and_given_to_another_owner(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            real_cluster(tmp_path, 2) as cluster,
            AsyncProducer(cluster.nameserver) as producer,
            AsyncAdmin(cluster.nameserver) as admin,
        ):
            await topic_on_all(cluster, "t")
            assert await admin.scopes() == {}
            with pytest.raises(InvalidParameter, match="no broker knows the scope s"):
                await admin.reset_scope("s")
            async with producer.batch_transaction("s", 4, owner="query 1") as batch:
                await batch.send(Message("t", b"a"))
            found = (await admin.scopes())["s"]
            assert set(found) == {"broker-0", "broker-1"}
            main = found[found["broker-0"].coordinator]
            assert (main.owner, main.last, main.publishing) == ("query 1", 4, 0)
            assert await admin.reset_scope("s") == ["broker-0", "broker-1"]
            async with producer.batch_transaction("s", 0, owner="query 2") as batch:
                await batch.send(Message("t", b"b"))
            assert sorted(await bodies(cluster, "t")) == [b"a", b"b"]

    run(test())


@pytest.mark.parametrize("gone", ["coordinator", "participant"])
def test_a_scope_one_of_whose_brokers_is_gone_for_good(tmp_path: Path, gone: str) -> None:
    """Nobody says any more what becomes of a chunk, or nobody publishes it: an operator may end that, and only an operator."""

    async def test() -> None:
        async with (
            real_cluster(tmp_path, 2) as cluster,
            AsyncProducer(cluster.nameserver) as producer,
            AsyncAdmin(cluster.nameserver) as admin,
        ):
            await topic_on_all(cluster, "t")
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = next(name for name in cluster.names if name != scope.coordinator)
            ticket = await scope.begin(0)
            stager = Stager(core, producer.config, ticket, lambda now_ms: f"{now_ms:032X}")
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", other, 0))
            part = await stager.finish()
            if gone == "participant":
                publishing = cluster.brokers[other].delivery.batches.publishing
                publishing._not_before_ms = 1 << 60  # it goes before it has published anything
                await scope.decide(ticket, [part], wait_s=0)
            await cluster.stop_broker(scope.coordinator if gone == "coordinator" else other)
            error: type[KappaError] = KappaError if gone == "coordinator" else IllegalOperation
            with pytest.raises(error, match="gone for good: `kappamq scope reset s --force`"):
                await admin.reset_scope("s")
            assert await admin.reset_scope("s", force=True)
            (left,) = cluster.brokers.values()
            left.delivery.batches.participant.settle("s")
            await eventually_async(lambda: not left.delivery_tables.staged.table, text="nothing keeps the log any more")
            async with producer.batch_transaction("s", 0, owner="another") as batch:
                await batch.send(Message("t", b"b"))
            assert await bodies(cluster, "t") == [b"b"]

    run(test())

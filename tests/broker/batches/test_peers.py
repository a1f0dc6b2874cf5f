"""Two brokers of one transaction: they find each other by name, and wait for each other as long as it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.batches import participant
from kappamq.client import AsyncProducer
from kappamq.client.batches.scope import open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import BrokerNotFound
from kappamq.message import Message, MessageQueue
from tests.broker.operating import make_topic
from tests.broker.running import run, speaking
from tests.client.real import real_cluster
from tests.waiting import eventually_async


def test_a_participant_waits_for_its_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator stops after the stage, comes back, decides; the participant has dropped nothing meanwhile."""
    monkeypatch.setattr(participant, "ASK_S", 0.1)

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            for broker in cluster.brokers.values():
                async with speaking(broker) as client:
                    await make_topic(client, "t", 1)
            core = producer.start()
            scope = await open_scope(core, "s", "me")
            other = next(name for name in cluster.names if name != scope.coordinator)
            ticket = await scope.begin(0)
            stager = Stager(core, producer.config, ticket, lambda now_ms: f"{now_ms:032X}")
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", other, 0))
            part = await stager.finish()
            await cluster.stop_broker(scope.coordinator)
            asking = cluster.brokers[other].delivery.batches.participant
            await eventually_async(lambda: "s" in asking._complaints, text="it cannot be asked")
            assert cluster.brokers[other].delivery_tables.staged.bytes > 0
            await cluster.start_broker(scope.coordinator)
            outcome = await scope.decide(ticket, [part])
            assert outcome.published
            async with speaking(cluster.brokers[other]) as client:
                assert [record.body for record in await client.read("t")] == [b"a"]

    run(test())


def test_a_broker_that_is_not_registered_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path) as cluster:
            peers = cluster.broker.delivery.batches.peers
            with pytest.raises(
                BrokerNotFound, match=r"broker nowhere cannot be found: name server .* does not know it"
            ):
                await peers.settle("nowhere", "s")

    run(test())

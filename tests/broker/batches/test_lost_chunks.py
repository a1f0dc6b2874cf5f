"""Decided chunks that a broker does not have: a copy that was behind its master, a leader that was deposed and has not noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.client import AsyncProducer
from kappamq.client.batches.scope import open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import KappaError, NotAvailable
from kappamq.message import Message, MessageQueue
from tests.broker.batches.batching import Batcher
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import Speaker, run, speaking
from tests.client.real import real_cluster
from tests.waiting import eventually_async


@on_broker()
async def test_of_a_decision_some_chunks_are_here(broker: Broker, client: Speaker) -> None:
    """A slave took over that had not got all of them: what is there is published, the rest is counted, and time goes on."""
    await make_topic(client, "t", 1)
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    first, second = [await it.stage(0, transaction, body) for body in (b"first", b"second")]
    gone, another = [second[0] + 7, 1], [second[0], second[1] ^ 1]
    listed = {"b": [gone, first, another]}
    broker.metadata.commit("batch-decided", ["s", transaction, 0, 3, 0, listed])
    broker.delivery.batches.participant.settle("s")
    outcome = await it.published(0)
    assert (outcome.published, outcome.dropped) == (True, {"(lost chunks)": 2})
    assert [record.body for record in await client.read("t")] == [b"first"]
    await eventually_async(lambda: not broker.delivery_tables.staged.table, text="nothing is left")
    assert (await client.send("t", b"delayed", properties="TIMER_DELAY_MS\x01100\x02")).code == 0
    await eventually_async(lambda: broker.kernel.queue_state("t", 0).next == 2, text="delayed messages are delivered")


def test_a_participant_that_was_deposed_without_noticing_does_not_say_that_chunks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were staged at its successor, which publishes them: the coordinator must not forget them."""

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = cluster.brokers[next(name for name in cluster.names if name != scope.coordinator)]
            main = cluster.brokers[scope.coordinator]
            ticket = await scope.begin(0)
            change = ["s", ticket.transaction, 0, 7, 1, {other.config.name: [[5, 1], [6, 1]]}]
            main.metadata.commit("batch-decided", change)

            async def nobody_confirms(_end: int) -> None:
                raise NotAvailable("not known to be stored")

            with monkeypatch.context() as deposed:
                deposed.setattr(other.delivery.appender._writer, "confirmed", nobody_confirms)
                with pytest.raises(KappaError, match="not known to be stored"):
                    await other.delivery.batches.participant.settled("s")
            publishing = main.delivery_tables.scopes.table["s"].publishing
            assert [list(one.chunks) for one in publishing.values()] == [[other.config.name]], (
                "the successor asks for it"
            )

    run(test())


def test_a_scope_with_chunks_to_publish_goes_first_on_its_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the broker would publish them, and nobody would ever hear of it."""

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            for broker in cluster.brokers.values():
                async with speaking(broker) as client:
                    await make_topic(client, "t", 1)
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = cluster.brokers[next(name for name in cluster.names if name != scope.coordinator)]
            stager = Stager(core, producer.config, await scope.begin(0), lambda now_ms: f"{now_ms:032X}")
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", other.config.name, 0))
            part = await stager.finish()
            with monkeypatch.context() as held:
                held.setattr(type(other.delivery.batches.publishing), "due_ms", lambda _self: None)
                await scope.decide(stager._ticket, [part], wait_s=0)
                await eventually_async(
                    lambda: any(one.waiting for one in other.delivery_tables.staged.table.values()), text="it knows"
                )
                assert not await other.delivery.batches.participant.settled("s")
            other.delivery.agenda.wake()
            assert (await scope.published(0)).published

    run(test())

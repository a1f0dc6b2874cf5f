"""Two brokers of one transaction: they find each other by name, and wait for each other as long as it takes."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.batches import participant
from kappamq.broker.batches import peers as peers_module
from kappamq.broker.batches.peers import Peers
from kappamq.broker.sending.appending import Placed
from kappamq.client import AsyncAdmin, AsyncProducer
from kappamq.client.batches.scope import Part, open_scope
from kappamq.client.batches.staging import Stager
from kappamq.errors import BrokerNotFound, NotAvailable, NotMaster, for_code
from kappamq.message import Message, MessageQueue
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.batches import Decisions
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.batches import RemoveScope
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetClusterInfo
from tests.broker.operating import make_topic, refused
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
            core = producer.running()
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


def test_what_is_reported_as_published_cannot_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator forgets a batch when it is published: a power cut must not bring back the time before that."""

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            for broker in cluster.brokers.values():
                async with speaking(broker) as client:
                    await make_topic(client, "t", 1)
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = cluster.brokers[next(name for name in cluster.names if name != scope.coordinator)]
            reported: list[bool] = []
            peers = other.delivery.batches.peers
            ask = peers.decisions

            async def watching(coordinator: str, name: str, finished: dict[str, dict[str, int]]) -> Decisions:
                if finished:
                    end = max(chunk.end for chunk in published)
                    reported.append(other.store.marks.confirmed.offset >= end)
                return await ask(coordinator, name, finished)

            published: list[Placed] = []
            append = other.delivery.appender.append_batch

            def noting(*given: Any) -> bool:
                done = append(*given)
                published.append(Placed(other.kernel.append_offset, 0, 0))
                return done

            monkeypatch.setattr(peers, "decisions", watching)
            monkeypatch.setattr(other.delivery.appender, "append_batch", noting)
            ticket = await scope.begin(0)
            stager = Stager(core, producer.config, ticket, lambda now_ms: f"{now_ms:032X}")
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", other.config.name, 0))
            assert (await scope.decide(ticket, [await stager.finish()])).published
            assert published
            assert reported == [True]

    run(test())


def test_a_participant_that_has_lost_its_chunks_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = cluster.brokers[next(name for name in cluster.names if name != scope.coordinator)]
            main = cluster.brokers[scope.coordinator]
            ticket = await scope.begin(0)
            change = ["s", ticket.transaction, 0, 7, 1, {other.config.name: [[5, 1], [6, 1]]}]
            main.metadata.commit("batch-decided", change)
            await other.delivery.batches.participant.settled("s")
            outcome = await main.delivery.batches.coordinator.published("s", "me", 0, 10)
            assert (outcome.published, outcome.dropped) == (True, {"(lost chunks)": 2})
            assert "2 of its chunks are not in this store" in caplog.text

    run(test())


def test_a_scope_with_an_open_transaction_goes_first_on_its_coordinator(tmp_path: Path) -> None:
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
            await stager.finish()
            async with speaking(other) as client:
                header = RemoveScope(scope="s", owner="me")
                await refused(client, header, ResponseCode.ILLEGAL_OPERATION, "open transaction", scope.coordinator)
            async with AsyncAdmin(cluster.nameserver) as admin:
                assert await admin.reset_scope("s") == cluster.names
            assert not other.delivery_tables.staged.table

    run(test())


def test_what_is_staged_and_decided_during_a_question_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer names a transaction that was unknown when the question was asked."""

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster, AsyncProducer(cluster.nameserver) as producer:
            for broker in cluster.brokers.values():
                async with speaking(broker) as client:
                    await make_topic(client, "t", 1)
            core = producer.running()
            scope = await open_scope(core, "s", "me")
            other = cluster.brokers[next(name for name in cluster.names if name != scope.coordinator)]
            peers = other.delivery.batches.peers
            ask = peers.decisions
            asked, go_on = asyncio.Event(), asyncio.Event()

            async def slow(coordinator: str, name: str, finished: dict[str, dict[str, int]]) -> Decisions:
                asked.set()
                await go_on.wait()
                return await ask(coordinator, name, finished)

            monkeypatch.setattr(peers, "decisions", slow)
            question = asyncio.create_task(other.delivery.batches.participant.settled("s"))
            await asked.wait()
            ticket = await scope.begin(0)
            stager = Stager(core, producer.config, ticket, lambda now_ms: f"{now_ms:032X}")
            await stager.add(Message("t", b"a"), queue=MessageQueue("t", other.config.name, 0))
            await scope.decide(ticket, [await stager.finish()], wait_s=0)
            go_on.set()
            await question
            outcome = await scope.decide(ticket, [Part(rows=1, checksum=zlib.crc32(b"a"))])
            assert (outcome.published, outcome.dropped) == (True, {})
            async with speaking(other) as client:
                assert [record.body for record in await client.read("t")] == [b"a"]

    run(test())


def test_a_node_that_has_lost_the_role_is_not_asked_again(tmp_path: Path) -> None:
    """It lives on, and so does the connection to it; another node is the master."""

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster:
            asking, asked = (cluster.brokers[name] for name in cluster.names)
            peers = asking.delivery.batches.peers
            await peers.settle(asked.config.name, "s")
            former = peers._channels[asked.config.name]
            await asked.role.end(1)
            asked.role.leader_is("127.0.0.1:1")
            with pytest.raises(NotAvailable, match="is not the master any more") as refused:
                await peers.settle(asked.config.name, "s")
            assert not isinstance(for_code(14, str(refused.value)), NotMaster), "that is not said of the one who asks"
            await asked.role.begin()
            await peers.settle(asked.config.name, "s")
            assert not former.is_open, "the name server is asked again who the master is"

    run(test())


def test_a_broker_that_goes_during_a_question_is_told_of_as_one_that_is_away(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster:
            asking, asked = (cluster.brokers[name] for name in cluster.names)
            peers = asking.delivery.batches.peers
            await peers.settle(asked.config.name, "s")
            question = asyncio.create_task(peers.check_chunks(asked.config.name, "s", "t", []))
            await asyncio.sleep(0)
            peers._channels[asked.config.name].close()
            with pytest.raises(NotAvailable, match="does not answer now"):
                await question

    run(test())


def test_a_name_server_that_hangs_does_not_hide_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(peers_module, "_TIMEOUT_S", 0.2)
        silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        hanging = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with silent, real_cluster(tmp_path, 2) as cluster:
            asked = cluster.names[1]
            peers = Peers("me", lambda: (hanging, cluster.nameserver), lambda: None, None)  # type: ignore[arg-type, return-value]
            try:
                await peers.settle(asked, "s")
                with pytest.raises(BrokerNotFound, match="nowhere cannot be found"):
                    await peers.settle("nowhere", "s")
            finally:
                peers.stop()

    run(test())


def test_many_scopes_share_what_a_name_server_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may open as many as there may be, all with coordinators that are gone."""
    questions = 0
    request = Channel.request

    async def counting(self: Channel, header: Header, *others: Any, **named: Any) -> Any:
        nonlocal questions
        questions += isinstance(header, GetClusterInfo)
        return await request(self, header, *others, **named)

    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster:
            monkeypatch.setattr(Channel, "request", counting)
            peers = cluster.broker.delivery.batches.peers
            asked = (peers.decisions(f"gone{number}", "s", {}) for number in range(300))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, BrokerNotFound) for answer in answers)
            assert questions < 5

    run(test())

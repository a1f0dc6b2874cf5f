"""What a coordinator decides stays so; what nobody decides is aborted in time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.batches.coordinator import Coordinator
from kappamq.broker.batches.peers import Peers
from kappamq.broker.broker import Broker
from kappamq.config.broker import BrokerConfig
from kappamq.protocol.bodies.batches import FinishedBatches
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.batches import AskDecisions, OpenScope
from kappamq.state import scopes
from kappamq.state.scopes import Scopes
from tests.broker.batches.batching import Batcher
from tests.broker.operating import make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.broker.timing import timed
from tests.client.real import real_cluster
from tests.waiting import eventually_async


@on_broker()
async def test_a_new_attempt_takes_the_place_of_an_open_one(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    old = await it.begin(4)
    assert old is not None
    await it.stage(4, old, b"old")
    new = await it.begin(4)
    assert new is not None
    chunk = await it.stage(4, new, b"new")
    await refused(client, it.decision(4, old, 0), ResponseCode.TRANSACTION_FAILED, "another attempt", body=b"{}")
    await it.decide(4, new, 1, chunk)
    await it.published(4)
    broker.delivery.batches.participant.settle("s")
    await eventually_async(
        lambda: not broker.delivery_tables.staged.table, text="what the old attempt staged is dropped"
    )
    assert [record.body for record in await client.read("t")] == [b"new"]


@on_broker()
async def test_a_decision_stays(broker: Broker, client: Speaker) -> None:
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(3)
    assert transaction is not None
    assert (await it.decide(3, transaction, 0, checksum=7)).published, "a batch may be empty"
    assert await it.abort(3, transaction), "an abort comes too late"
    assert (await it.decide(3, transaction, 0, checksum=7)).number == 3
    illegal = ResponseCode.ILLEGAL_OPERATION
    await refused(client, it.decision(3, transaction, 1, 7), illegal, "decided with 0 rows", body=b"{}")
    await refused(client, it.decision(3, transaction, 0, 8), illegal, "checksum 7", body=b"{}")
    await refused(client, it.decision(2, transaction, 0, 8), illegal, "older than", body=b"{}")


def test_it_is_remembered_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(3)
            assert transaction is not None
            await it.decide(3, transaction, 0, checksum=7)
            still_open = await it.begin(4)
        async with running(tmp_path) as broker, speaking(broker) as client:
            it = Batcher(client)
            assert await it.begin(3) is None
            assert (await it.decide(3, transaction, 0, checksum=7)).checksum == 7
            assert still_open is not None
            assert (await it.decide(4, still_open, 0)).number == 4

    run(test())


def test_what_nobody_decides_is_aborted(tmp_path: Path) -> None:
    async def test() -> None:
        async with timed(tmp_path, batch_transaction_timeout_ms=60_000) as timed_broker:
            client, broker = timed_broker.client, timed_broker.broker
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            chunk = await it.stage(0, transaction, b"a")
            await timed_broker.pass_ms(59_000)
            assert broker.delivery_tables.scopes.table["s"].open is not None
            await timed_broker.pass_ms(2000)
            assert broker.delivery_tables.scopes.table["s"].open is None
            broker.delivery.batches.participant.settle("s")
            await eventually_async(lambda: not broker.delivery_tables.staged.table, text="it is dropped")
            failed = ResponseCode.TRANSACTION_FAILED
            await refused(
                client,
                it.decision(0, transaction, 1),
                failed,
                "not open",
                body=b'{"chunks":{"b":[[%d,%d]]}}' % tuple(chunk),
            )

    run(test())


def test_a_broker_with_nothing_else_to_do_aborts_it_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, batch_transaction_timeout_ms=1000) as broker, speaking(broker) as client:
            it = Batcher(client)
            await it.open()
            await it.begin(0)
            await eventually_async(lambda: broker.delivery_tables.scopes.table["s"].open is None, text="it is aborted")

    run(test())


def test_the_number_of_remembered_batches_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "REMEMBERED_MAX", 3)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            it = Batcher(client)
            await it.open()
            for number in range(5):
                transaction = await it.begin(number)
                assert transaction is not None
                await it.decide(number, transaction, 0)
            assert list(broker.delivery_tables.scopes.table["s"].decided) == [2, 3, 4]

    run(test())


class SlowDisk:
    """A coordinator whose log is confirmed when the test says so; a record is one byte long."""

    def __init__(self) -> None:
        self.scopes = Scopes(lambda: 0)
        self.end = self.durable = 0
        self.moved = asyncio.Condition()
        config = BrokerConfig(name="b")
        unused: Any = None
        self.coordinator = Coordinator(
            config, self.scopes, self.commit, self, unused, lambda: self.end, unused, unused,  # type: ignore[arg-type]
        )  # fmt: skip

    def commit(self, kind: str, change: Any) -> int:
        self.scopes.apply(kind, change)
        self.end += 1
        return self.end

    async def kept(self, end: int) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.durable >= end)

    async def confirm(self, end: int) -> None:
        async with self.moved:
            self.durable = max(self.durable, end)
            self.moved.notify_all()


def test_nobody_hears_of_a_decision_that_may_be_taken_back() -> None:
    """It is appended while an earlier record is being written: a power cut then takes the decision, and not what was published."""

    async def test() -> None:
        it = SlowDisk()
        it.commit("scope", ["s", "me", "b"])
        it.commit("batch-begun", ["s", "t0", 0])
        asking = asyncio.create_task(it.coordinator.decisions("s", "other", {}))
        await asyncio.sleep(0)
        before = it.end
        it.commit("batch-decided", ["s", "t0", 0, 1, 1, {"other": [[0, 1]]}])
        await it.confirm(before)
        answer = await asking
        assert (answer.open, answer.decided) == ("t0", [])
        asking = asyncio.create_task(it.coordinator.decisions("s", "other", {}))
        await asyncio.sleep(0)
        await it.confirm(it.end)
        answer = await asking
        assert (answer.open, [one.transaction for one in answer.decided]) == (None, ["t0"])

    run(test())


@pytest.mark.parametrize("scope", ["s", "begun at its successor"])
def test_a_node_that_was_deposed_without_noticing_tells_nothing(scope: str) -> None:
    """All that it has is confirmed, but nothing more: its successor may have decided what it does not know of."""

    async def test() -> None:
        it = SlowDisk()
        it.commit("scope", ["s", "me", "b"])
        await it.confirm(it.end)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await it.coordinator.decisions(scope, "other", {})
        asking = asyncio.create_task(it.coordinator.decisions(scope, "other", {}))
        await asyncio.sleep(0)
        await it.confirm(it.end)
        assert (await asking).decided == []

    run(test())


@on_broker(staged_bytes_max=1 << 27)
async def test_a_decision_may_list_tens_of_thousands_of_chunks(broker: Broker, client: Speaker) -> None:
    """A hundred tasks that write to hundreds of queues have that many. They are staged side by side here, to save time."""
    await make_topic(client, "t", 1)
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    chunks: list[list[int]] = []
    for first in range(0, 12_000, 1000):
        chunks += await asyncio.gather(
            *(it.stage(0, transaction, b"%d" % number) for number in range(first, first + 1000))
        )
    assert (await it.decide(0, transaction, len(chunks), *chunks)).rows == len(chunks)
    assert (await it.published(0)).published
    bodies = [int(record.body) for record in await client.read("t")]
    assert sorted(bodies) == list(range(len(chunks)))


@on_broker()
async def test_what_brokers_report_as_dropped_is_bounded(broker: Broker, client: Speaker) -> None:
    """Anybody may say that he is a broker, and it is kept for as long as the batch is remembered."""
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    broker.metadata.commit("batch-decided", ["s", transaction, 0, 5, 7, {"evil": [[1, 1]]}])
    ask = AskDecisions(scope="s", broker="evil")
    for count in (-1, 1 << 50):
        body = FinishedBatches({str(transaction): {"t": count}}).encode()
        await refused(client, ask, ResponseCode.INVALID_PARAMETER, "broker evil reports", body=body)
    topics = {"(lost chunks)": 3, "no topic!": 4, "x" * 5000: 5} | {f"topic-{number}": 1 for number in range(5000)}
    await ok(client, ask, FinishedBatches({str(transaction): topics}).encode())
    outcome = await it.published(0)
    assert outcome.published
    assert len(outcome.dropped) == 101
    assert (outcome.dropped["(lost chunks)"], outcome.dropped["(others)"]) == (3, 4 + 5 + 5000 - 99)


@on_broker()
async def test_a_coordinator_that_nobody_knows_is_refused(broker: Broker, client: Speaker) -> None:
    """What is staged for it could never be decided, and would be kept for ever."""
    unknown = OpenScope(scope="s", owner="me", coordinator="nobody")
    await refused(client, unknown, ResponseCode.INVALID_PARAMETER, "nobody", "no name server of broker b")
    assert not broker.delivery_tables.scopes.table
    await ok(client, OpenScope(scope="s", owner="me", coordinator="b"))


def test_a_coordinator_that_is_known_may_be_away_later(tmp_path: Path) -> None:
    async def test() -> None:
        async with real_cluster(tmp_path, 2) as cluster:
            here, there = cluster.names
            async with speaking(cluster.brokers[here]) as client:
                header = OpenScope(scope="s", owner="me", coordinator=there)
                await ok(client, header)
                await cluster.stop_broker(there)
                await ok(client, header)
                asking = cluster.brokers[here].delivery.batches.peers
                await eventually_async(lambda: _forgotten(asking, there), text="it is not registered any more")
                other = OpenScope(scope="other", owner="me", coordinator=there)
                await refused(client, other, ResponseCode.INVALID_PARAMETER, there)
            await cluster.stop_broker(here)
            await cluster.start_broker(here)
            async with speaking(cluster.brokers[here]) as client:
                await ok(client, header)

    run(test())


async def _forgotten(peers: Peers, broker: str) -> bool:
    return not await peers.knows(broker)


def test_whether_a_coordinator_is_known_cannot_be_said_without_name_servers(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, nameservers=("127.0.0.1:1",)) as broker, speaking(broker) as client:
            header = OpenScope(scope="s", owner="me", coordinator="other")
            await refused(client, header, ResponseCode.SERVICE_NOT_AVAILABLE, "other cannot be said now")

    run(test())

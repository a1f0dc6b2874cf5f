"""Hours pass, in virtual time, and retention passes by: what is staged stays until its coordinator has said what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kappamq.broker.batches.participant import ASK_MAX_S, ASK_S
from kappamq.broker.delivery import agenda
from kappamq.config.broker import BrokerConfig
from kappamq.protocol.bodies.batches import ChunkList
from kappamq.protocol.codes import ResponseCode
from tests.broker.batches.batching import Batcher
from tests.broker.batches.crashing import TwoBrokers
from tests.broker.operating import make_topic, ok, refused
from tests.broker.running import Speaker, on_disk, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async

HOUR_S = BrokerConfig().batch_transaction_timeout_ms / 1000
FILES = {
    "segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "queue_file_entries": 16, "index_entries": 32, "retention_hours": 0,
    "delete_hours": (), "clean_interval_ms": 3_600_000, "disk_clean_ratio": 1.0,
}  # fmt: skip


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoBrokers]:
    """`a` coordinates the scope, and a chunk will lie on `b`."""
    monkeypatch.setattr(agenda, "_LOOK_S", 0.01)
    found = TwoBrokers(tmp_path, kernels()[-1], monkeypatch)
    try:
        for node in found.nodes.values():
            found.run(make_topic(node.client, "t", 1))
            found.run(Batcher(node.client, coordinator="a").open())
        yield found
    finally:
        found.stop()


async def staged(two: TwoBrokers) -> tuple[str, list[int]]:
    transaction = await Batcher(two.nodes["a"].client, coordinator="a").begin(0)
    assert transaction is not None
    return transaction, await Batcher(two.nodes["b"].client, coordinator="a").stage(0, transaction, b"one", b"two")


async def asks(two: TwoBrokers, seconds: float, times: int = 20) -> None:
    """Time passes in steps; after each `b` has asked, or has tried to, unless it has just tried in vain."""
    participant = two.nodes["b"].broker.delivery.batches.participant
    for _ in range(times):
        two.clock.advance(max(seconds / times, ASK_S + 1) if seconds else ASK_MAX_S)
        participant.tick()
        await eventually_async(lambda: not participant._settling, text="it has asked")


async def decide(two: TwoBrokers, transaction: str, chunk: list[int]) -> None:
    it = Batcher(two.nodes["a"].client, coordinator="a")
    await ok(it.client, it.decision(0, transaction, 2), ChunkList({"b": [chunk]}).encode())


async def published(two: TwoBrokers) -> list[bytes]:
    return [record.body for record in await two.nodes["b"].client.read("t")]


def test_a_coordinator_that_is_gone_for_most_of_an_hour(two: TwoBrokers) -> None:
    async def test() -> None:
        transaction, chunk = await staged(two)
        await two.nodes["a"].stop()
        await asks(two, 0.9 * HOUR_S)
        assert list(two.nodes["b"].broker.delivery_tables.staged.table) == [transaction]
        await two.nodes["a"].start()
        await decide(two, transaction, chunk)
        await eventually_async(lambda: _is(two, [b"one", b"two"]), text="published")

    two.run(test())


def test_a_coordinator_that_is_gone_for_more_than_an_hour(two: TwoBrokers) -> None:
    """It gives the transaction up when it is back; only then the chunk goes. What was dropped can never be decided."""

    async def test() -> None:
        transaction, chunk = await staged(two)
        await two.nodes["a"].stop()
        await asks(two, 3 * HOUR_S)
        assert list(two.nodes["b"].broker.delivery_tables.staged.table) == [transaction], (
            "nobody has said that it may go"
        )
        await two.nodes["a"].start()
        it = Batcher(two.nodes["a"].client, coordinator="a")
        scopes = two.nodes["a"].broker.delivery_tables.scopes
        await eventually_async(lambda: scopes.table["s"].open is None, text="it is given up")
        await asks(two, 0, 1)
        assert not two.nodes["b"].broker.delivery_tables.staged.table
        body = ChunkList({"b": [chunk]}).encode()
        failed = ResponseCode.TRANSACTION_FAILED
        await refused(it.client, it.decision(0, transaction, 2), failed, "is not open (any more)", body=body)
        assert await published(two) == []

    two.run(test())


@pytest.mark.parametrize("kept", [1.0, 0.0])
def test_a_coordinator_that_goes_for_hours_when_it_has_decided(
    two: TwoBrokers, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its participant does not know of the decision, and both lose power meanwhile: it counts all the same."""

    async def test() -> None:
        transaction, chunk = await staged(two)
        with monkeypatch.context() as deaf:
            deaf.setattr(type(two.nodes["b"].broker.delivery.batches.participant), "settle", lambda _self, _scope: None)
            await decide(two, transaction, chunk)
        assert await published(two) == []
        for node in two.nodes.values():
            await node.crash(Random(1), kept)
        await two.nodes["a"].stop()
        await asks(two, 5 * HOUR_S)
        assert list(two.nodes["b"].broker.delivery_tables.staged.table) == [transaction]
        await two.nodes["a"].start()
        await asks(two, 0, 1)
        await eventually_async(lambda: _is(two, [b"one", b"two"]), text="published")
        await asks(two, 0, 2)
        assert not two.nodes["b"].broker.delivery_tables.staged.table
        assert not two.nodes["a"].broker.delivery_tables.scopes.table["s"].publishing

    two.run(test())


async def _is(two: TwoBrokers, wanted: list[bytes]) -> bool:
    return await published(two) == wanted


@pytest.mark.parametrize("kernel", kernels())
def test_retention_passes_by(tmp_path: Path, kernel: str) -> None:
    """The chunk's log file stays for as long as the chunk may be published, over restarts, and goes behind it."""

    async def fill(client: Speaker) -> None:
        answers = await asyncio.gather(*(client.send("other", bytes(4000)) for _ in range(60)))
        assert not any(answer.code for answer in answers)

    async def test() -> None:
        async with running(tmp_path, kernel, store=FILES) as broker, speaking(broker) as client:
            for topic in ("t", "other"):
                await make_topic(client, topic, 1)
            it = Batcher(client)
            await it.open()
            await fill(client)
            transaction = await it.begin(0)
            assert transaction is not None
            chunk = await it.stage(0, transaction, b"one", b"two")
            at = broker.delivery.batches.renewing.needed_from
            await fill(client)
            await on_disk(broker)
            assert await broker.upkeep.delete_expired(asked=True) > 0
            assert at - FILES["segment_bytes"] < broker.store.log.min <= at, "what lies before it is gone"  # type: ignore[operator]
        async with running(tmp_path, kernel, store=FILES) as broker, speaking(broker) as client:
            await fill(client)
            await on_disk(broker)
            assert await broker.upkeep.delete_expired(asked=True) == 0
            it = Batcher(client)
            await it.decide(0, transaction, 2, chunk)
            outcome = await it.published(0)
            assert (outcome.published, outcome.dropped) == (True, {})
            assert [record.body for record in await client.read("t")] == [b"one", b"two"]
            await eventually_async(lambda: not broker.delivery_tables.staged.table, text="nothing is left")
            await fill(client)
            await on_disk(broker)
            assert await broker.upkeep.delete_expired(asked=True) > 2
            assert broker.store.log.min > at

    run(test())

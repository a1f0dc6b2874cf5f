"""A broker that holds chunks: bounded, kept in the log, dropped only when the coordinator says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from unittest import mock

import pytest

from kappamq.broker.batches import participant
from kappamq.broker.batches.participant import UNDECIDED_MAX
from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.errors import BrokerNotFound
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.batches import QueryScopes
from tests.broker.batches.batching import Batcher, body_of
from tests.broker.copies.copying import caught_up, slave_of
from tests.broker.operating import make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.waiting import eventually_async


@on_broker(staged_bytes_max=1 << 20)
async def test_staged_bytes_are_bounded(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    for _ in range(5):
        await it.stage(0, transaction, b"x" * 200_000)
    body = body_of(b"x" * 200_000)
    busy = ResponseCode.SYSTEM_BUSY
    await refused(client, it.chunk(0, transaction, body, 1), busy, "staged_bytes_max", body=body)
    assert not await it.abort(0, transaction)
    broker.delivery.batches.participant.settle("s")
    await eventually_async(lambda: broker.delivery_tables.staged.bytes == 0, text="what was aborted is dropped")
    again = await it.begin(0)
    assert again is not None
    await it.stage(0, again, b"x" * 200_000)


@on_broker()
async def test_transactions_that_nobody_decides_are_bounded(broker: Broker, client: Speaker) -> None:
    """Anybody may make up transactions: what is done for each of a scope must not take long."""
    await make_topic(client, "t")
    it = Batcher(client, coordinator="gone")
    broker.metadata.commit("scope", ["s", "me", "gone"])  # it was known once
    body = body_of(b"x")
    for number in range(UNDECIDED_MAX):
        await it.stage(0, f"{number:032x}", b"x")
    busy = ResponseCode.SYSTEM_BUSY
    await refused(client, it.chunk(0, "f" * 32, body, 1), busy, "100 transactions of scope s", body=body)
    await it.stage(0, f"{7:032x}", b"y")  # what is there goes on
    broker.delivery_tables.staged.apply("chunks-dropped", [f"{5:032x}"])
    await it.stage(0, "f" * 32, b"x")


@on_broker()
async def test_chunks_of_a_transaction_are_bounded(broker: Broker, client: Speaker) -> None:
    with mock.patch.object(participant, "TRANSACTION_CHUNKS_MAX", 3):
        await make_topic(client, "t")
        it = Batcher(client)
        await it.open()
        transaction = await it.begin(0)
        assert transaction is not None
        for _ in range(3):
            await it.stage(0, transaction, b"x")
        body = body_of(b"x")
        denied = ResponseCode.ILLEGAL_OPERATION
        await refused(client, it.chunk(0, transaction, body, 1), denied, "write smaller batches", body=body)


@on_broker()
async def test_a_chunk_may_not_be_too_large(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    body = body_of(b"x" * 150_000, b"y" * 150_000)
    illegal = ResponseCode.MESSAGE_ILLEGAL
    await refused(client, it.chunk(0, transaction, body, 2), illegal, "only a single message may have more", body=body)


@on_broker()
async def test_staged_chunks_keep_their_log_files(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    before = broker.kernel.append_offset
    await it.stage(0, transaction, b"a")
    await client.send("t", b"later")
    assert broker.delivery.batches.renewing.needed_from == before
    await it.abort(0, transaction)
    broker.delivery.batches.participant.settle("s")
    await eventually_async(lambda: not broker.delivery_tables.staged.table, text="it is dropped")
    assert broker.delivery.batches.renewing.needed_from == broker.kernel.append_offset


def test_chunks_of_an_open_transaction_survive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            chunk = await it.stage(0, transaction, b"a")
        async with running(tmp_path) as broker, speaking(broker) as client:
            it = Batcher(client)
            broker.delivery.batches.participant.settle("s")
            await it.decide(0, transaction, 1, chunk)
            await it.published(0)
            assert [record.body for record in await client.read("t")] == [b"a"]

    run(test())


def test_with_synchronous_copies_staged_and_decided_are_on_a_slave_when_they_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a send is: the loss of this machine and its disk must not take them back."""

    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER, slave_timeout_ms=60_000)
        async with (
            running(tmp_path / "m", copies=copies) as master,
            slave_of(master, tmp_path / "s") as slave,
            speaking(master) as client,
        ):
            held = master.copies.followers.held
            await eventually_async(lambda: held.missing() is None, text="the slave is there")
            await make_topic(client, "t", 1)
            it = Batcher(client)
            await it.open()
            await caught_up(master, slave)
            chunks: list[list[int]] = []

            async def begin() -> str:
                return await it.begin(0) or ""

            async def stage() -> list[int]:
                return await it.stage(0, transaction, b"a")

            async def decide() -> object:
                return await it.decide(0, transaction, 1, *chunks)

            transaction = await only_with_the_slave(master, begin, monkeypatch)
            chunks.append(await only_with_the_slave(master, stage, monkeypatch))
            await only_with_the_slave(master, decide, monkeypatch)
            assert (await it.published(0)).published

    run(test())


T = TypeVar("T")


async def only_with_the_slave(
    master: Broker, ask: Callable[[], Coroutine[Any, Any, T]], monkeypatch: pytest.MonkeyPatch
) -> T:
    """Ask while the slave is slow: no answer, though all is on the master's disk; then it has it, too."""
    marks, before = master.store.marks, master.kernel.append_offset
    with monkeypatch.context() as slow:
        slow.setattr(type(master.copies.followers.held), "held", lambda _self: before)
        answer = asyncio.create_task(ask())
        await eventually_async(lambda: marks.confirmed.offset > before, text="it is on the master's disk")
        async with speaking(master) as other:  # whoever asks later is answered
            await ok(other, QueryScopes())
        assert not answer.done()
    master.writer.follow_marks()
    return await answer


@on_broker(staged_bytes_max=1 << 20)
async def test_what_an_earlier_attempt_has_left_makes_room_for_the_next(broker: Broker, client: Speaker) -> None:
    """At once, and not only when the coordinator is asked from time to time: the next one may need as much again."""
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    tables = broker.delivery_tables.staged
    for _attempt in range(3):
        transaction = await it.begin(0)
        assert transaction is not None
        for _ in range(4):
            await it.stage(0, transaction, b"x" * 200_000)
            await eventually_async(
                lambda transaction=transaction: list(tables.table) == [transaction],
                timeout=2,
                text="the earlier one is dropped",
            )


def test_scopes_whose_coordinators_are_gone_are_asked_about_in_turns(tmp_path: Path) -> None:
    """At most 50 at once, each less and less often; when its coordinator cannot be asked for long, every five minutes."""

    async def test() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock, net={"idle_s": 0}) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            for number in range(120):
                broker.metadata.commit("scope", [f"s{number}", "me", "gone"])
                await Batcher(client, scope=f"s{number}").stage(0, f"{number:032x}", b"x")
            asking = broker.delivery.batches.participant
            asked: Counter[str] = Counter()
            peers = broker.delivery.batches.peers

            async def counting(_coordinator: str, scope: str, _finished: object) -> NoReturn:
                asked[scope] += 1
                raise BrokerNotFound("gone")

            with mock.patch.object(peers, "decisions", counting):
                clock.advance(participant.ASK_S)
                for expected in (50, 100, 120):
                    asking.tick()
                    await eventually_async(lambda: not asking._settling, text="all have their answers")
                    assert asked.total() == expected, "and each of them once"
                for _second in range(3600):
                    clock.advance(1)
                    asking.tick()
                    await eventually_async(lambda: not asking._settling, text="all have their answers")
            assert min(asked.values()) >= 12, "none is forgotten"
            assert max(asked.values()) <= 20, "5, 10, 20, 40, 80, 160, and then every 300 seconds"

    run(test())

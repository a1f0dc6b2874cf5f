"""Decided chunks become messages: in order, once, whatever became of their topic and their broker."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.batches import publishing
from kappamq.broker.batches.publishing import Publishing
from kappamq.broker.broker import Broker
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.records import batch
from kappamq.state.staged import Staged
from tests.broker.batches.batching import Batcher, body_of
from tests.broker.operating import make_topic, ok, on_broker
from tests.broker.running import Speaker, crash_copy, run, running, speaking
from tests.broker.timing import AT_ONCE
from tests.store.stores import kernels
from tests.waiting import eventually_async


@on_broker()
async def test_a_deleted_topic_is_counted_and_named(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await make_topic(client, "gone")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    chunks = [await it.stage(0, transaction, b"a", b"b", topic="gone"), await it.stage(0, transaction, b"c")]
    await ok(client, DeleteTopic(topic="gone"))
    await it.decide(0, transaction, 3, *chunks)
    outcome = await it.published(0)
    assert (outcome.published, outcome.dropped) == (True, {"gone": 2})
    assert [record.body for record in await client.read("t")] == [b"c"]
    again = await it.decide(0, transaction, 3, *chunks)
    assert again.dropped == {"gone": 2}, "answered as the first time"


@on_broker()
async def test_a_topic_with_fewer_queues_takes_them_all(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 4)
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    chunks = [await it.stage(0, transaction, b"%d" % queue_id, queue_id=queue_id) for queue_id in range(4)]
    await make_topic(client, "t", 2)
    await it.decide(0, transaction, 4, *chunks)
    await it.published(0)
    found = [[record.body for record in await client.read("t", queue_id)] for queue_id in range(2)]
    assert found == [[b"0", b"2"], [b"1", b"3"]]


@on_broker(delay_levels=AT_ONCE)
async def test_messages_that_are_not_plain_are_published_too(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    body = batch.encode([batch.Member(b"plain"), batch.Member(b"delayed", "DELAY\x013\x02"), batch.Member(b"end")])
    answer = await ok(client, it.chunk(0, transaction, body, 3), body)
    header = it.chunk(0, transaction, body, 3)
    await it.decide(0, transaction, 3, [int(answer.ext["place"]), header.crc])
    assert (await it.published(0)).published
    await eventually_async(lambda: broker.kernel.queue_state("t", 0).end == 3, text="the delayed one has come")
    assert [record.body for record in await client.read("t")] == [b"plain", b"end", b"delayed"]


@pytest.mark.parametrize("kernel", kernels())
def test_after_a_crash_it_goes_on_where_it_was(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the files as kill -9 would leave them, after each published chunk."""
    copies: list[Path] = []
    published: list[int] = []
    publish = Publishing._publish

    def counting(self: Publishing, *given: object) -> None:
        publish(self, *given)  # type: ignore[arg-type]
        published.append(1)
        self._not_before_ms = 1 << 60  # until the copy is made

    monkeypatch.setattr(Publishing, "_publish", counting)

    async def test() -> None:
        async with running(tmp_path / "first", kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            chunks = [await it.stage(0, transaction, b"%da" % number, b"%db" % number) for number in range(5)]
            await it.decide(0, transaction, 10, *chunks)
            for step in range(5):
                await eventually_async(lambda step=step: len(published) == step + 1, text="a chunk is published")
                broker.writer.end_turn()
                copies.append(await crash_copy(broker, tmp_path / f"copy{step}"))
                broker.delivery.batches.publishing._not_before_ms = 0
                broker.delivery.agenda.wake()
            await it.published(0)
        monkeypatch.setattr(Publishing, "_publish", publish)
        for copy in copies:
            async with running(copy, kernel) as broker, speaking(broker) as client:
                await Batcher(client).published(0)
                wanted = [b"%d%c" % (number, letter) for number in range(5) for letter in b"ab"]
                assert [record.body for record in await client.read("t")] == wanted
                await eventually_async(
                    lambda broker=broker: not broker.delivery_tables.staged.table, text="nothing is left"
                )

    run(test())


@pytest.mark.parametrize(("behind", "follows"), [(0, True), (1 << 20, False)])
def test_the_disk_follows_while_a_batch_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, follows: bool
) -> None:
    """Its last message is not far from the disk when all are published."""
    monkeypatch.setattr(publishing, "FLUSH_BYTES", behind)
    synced: list[int] = []

    async def test() -> None:
        async with running(tmp_path, kernels()[-1]) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            chunks = [await it.stage(0, transaction, b"%d" % number) for number in range(4)]
            flush = broker.store.request_flush
            published = Publishing._publish

            def publish(self: Publishing, *given: object) -> None:
                monkeypatch.setattr(broker.store, "request_flush", lambda: synced.append(1) or flush())
                published(self, *given)  # type: ignore[arg-type]
                broker.writer.end_turn()
                monkeypatch.setattr(broker.store, "request_flush", flush)

            monkeypatch.setattr(Publishing, "_publish", publish)
            await it.decide(0, transaction, 4, *chunks)
            await it.published(0)

    run(test())
    assert bool(synced) == follows


NOT_PLAIN = "CLUSTER\x01forged\x02"
"""A name that only brokers give: the kernel leaves such a message to Python."""


@pytest.mark.parametrize("kernel", kernels())
def test_messages_that_are_not_plain_are_published_in_parts(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the files as kill -9 would leave them, after each part; and what is left of it when the topic goes."""
    monkeypatch.setattr(publishing, "PART_ROWS", 10)
    copies: list[Path] = []
    slices: list[int] = []
    publish = Publishing._publish

    def counting(self: Publishing, staged: Staged, *given: object) -> None:
        before = self._store.kernel.append_offset
        publish(self, staged, *given)  # type: ignore[arg-type]
        if self._store.kernel.append_offset > before:
            slices.append(1)
            self._not_before_ms = 1 << 60  # until the copy is made

    monkeypatch.setattr(Publishing, "_publish", counting)
    wanted = [b"%d" % number for number in range(35)]

    async def test() -> None:
        async with running(tmp_path / "first", kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            body = body_of(*wanted, properties=NOT_PLAIN)
            answer = await ok(client, it.chunk(0, transaction, body, len(wanted)), body)
            await it.decide(0, transaction, len(wanted), [int(answer.ext["place"]), zlib.crc32(body)])
            for step in range(4):
                await eventually_async(lambda step=step: len(slices) == step + 1, text="a part is published")
                broker.writer.end_turn()
                copies.append(await crash_copy(broker, tmp_path / f"copy{step}"))
                broker.delivery.batches.publishing._not_before_ms = 0
                broker.delivery.agenda.wake()
            await it.published(0)
            assert [record.body for record in await client.read("t")] == wanted
        monkeypatch.setattr(Publishing, "_publish", publish)
        for copy in copies:
            async with running(copy, kernel) as broker, speaking(broker) as client:
                await Batcher(client).published(0)
                assert [record.body for record in await client.read("t")] == wanted

    run(test())


@pytest.mark.parametrize("kernel", kernels())
def test_of_a_chunk_that_was_published_in_part_the_rest_is_dropped_with_its_topic(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PART_ROWS", 10)
    store_messages = Publishing._store_messages

    def first_part_only(self: Publishing, *given: Any) -> bool:
        whole = store_messages(self, *given)
        if given[0].parts:
            self._not_before_ms = 1 << 60
        return whole

    monkeypatch.setattr(Publishing, "_store_messages", first_part_only)

    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            it = Batcher(client)
            await it.open()
            transaction = await it.begin(0)
            assert transaction is not None
            body = body_of(*[b"x"] * 25, properties=NOT_PLAIN)
            answer = await ok(client, it.chunk(0, transaction, body, 25), body)
            await it.decide(0, transaction, 25, [int(answer.ext["place"]), zlib.crc32(body)])
            parts = broker.delivery_tables.staged.table[transaction].parts
            await eventually_async(lambda: list(parts.values()) == [10], text="the first part")
            await ok(client, DeleteTopic(topic="t"))
            broker.delivery.batches.publishing._not_before_ms = 0
            broker.delivery.agenda.wake()
            assert (await it.published(0)).dropped == {"t": 15}

    run(test())

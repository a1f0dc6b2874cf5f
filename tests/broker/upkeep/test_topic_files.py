"""A deleted topic: its queues are empty at once, and its files go when the log has the deletion, neither before nor too late."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.errors import NotAvailable
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.store.log.marks import RaftGroup
from tests.broker.operating import fill, make_topic, ok, on_broker
from tests.broker.running import Speaker, run, running, speaking
from tests.waiting import eventually_async as eventually


@on_broker(store={"flush_interval_ms": 60_000})
async def test_files_of_a_deleted_topic_go_when_the_deletion_is_on_disk(broker: Broker, client: Speaker) -> None:
    """A crash in between would bring the topic back, without its messages; `python -m benchmarks crash` found that."""
    await make_topic(client, "t", 1)
    await fill(client, "t", [3])
    await broker.upkeep.write_derived()
    deletion = broker.kernel.append_offset
    flushed: list[int] = []
    forget = broker.store.forget_topic

    def spy(name: str) -> None:
        flushed.append(broker.store.marks.flushed.offset)
        forget(name)

    broker.store.forget_topic = spy  # type: ignore[method-assign]
    await ok(client, DeleteTopic(topic="t"))
    await make_topic(client, "t", 1)
    await fill(client, "t", [2])
    await eventually(lambda: bool(flushed))
    assert flushed[0] > deletion
    await broker.upkeep.write_derived()
    assert [record.queue_offset for record in await client.read("t", offset=3)] == [3, 4], "of the new one nothing goes"


@on_broker()
async def test_a_deletion_on_its_way_to_the_disk_keeps_nobody_waiting(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [3])
    await broker.upkeep.write_derived()
    folder = broker.store_config.root / "consumequeue" / "t"
    safe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    on_disk = broker.writer.confirmed
    broker.writer.confirmed = lambda end: safe  # type: ignore[method-assign]
    await ok(client, DeleteTopic(topic="t"))
    broker.writer.confirmed = on_disk  # type: ignore[method-assign]
    assert await asyncio.wait_for(broker.workers.write(lambda: "written"), 10) == "written"
    await make_topic(client, "t", 1)
    await fill(client, "t", [2])
    entries = asyncio.ensure_future(broker.upkeep.write_derived())
    await broker.workers.write(lambda: None)
    assert not entries.done(), "entries of the new topic come after the files of the old one have gone"
    assert folder.exists()
    safe.set_result(None)
    await asyncio.wait_for(entries, 10)
    assert [record.queue_offset for record in await client.read("t", offset=3)] == [3, 4]
    assert folder.exists()


def test_files_stay_if_the_deletion_does_not_get_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kappamq.broker.upkeep.topic_files._DELETION_SAFE_S", 0.01)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            await fill(client, "t", [3])
            await broker.upkeep.write_derived()
            with monkeypatch.context() as patch:
                patch.setattr(broker.writer, "confirmed", lambda end: asyncio.get_running_loop().create_future())
                assert broker.topics.delete("t")
                await eventually(lambda: not broker._base.jobs)
            assert (
                "queue files of the deleted topic t stay until the next start: the disk has not answered" in caplog.text
            )
            assert (tmp_path / "consumequeue" / "t").exists()
            await asyncio.wait_for(broker.upkeep.write_derived(), 10)

    run(test())


@on_broker()
async def test_a_topic_deleted_in_all_its_parts(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [3])
    await client.subscribe("g", "t")
    await client.pull("t", 0)
    await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=2))
    await broker.upkeep.write_derived()
    folder = broker.store_config.root / "consumequeue" / "t"
    assert folder.exists()
    assert broker.topics.delete("t")
    await eventually(lambda: not folder.exists() and not broker._base.jobs)
    assert broker.offsets.get("g", "t", 0) is None
    await make_topic(client, "t")
    assert (await client.send("t", b"again")).ext["queueOffset"] == "3", "numbers are not given twice"
    assert [record.body for record in await client.read("t", offset=3)] == [b"again"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_in_a_group_queues_are_emptied_when_the_deletion_is_confirmed(tmp_path: Path, is_lost: bool) -> None:
    """A leader that is deposed before has deleted nothing, and has given no numbers."""

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            await fill(client, "t", [3])
            safe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            on_disk = broker.writer.confirmed
            broker.writer.confirmed = lambda end: safe  # type: ignore[method-assign]
            mode = broker.store.marks.mode
            broker.store.marks.mode = RaftGroup(lambda: broker.store.log.end)
            broker.topic_files.forget("t")
            broker.store.marks.mode = mode
            await asyncio.sleep(0)
            broker.writer.confirmed = on_disk  # type: ignore[method-assign]
            assert broker.kernel.queue_state("t", 0)[:3] == (0, 3, 3)
            await fill(client, "t", [2])
            if is_lost:
                safe.set_exception(NotAvailable("another broker leads now"))
            else:
                safe.set_result(None)
            low = 0 if is_lost else 3
            await eventually(lambda: not broker.upkeep._held)
            assert broker.kernel.queue_state("t", 0)[:3] == (low, 5, 5)

    run(test())

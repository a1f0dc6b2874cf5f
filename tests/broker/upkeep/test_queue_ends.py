"""Numbering never goes back: not when everything in a queue has expired, not even if the queue files are gone as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kappamq.broker.upkeep.queue_ends import QueueEnds, QueueEndsKeeper
from kappamq.errors import NotAvailable
from kappamq.protocol.headers.admin import DeleteExpiredLog
from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from kappamq.state.events import TopicForgotten
from tests.broker.running import Speaker, crash_copy, on_disk, run, running, speaking
from tests.broker.test_expiry import KERNELS, SEGMENT, SMALL, bounds, fill
from tests.state.committing import committing
from tests.store import stores
from tests.waiting import eventually_async as eventually


async def expire_idle_queues(broker_root: Path, client: Speaker) -> None:
    """Topic `idle` gets 5 messages, then others push them out of the log."""
    await client.subscribe("g", "idle")
    await fill(client, 5, topic="idle")
    commit = UpdateConsumerOffset(consumer_group="g", topic="idle", queue_id=0, commit_offset=5)
    assert (await client.ask(commit)).code == 0
    await fill(client, 40, topic="busy")


@pytest.mark.parametrize("mode", KERNELS)
@pytest.mark.parametrize(
    "lost", ["consumequeue", "consumequeue and position", "consumequeue and snapshot", "one folder"]
)
@pytest.mark.parametrize("killed", [False, True])
def test_an_expired_queue_goes_on_where_it_ended(tmp_path: Path, mode: str, lost: str, killed: bool) -> None:
    live, root = tmp_path / "live", tmp_path / "photo"

    async def test() -> None:
        async with running(live, mode, store=SMALL) as broker, speaking(broker) as client:
            await expire_idle_queues(live, client)
            broker.offsets.record_commits()
            await on_disk(broker)
            assert "deleted" in ((await client.ask(DeleteExpiredLog())).remark or "")
            assert broker.store.log.min >= SEGMENT
            assert await bounds(client, "idle") == (5, 5)
            if killed:
                await crash_copy(broker, root)
        if not killed:
            shutil.copytree(live, root)
        shutil.rmtree(
            root / "consumequeue" / "idle" if lost == "one folder" else root / "consumequeue", ignore_errors=True
        )
        if "position" in lost:
            (root / "kappamq.position").unlink(missing_ok=True)
        if "snapshot" in lost:
            (root / "config" / "kappamq.queues.json").unlink(missing_ok=True)  # the log has it, too
        for _ in range(2):
            async with running(root, mode, store=SMALL) as broker, speaking(broker) as client:
                low, end = await bounds(client, "idle")
                assert low == end >= 5
                asked = QueryConsumerOffset(consumer_group="g", topic="idle", queue_id=0)
                assert (await client.ask(asked)).ext["offset"] == "5"
                assert (await client.send("idle", b"next")).ext["queueOffset"] == str(end)
                assert [record.queue_offset for record in await client.read("idle", offset=end)] == [end]
                await fill(client, 40, topic="busy")
                await client.ask(DeleteExpiredLog())
            shutil.rmtree(root / "consumequeue")

    run(test())


def test_ends_from_before_are_recorded_at_the_start(tmp_path: Path) -> None:
    """A store whose log was shortened by somebody who did not record them."""

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            await expire_idle_queues(tmp_path, client)
            first = broker.store.log.min
        for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
            path.unlink()  # the last messages of `idle` were in the first one
        for snapshot in (tmp_path / "config").glob("kappamq.queues.json*"):
            snapshot.unlink()
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            assert broker.store.log.min > first
            await eventually(lambda: broker.queue_ends.get("idle", 0) == 5)
        shutil.rmtree(tmp_path / "consumequeue")
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            assert await bounds(client, "idle") == (5, 5)

    run(test())


@pytest.mark.parametrize("recorded", [True, False])
def test_a_forgotten_topic_is_forgotten_here_too(tmp_path: Path, recorded: bool) -> None:
    """Its messages expire, it is deleted, the log passes the deletion, the broker starts again: a new group of the topic that is
    made again must find its first message, whether or not the log took the record that the topic is forgotten."""

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            await expire_idle_queues(tmp_path, client)
            await client.ask(DeleteExpiredLog())
            assert broker.queue_ends.get("idle", 0) == 5
            assert broker.topics.delete("idle")
            await fill(client, 40, topic="busy")
            if not recorded:
                broker.events.off(TopicForgotten, broker.queue_ends.topic_forgotten)
            await client.ask(DeleteExpiredLog())
            assert "idle" not in broker.topics.deleted
            assert (broker.queue_ends.get("idle", 0) == 0) is recorded
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            begin = 0 if recorded else 5
            assert broker.topics.first_offset("idle", 0) == begin
            await client.subscribe("new", "idle")
            assert (await client.send("idle", b"first")).ext["queueOffset"] == str(begin)
            asked = QueryConsumerOffset(consumer_group="new", topic="idle", queue_id=0)
            assert (await client.ask(asked)).ext["offset"] == str(begin)

    run(test())


def test_an_unknown_topic_is_forgotten_with_the_log_as_of_the_start(tmp_path: Path) -> None:
    """So the table does not grow for ever, not even in a store from before topics were forgotten here."""

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            broker.metadata.commit("queue-ends", {"gone": {0: 9}})
            await fill(client, 1, topic="busy")
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            assert broker.topics.deleted["gone"] == {0: 9}
            for _ in range(2):  # the first one notes where the log ended
                await fill(client, 40, topic="busy")
                await client.ask(DeleteExpiredLog())
            assert "gone" not in broker.topics.deleted
            assert broker.queue_ends.get("gone", 0) == 0
        async with running(tmp_path, store=SMALL) as broker:
            assert broker.queue_ends.get("gone", 0) == 0
            assert "gone" not in broker.topics.deleted

    run(test())


def test_forgetting_is_part_of_the_fold_and_survives_a_log_that_takes_nothing(tmp_path: Path) -> None:
    def refuse(kind: str, change: object) -> int:
        raise NotAvailable("the disk is full")

    with stores.opened(stores.config(tmp_path)) as store:
        for record in (lambda kind, change: 0, refuse):
            ends = committing(lambda commit: QueueEnds(store, commit), record)
            ends.apply("queue-ends", {"t": {"0": 9}, "u": {"0": 1}})
            ends.dirty = False
            ends.forget("unknown")
            assert not ends.dirty
            ends.forget("t")
            assert (ends.to_snapshot(), ends.dirty) == ({"ends": {"u": {"0": 1}}}, True)
        ends.apply("queue-ends-forgotten", "u")
        ends.apply("queue-ends-forgotten", "u")
        assert ends.to_snapshot() == {"ends": {}}


def test_only_queues_without_messages_are_listed_and_each_once(tmp_path: Path) -> None:
    recorded: list[object] = []

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            await expire_idle_queues(tmp_path, client)
            ends = committing(
                lambda commit: QueueEnds(broker.store, commit),
                lambda kind, change: recorded.append(change) or 0,  # type: ignore[func-returns-value]
            )
            keeper = QueueEndsKeeper(
                ends, broker.store, broker.workers.read, broker.upkeep.write_derived, broker.writer.confirmed
            )
            end = broker.store.log.end
            for _ in range(2):
                await keeper.renew_below(end // SEGMENT * SEGMENT)
            assert keeper.needed_from == end // SEGMENT * SEGMENT
            (change,) = recorded
            assert isinstance(change, dict)
            assert change["idle"] == {0: 5}
            assert "busy" not in change
            again = committing(lambda commit: QueueEnds(broker.store, commit))
            again.from_snapshot(ends.to_snapshot())
            assert again.get("idle", 0) == 5

    run(test())


def test_what_the_log_knows_counts_more(tmp_path: Path) -> None:
    with stores.opened(stores.config(tmp_path)) as store:
        writer = stores.Writer(store)
        writer.send(b"x")
        writer.write()
        ends = QueueEnds(store, lambda kind, change: 0)
        ends.apply("queue-ends", {"t": {"0": 9, "1": 7}})
        ends.restore()
        assert store.kernel.queue_state("t", 0)[:2] == (0, 1), (
            "made again after it was forgotten: nothing of it is hidden"
        )
        assert store.kernel.queue_state("t", 1)[:3] == (7, 7, 7)


def test_what_is_in_the_log_and_not_in_its_queue_counts_as_well(tmp_path: Path) -> None:
    with stores.opened(stores.config(tmp_path)) as store:
        writer = stores.Writer(store)
        writer.send(b"x")
        writer.send(b"x", queue_id=1)
        writer.write()
        stores.flush(store)
    (tmp_path / "kappamq.position").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with stores.opened(stores.config(tmp_path), enter_up_to=0) as store:
        assert store.kernel.queue_state("t", 0)[:3] == (0, 0, 1)
        ends = QueueEnds(store, lambda kind, change: 0)
        ends.apply("queue-ends", {"t": {"0": 9}, "gone": {"0": 7}})
        assert ends.restore() == {"gone": {0: 7}}
        assert store.kernel.queue_state("t", 0)[:3] == (0, 0, 1), "its number stays, and is not hidden later"


@pytest.mark.parametrize("kind", stores.kernels())
def test_a_copy_goes_on_where_a_queue_ended_whose_messages_its_log_never_had(tmp_path: Path, kind: str) -> None:
    """What the leader has recorded arrives behind the start, or is newer than what a queue file has kept."""
    with stores.opened(stores.config(tmp_path), kind) as store:
        writer = stores.Writer(store)
        writer.send(b"x", queue_id=2)
        writer.write()
        ends = QueueEnds(store, lambda kind, change: 0)
        store.kernel.set_queue("t", 1, 3, 3)
        recorded = {"t": {"0": 9, "1": 8, "2": 1}}
        ends.apply("queue-ends", recorded)
        ends.followed(recorded)
        assert [store.kernel.queue_state("t", queue_id)[:3] for queue_id in range(3)] == [
            (9, 9, 9),
            (8, 8, 8),
            (0, 1, 1),
        ]
        store.kernel.set_queue("t", 1, 3, 3)
        ends.restore()
        assert store.kernel.queue_state("t", 1)[:3] == (8, 8, 8)

"""Damage of a log with copies: it is found, mended with the bytes of another copy, and nobody misses a message."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.upkeep import scrub as scrub_module
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.raft import MemberId
from kappamq.store.verify.report import Kind
from tests.broker.copies.copying import caught_up, copies_port, log_bytes, same_logs, slave_of
from tests.broker.copies.members.test_group import members
from tests.broker.running import run, running, speaking
from tests.broker.upkeep.test_damage import drain, fill
from tests.store.stores import kernels
from tests.waiting import eventually_async

pytestmark = pytest.mark.timeout(120)
STORE = {"scrub_bytes_per_second": 1 << 30, "segment_bytes": 64 << 10, "message_bytes_max": 8 << 10}
SYNC = CopiesConfig(role=SYNC_MASTER)


@pytest.fixture(autouse=True)
def _all_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "_SHARE", 1)


def place_of(broker: Broker, number: int, topic: str = "t") -> tuple[int, int]:
    entry = broker.store.entry(topic, 0, number)
    assert entry is not None
    return entry[0], entry[1]


def spoil(broker: Broker, log_offset: int, data: bytes) -> None:
    """What a disk does: other bytes are in the file, and nobody was told."""
    size = broker.store_config.segment_bytes
    with (broker.store_config.root / "commitlog" / f"{log_offset - log_offset % size:020d}").open("r+b") as file:
        file.seek(log_offset % size)
        file.write(data)


async def scrubbed(broker: Broker) -> list[Any]:
    broker.scrubber.is_busy = lambda: False
    await broker.upkeep.write_derived()
    return await broker.scrubber.run_pass()


async def is_confirmed(*brokers: Broker) -> None:
    for broker in brokers:
        end = broker.store.log.end
        await eventually_async(
            lambda broker=broker, end=end: broker.store.marks.confirmed.offset >= end,  # type: ignore[misc]
            text="nobody can take it back",
        )


@pytest.mark.parametrize("mode", kernels())
@pytest.mark.parametrize("who", ["master", "slave"])
def test_the_scrub_mends_a_copy_with_the_bytes_of_another(
    tmp_path: Path, mode: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            running(tmp_path / "m", mode, store=STORE, copies=SYNC) as master,
            slave_of(master, tmp_path / "s", mode, store=STORE) as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: len(master.copies.followers.following) == 1)
            await speaker.subscribe("g", "t")
            bodies = await fill(speaker, 400)
            await caught_up(master, slave)
            await is_confirmed(master, slave)
            broker = master if who == "master" else slave
            whole = log_bytes(broker, 0, broker.store.log.end)
            at, size = place_of(broker, 41)
            spoil(broker, at + size // 2, b"\xff")  # one byte of a body
            first, _size = place_of(broker, 300)
            last, size = place_of(broker, 306)
            spoil(broker, first, bytes(last + size - first))  # several records, as a disk loses a sector
            found = await scrubbed(broker)
            assert [problem.kind for problem in found] == [Kind.LOG, Kind.LOG], "keys of what is back are right"
            assert log_bytes(broker, 0, broker.store.log.end) == whole
            assert caplog.text.count("repaired the damaged bytes") == 2
            assert "; repaired" in caplog.text
            assert (broker.damage.found, broker.damage.repaired) == (2, 2)
            assert broker.copies.mender.open_stretches == []
            same_logs(master, slave)
            async with speaking(broker) as reader:
                assert await drain(reader, 400) == bodies
            assert await scrubbed(broker) == []

    with caplog.at_level(logging.WARNING):
        run(test())


@pytest.mark.parametrize("mode", kernels())
def test_a_consumer_that_comes_to_damage_gets_the_message(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The head of a record is gone, so a pull finds that nothing good is there: it is brought before the consumer is answered."""

    async def test() -> None:
        async with members(tmp_path, mode, store=STORE) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                bodies = await fill(speaker, 200)
                await group.agree()
                at, _size = place_of(leader, 120)
                spoil(leader, at, bytes(64))
                assert await drain(speaker, 200, is_patient=True) == bodies
            assert (leader.damage.found, leader.damage.repaired) == (1, 1)
            assert leader.node_role.is_master, "a moment's damage deposes nobody"
            assert "consumers continue" not in caplog.text
            same_logs(*group.running.values())

    with caplog.at_level(logging.WARNING):
        run(test())


def test_a_cut_log_file_is_filled_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, store=STORE) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "t")
                bodies = await fill(speaker, 400)
                await group.agree()
                name = next(name for name, broker in group.running.items() if broker is not leader)
                follower = group.running[name]
                path = sorted((tmp_path / name / "commitlog").iterdir())[0]
                with path.open("r+b") as file:
                    file.truncate(20_000)
                async with speaking(follower) as reader:
                    assert await drain(reader, 400, is_patient=True) == bodies
                await eventually_async(lambda: follower.damage.unreadable_bytes == 0, text="it is shown again")
                assert path.stat().st_size == follower.store_config.segment_bytes
                same_logs(*group.running.values())

    run(test())


def test_a_member_whose_damage_nobody_could_mend_yet_does_not_lead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of three is away, and of the two others the leader is damaged where the other one is, too: it hands over to nobody who is
    as badly off, and what only the third has comes back with it."""

    async def test() -> None:
        async with members(tmp_path, store=STORE) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                bodies = await fill(speaker, 100)
            await group.agree()
            away, other = (name for name, broker in group.running.items() if broker is not leader)
            await group.stop(away)
            at, size = place_of(leader, 50)
            spoil(leader, at + size // 2, b"\xff")
            spoil(group.running[other], at + size // 2, b"\xff")
            found = await scrubbed(leader)
            assert [problem.kind for problem in found if problem.kind is Kind.LOG] == [Kind.LOG]
            assert leader.copies.mender.is_unfit
            assert "is damaged at" in caplog.text
            await eventually_async(lambda: not leader.node_role.is_master, text="it hands over", timeout=20)
            await group.start(away, store=STORE)
            await eventually_async(lambda: leader.copies.mender.open_stretches == [], text="it is mended", timeout=20)
            await scrubbed(group.running[other])
            await group.agree()
            same_logs(*group.running.values())
            async with speaking(await group.leader()) as speaker:
                assert await drain(speaker, 100) == bodies

    with caplog.at_level(logging.WARNING):
        run(test())


def test_what_no_copy_has_is_told_once_and_holds_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with members(tmp_path, store=STORE) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                bodies = await fill(speaker, 100)
                await group.agree()
                at, _size = place_of(leader, 50)
                for broker in group.running.values():
                    spoil(broker, at, bytes(64))
                assert await drain(speaker, 100, is_patient=True) == bodies[:50] + bodies[51:]
                assert not leader.copies.mender.is_unfit, "nobody is better off"
                assert caplog.text.count("no other copy has them") == 1
                assert (await speaker.send("t", b"more")).code == 0

    with caplog.at_level(logging.WARNING):
        run(test())


def test_bytes_that_are_not_whole_records_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that gives away what is wrong: nothing of it reaches the log."""

    async def test() -> None:
        async with (
            running(tmp_path / "m", store=STORE, copies=SYNC) as master,
            slave_of(master, tmp_path / "s", store=STORE) as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: len(master.copies.followers.following) == 1)
            await fill(speaker, 50)
            await caught_up(master, slave)
            await is_confirmed(master, slave)
            at, size = place_of(slave, 20)
            spoil(slave, at + size // 2, b"\xff")
            damaged = log_bytes(slave, 0, slave.store.log.end)
            good = master.copies.ranges._whole
            monkeypatch.setattr(
                master.copies.ranges, "_whole", lambda start, end: good(start, end)[:-1] + b"\x00", raising=True
            )
            assert not await slave.copies.mender.mend(at, at + size)
            assert log_bytes(slave, 0, slave.store.log.end) == damaged
            assert slave.copies.mender.is_unfit
            monkeypatch.undo()
            await eventually_async(lambda: not slave.copies.mender.is_unfit, text="it is tried again", timeout=20)
            same_logs(master, slave)

    run(test())


def test_where_the_neighbours_differ_nothing_is_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(tmp_path / "m", store=STORE, copies=SYNC) as master,
            slave_of(master, tmp_path / "s", store=STORE) as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: len(master.copies.followers.following) == 1)
            await fill(speaker, 20)
            await caught_up(master, slave)
            await is_confirmed(master, slave)
            mender, (at, size) = slave.copies.mender, place_of(slave, 10)
            spoil(slave, at - 8, b"12345678")  # the neighbour is damaged, too, and that is not asked for
            assert not await mender.mend(at, at + size)
            assert not await mender.mend(slave.store.log.end, slave.store.log.end + 10), "nothing is there"
            assert slave.copies._places() == [copies_port(master)]

    run(test())


def test_nobody_is_asked_where_there_are_no_copies(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=STORE) as broker, speaking(broker) as speaker:
            await fill(speaker, 20)
            await is_confirmed(broker)
            at, size = place_of(broker, 10)
            spoil(broker, at + size // 2, b"\xff")
            assert not await broker.copies.mender.mend(at, at + size)
            assert not await broker.copies.mender.mend_at(at)
            assert not broker.copies.mender.is_unfit

    run(test())


def test_a_leader_sends_nobody_what_its_disk_has_damaged(tmp_path: Path) -> None:
    """A follower that comes back needs what the leader has only on its disk, where it is damaged: it gets it as soon as it is mended."""

    async def test() -> None:
        async with members(tmp_path, store=STORE) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "t")
                await fill(speaker, 20)
                name = next(name for name, broker in group.running.items() if broker is not leader)
                await group.stop(name)
                bodies = await fill(speaker, 300)
            await group.agree()
            at, size = place_of(leader, 100)
            spoil(leader, at + size // 2, b"\xff")
            leader.store.kernel.hot_from = leader.store.log.end  # as if it were long ago
            back = await group.start(name, store=STORE)
            await group.agree()
            assert back.copies.group is not None
            assert back.copies.group.why_stopped is None
            assert back.copies.group.node is not None
            assert back.copies.group.node.me == MemberId(name, 1)
            same_logs(*group.running.values())
            async with speaking(back) as reader:
                assert (await drain(reader, 320))[20:] == bodies

    run(test())

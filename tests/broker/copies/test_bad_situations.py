"""What goes wrong with copies gets a clear answer, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import sys
from pathlib import Path

from kappamq.config.copies import ASYNC_MASTER, SYNC_MASTER, CopiesConfig
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import LockBatch
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import LockQueues
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.copies.members.test_group import members
from tests.broker.copies.test_link import hello
from tests.broker.running import Speaker, run, running, speaking
from tests.store.faulty import FaultyFiles
from tests.waiting import eventually_async

LOCK = LockBatch("g", "c1", {MessageQueue("tea", "b", 0)}).encode()


async def read(speaker: Speaker) -> list[bytes]:
    await speaker.subscribe("g", "tea")
    return [record.body for record in await speaker.read("tea")]


def test_a_slave_that_is_too_slow_is_told_to_senders(tmp_path: Path) -> None:
    """Code 12, and the message is stored."""

    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER, slave_timeout_ms=300)
        async with running(tmp_path, copies=copies) as master, speaking(master) as speaker:
            _reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(hello(master))
            await eventually_async(lambda: len(master.copies.followers.following) == 1, text="it follows")
            answer = await speaker.send("tea", b"x")
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, answer.remark
            assert await read(speaker) == [b"x"]
            out.transport.abort()

    run(test())


def test_a_slave_without_room_waits_and_goes_on_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        disk = FaultyFiles()
        async with (
            running(tmp_path / "m", copies=CopiesConfig(role=SYNC_MASTER, slave_timeout_ms=300)) as master,
            slave_of(master, tmp_path / "s", files=disk) as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="the slave follows")
            disk.fail("allocate", code=errno.ENOSPC, on="commitlog")
            codes = {(await speaker.send("tea", b"x" * 100_000)).code for _ in range(15)}
            promised = {0, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
            assert codes <= promised
            assert len(codes) > 1, "senders hear that the copy is missing"
            await eventually_async(
                lambda: "stored nothing more" in (slave.copies.following.problem or "stored nothing more")
            )
            assert slave.store.failed is None
            disk.repair()
            await caught_up(master, slave)
            same_logs(master, slave)
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="it counts again")
            assert (await speaker.send("tea", b"y")).code == 0

    run(test())


def test_a_leader_without_majority_renews_no_lock(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "tea")
                assert (await speaker.send("tea", b"x")).code == 0
                assert (await speaker.ask(LockQueues(), LOCK)).code == 0
                for name, broker in list(group.running.items()):
                    if broker is not leader:
                        await group.stop(name)
                await eventually_async(lambda: not leader.role.is_held, text="it steps down")
                answer = await speaker.ask(LockQueues(), LOCK)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert (answer.remark or "").endswith("[leader unknown]")

    run(test())


def test_a_slave_that_holds_what_its_master_has_lost(tmp_path: Path) -> None:
    """It is refused; promoted it gives all of it out, and cut it follows, and keeps the bytes aside."""
    master_root, slave_root, lost = tmp_path / "m", tmp_path / "s", tmp_path / "lost"

    async def test() -> None:
        async with running(master_root) as master, slave_of(master, slave_root) as slave, speaking(master) as speaker:
            assert (await speaker.send("tea", b"old")).code == 0
            await read(speaker)
            await caught_up(master, slave)
        shutil.copytree(master_root, lost)
        async with running(master_root) as master, slave_of(master, slave_root) as slave, speaking(master) as speaker:
            await caught_up(master, slave)
            for number in range(5):
                assert (await speaker.send("tea", b"new %d" % number)).code == 0
            await caught_up(master, slave)
        shutil.rmtree(master_root)
        shutil.copytree(lost, master_root)  # as after a power cut without sync flush
        shutil.copytree(slave_root, tmp_path / "promoted")
        promoted = CopiesConfig(role=ASYNC_MASTER)
        async with (
            running(tmp_path / "promoted", copies=promoted) as promoted_broker,
            speaking(promoted_broker) as speaker,
        ):
            assert await read(speaker) == [b"old", *(b"new %d" % number for number in range(5))]
        async with running(master_root) as master, slave_of(master, slave_root) as slave:
            end = master.store.log.end
            await eventually_async(lambda: f"kappamq store cut --to {end}" in (slave.copies.following.problem or ""))
            assert "the master has lost messages that this copy still has" in (slave.copies.following.problem or "")
            assert slave.store.log.end > end, "nothing was dropped"
        to = re.search(r"--to (\d+)", slave.copies.following.problem or "")
        assert to is not None
        cut = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kappamq", "store", "cut", "--data", str(slave_root), "--to", to[1],
            *("--set", "maxHashSlotNum=997", "--set", "maxIndexNum=10000"),
            *("--set", "mappedFileSizeConsumeQueue=20000", "--set", "maxMessageSize=262144"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await asyncio.wait_for(cut.communicate(), 60)
        assert cut.returncode == 0, said.decode()
        (kept,) = slave_root.glob("cut-*.bin")
        assert b"new 4" in kept.read_bytes()
        async with running(master_root) as master, slave_of(master, slave_root) as slave, speaking(master) as speaker:
            assert (await speaker.send("tea", b"later")).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)
            async with speaking(slave) as reader:
                assert await read(reader) == [b"old", b"later"]

    run(test())

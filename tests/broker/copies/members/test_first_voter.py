"""A broker of its own becomes the first voter of a group, others join it, and it becomes a broker of its own again: the same bytes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.members import group as group_module
from kappamq.broker.copies.seeding.files import SeedFiles
from kappamq.errors import StoreError
from kappamq.replication.seeding import FILLING, Marker
from kappamq.store.files import Files
from tests.broker.copies.copying import log_bytes, same_logs
from tests.broker.copies.members.test_changing import all_vote, changed, free_port, start
from tests.broker.copies.members.test_group import Members, group_of, members
from tests.broker.running import run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async


async def sent(broker: Broker, *bodies: bytes) -> None:
    async with speaking(broker) as speaker:
        for body in bodies:
            assert (await speaker.send("tea", body)).code == 0


async def read(broker: Broker) -> list[bytes]:
    async with speaking(broker) as speaker:
        await speaker.subscribe("g", "tea")
        return [record.body for record in await speaker.read("tea")]


@pytest.mark.parametrize("mode", kernels())
def test_a_broker_of_its_own_founds_a_group_and_leaves_it_twice(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        all_sent: list[bytes] = []
        before = b""
        for life in range(2):
            async with running(tmp_path / "n0", mode) as alone:
                assert log_bytes(alone, 0, len(before)) == before
                all_sent.append(b"alone %d" % life)
                await sent(alone, all_sent[-1])
                before = log_bytes(alone, 0, alone.store.log.end)
            async with AsyncExitStack() as stack:
                group = Members(tmp_path, stack, mode, count=1)
                first = await group.start("n0")
                assert await group.leader() is first
                assert log_bytes(first, 0, len(before)) == before
                all_sent.append(b"first voter %d" % life)
                await sent(first, all_sent[-1])
                names = ["n0", *(f"{life}x{number}" for number in (1, 2))]
                for name in names[1:]:
                    free_port(group, name)
                for name in names[1:]:
                    await changed(group, "add", name)
                    await start(group, name, names)
                    await all_vote(group, *names[: names.index(name) + 1])
                all_sent.append(b"of three %d" % life)
                await sent(first, all_sent[-1])
                await group.agree()
                same_logs(*group.running.values())
                await group.stop("n0")
                leader = await group.leader()
                assert await read(leader) == all_sent
                await start(group, "n0", names)
                await group.agree()
                before = log_bytes(group.running["n0"], 0, group.running["n0"].store.log.end)
            with pytest.raises(StoreError, match=r"delete kappamq\.vote and kappamq\.terms"):
                async with running(tmp_path / "n0", mode):
                    pass
            for name in ("kappamq.vote", "kappamq.terms"):
                (tmp_path / "n0" / name).unlink()
        async with running(tmp_path / "n0", mode) as alone:
            assert await read(alone) == all_sent

    run(test())


def test_a_group_of_one_with_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, count=1) as group:
            await sent(await group.leader(), b"x")
            await group.stop("n0")
            await group.start("n0")
            assert await read(await group.leader()) == [b"x"]

    run(test())


def test_a_log_of_ones_own_is_not_brought_into_a_group_of_several(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "n0") as alone:
            await sent(alone, b"x")
        async with AsyncExitStack() as stack:
            group = Members(tmp_path, stack, "twin")
            with pytest.raises(StoreError, match=r"start it with dLegerPeers=n0-127\.0\.0\.1:\d+ alone"):
                await group.start("n0")

    run(test())


def test_a_member_that_has_lost_its_vote_founds_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path, count=1) as group:
            await sent(await group.leader(), b"x")
            await group.stop("n0")
            (tmp_path / "n0" / "kappamq.vote").unlink()
            with pytest.raises(StoreError, match="does not know what it has promised"):
                await group.start("n0")

    run(test())


def test_a_copy_that_is_not_whole_founds_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "n0") as alone:
            await sent(alone, b"x")
        files = SeedFiles(tmp_path / "n0", 1 << 20, Files())
        files.mark(Marker(state=FILLING, leader="127.0.0.1:1", until=1 << 30))
        async with AsyncExitStack() as stack:
            group = Members(tmp_path, stack, "twin", count=1)
            with pytest.raises(StoreError, match="holds only a part of its master's messages"):
                await group.start("n0")

    run(test())


def test_a_group_that_cannot_begin_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        def fail(*_arguments: object) -> None:
            raise StoreError("its log is another one")

        monkeypatch.setattr(group_module, "node_at_start", fail)
        async with AsyncExitStack() as stack:
            first = group_of(await Members(tmp_path, stack, "twin", count=1).start("n0"))
            await eventually_async(lambda: first.why_stopped == "its log is another one", text="it says why")
            assert first.group_id == ""

    run(test())

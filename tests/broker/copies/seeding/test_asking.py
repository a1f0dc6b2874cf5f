"""A copy that has nothing, or too little, of a log whose beginning is gone: it gets snapshots and the rest, whenever it is killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.seeding.files import SeedFiles
from kappamq.broker.copies.serving import Followers
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.errors import StoreError
from kappamq.replication.frames import OPENING, VERSION, Kind, text_frame
from kappamq.replication.seeding import MARKER_NAME
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.copies.shortened import SMALL, fill, numbering, tables, with_a_past
from tests.broker.running import crash_copy, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async


def small(root: Path, mode: str = "twin", **changes: Any) -> Any:
    return running(root, mode, store=SMALL, **changes)


async def is_the_same(master: Broker, copy: Broker) -> None:
    """Log, queues and tables from the beginning of the master's log on."""
    await caught_up(master, copy)
    await eventually_async(lambda: not copy.seeding.is_pending, text="the copy is whole")
    assert copy.store.log.min >= master.store.log.min
    same_logs(master, copy)
    # The master goes on recording offsets of its own.
    await eventually_async(lambda: tables(copy) == tables(master), text="tables are equal")
    await eventually_async(lambda: numbering(copy) == numbering(master), text="queues are equal")


@pytest.mark.parametrize("mode", kernels())
def test_an_empty_slave_of_a_log_without_beginning(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(small(tmp_path / "m", mode))
            speaker = await stack.enter_async_context(speaking(master))
            await with_a_past(master, speaker)
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s", mode, store=SMALL))
            assert slave.store.log.min == master.store.log.min
            await is_the_same(master, slave)
            assert not (tmp_path / "s" / MARKER_NAME).exists()
            await fill(speaker, 5)
            await is_the_same(master, slave)
            reader = await stack.enter_async_context(speaking(slave))
            low = master.store.kernel.queue_state("tea", 0).first
            assert [r.body for r in await reader.read("tea", 0, low)] == [
                r.body for r in await speaker.read("tea", 0, low)
            ]

    run(test())


def test_a_slave_that_lags_behind_the_beginning_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(small(tmp_path / "m"))
            speaker = await stack.enter_async_context(speaking(master))
            await fill(speaker, 3)
            async with slave_of(master, tmp_path / "s", store=SMALL) as slave:
                await caught_up(master, slave)
                had = slave.store.log.end
            await with_a_past(master, speaker)
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s", store=SMALL))
            await is_the_same(master, slave)
            old = tmp_path / "s" / "before-seeding-1"
            assert (old / "commitlog" / f"{0:020d}").stat().st_size == SMALL["segment_bytes"]
            assert (old / "commitlog" / f"{0:020d}").read_bytes()[:had] != bytes(had)
            assert "before-seeding-1" in caplog.text

    run(test())


@pytest.mark.parametrize("secret", [None, "a long enough one"])
def test_a_slave_hears_it_while_it_runs_and_is_seeded_when_it_is_started_again(
    tmp_path: Path, secret: str | None
) -> None:
    """Its master could not be asked when it was started."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            copies = {"secret": secret}
            master = await stack.enter_async_context(
                running(tmp_path / "m", store=SMALL, copies=CopiesConfig(secret=secret))
            )
            speaker = await stack.enter_async_context(speaking(master))
            await with_a_past(master, speaker)
            await master.end_role()
            async with slave_of(master, tmp_path / "s", store=SMALL, copies=copies) as slave:
                assert slave.store.log.min == 0
                await master.begin_role()
                why = str(await asyncio.wait_for(slave.unfit(), 30))
                assert "Start this broker again" in why
                assert f"the master's begins at {master.store.log.min}" in why
            async with slave_of(master, tmp_path / "s", store=SMALL, copies=copies) as slave:
                await is_the_same(master, slave)

    run(test())


def test_a_stranger_cannot_make_a_slave_give_up_what_it_has(tmp_path: Path) -> None:
    """It says so at the master's place, as whoever tells name servers that it is the master can."""

    async def test() -> None:
        said: dict[str, object] = {"why": "your log ends before mine begins", "seed": 1, "proof": "00"}

        async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(OPENING.size)
            writer.write(OPENING.pack(-VERSION) + text_frame(Kind.REFUSED, said, crc32))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        config = CopiesConfig(role=SLAVE, master_address=f"{host}:{port}", secret="a long enough one")
        async with server, running(tmp_path / "s", store=SMALL, copies=config, broker_id=1) as slave:
            following = slave.copies.following
            await eventually_async(lambda: "your log ends" in str(following.problem), text="it has heard that")
            assert not slave.seeding.is_wanted
            assert not (tmp_path / "s" / MARKER_NAME).exists()

    run(test())


@pytest.mark.parametrize("files", [0, 1, 5, 100])
def test_a_slave_that_is_killed_while_snapshots_come_in(
    tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(small(tmp_path / "m"))
            speaker = await stack.enter_async_context(speaking(master))
            async with slave_of(master, tmp_path / "s", store=SMALL) as slave:
                await fill(speaker, 3)
                await caught_up(master, slave)
            await with_a_past(master, speaker)
            left = files
            receive = SeedFiles.receive

            def killed(self: SeedFiles, name: str, at: int, data: bytes) -> None:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                receive(self, name, at, data)

            monkeypatch.setattr(SeedFiles, "receive", killed)
            if files < 50:
                with pytest.raises(Killed):
                    async with slave_of(master, tmp_path / "s", store=SMALL):
                        pass
                assert (tmp_path / "s" / MARKER_NAME).exists()
                with pytest.raises(StoreError, match="cannot be a master"):
                    async with small(tmp_path / "s"):
                        pass
            monkeypatch.undo()
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s", store=SMALL))
            await is_the_same(master, slave)
            old = sorted(path.name for path in (tmp_path / "s").glob("before-seeding-*"))
            assert old == ["before-seeding-1"], "the former contents are there, once"
            assert (tmp_path / "s" / old[0] / "commitlog").exists()

    run(test())


class Killed(BaseException):
    """As by kill -9: nobody handles it."""


def test_a_slave_that_is_killed_while_the_log_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are ahead of its log, and must be so again after the restart: no offset is cut to what is there yet."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(small(tmp_path / "m"))
            speaker = await stack.enter_async_context(speaking(master))
            await with_a_past(master, speaker)
            stuck_at = master.store.log.min + SMALL["segment_bytes"]
            read = Followers.read

            async def stuck(self: Followers, offset: int, size: int) -> bytes:
                return b"" if offset >= stuck_at else await read(self, offset, size)

            monkeypatch.setattr(Followers, "read", stuck)
            async with slave_of(master, tmp_path / "s", store=SMALL) as slave:
                await eventually_async(lambda: slave.store.log.end == stuck_at, text="a part of the log is there")
                assert tables(slave)["consumerOffset.json"]["offsetTable"]["tea@g"] == {0: 17}, "tables are ahead"
                assert slave.store.kernel.queue_state("tea", 0).end < master.store.kernel.queue_state("tea", 0).end
                copied = await crash_copy(slave, tmp_path / "killed")
                with pytest.raises(StoreError, match="cannot be a master"):
                    await slave.begin_role()
            monkeypatch.undo()
            assert (copied / MARKER_NAME).exists()
            assert (tmp_path / "s" / MARKER_NAME).exists(), "a clean stop makes it no better"
            with pytest.raises(StoreError, match="cannot be a master"):
                async with small(copied):
                    pass
            for root in (copied, tmp_path / "s"):
                async with slave_of(master, root, store=SMALL) as slave:
                    assert slave.store.log.min == stuck_at - SMALL["segment_bytes"], "it goes on where it was"
                    await is_the_same(master, slave)

    run(test())

"""Hostile bytes on the copies port: the connection is closed, little is kept, and nobody else is affected."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from kappamq.replication.frames import OPENING, VERSION, Kind, Report, frame, text_frame
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


async def closes(port: int, data: bytes) -> bytes:
    """Send this, and nothing more; what comes back until the connection ends."""
    reader, out = await asyncio.open_connection("127.0.0.1", port)
    try:
        out.write(data)
        async with asyncio.timeout(20):
            try:
                return await reader.read()
            except ConnectionError:
                return b""
    finally:
        out.transport.abort()


@pytest.mark.parametrize("seed", range(3))
def test_hostile_bytes_cost_only_their_own_connection(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def test() -> None:
        async with running(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave, speaking(master) as to:
            assert (await to.send("tea", b"first")).code == 0
            await caught_up(master, slave)
            end, crc = master.store.log.end, master.kernel_module.crc32
            opening = OPENING.pack(-VERSION)
            hostile = [
                OPENING.pack(end + (1 << 40)),  # reports what this broker never had
                OPENING.pack((1 << 63) - 1),
                OPENING.pack(0) + OPENING.pack(-5),
                opening + struct.pack(">IIB", 1 << 31, 0, 1),  # an endless frame
                opening + frame(Kind.REPORT, Report(0, 0, end, end).encode(), crc),  # without a greeting
                opening + text_frame(Kind.HELLO, {"cluster": 5}, crc),
                opening + frame(Kind.HELLO, b"[" * 100_000, crc),
                opening + dice.randbytes(5000),
                OPENING.pack(-7),
                *(dice.randbytes(dice.randint(200, 3000)) for _ in range(20)),
            ]
            dice.shuffle(hostile)
            for data in hostile:
                await closes(master.port + 1, data)
            for lie in (end - 1, end + (1 << 40)):  # of one that follows: it goes back, or has what it was not sent
                reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
                out.write(OPENING.pack(end))
                await eventually_async(lambda: len(master.copies.followers.following) == 2, text="it follows")
                out.write(OPENING.pack(lie))
                async with asyncio.timeout(20):
                    await reader.read()
                out.transport.abort()
                await eventually_async(lambda: len(master.copies.followers.following) == 1, text="it does not any more")
            assert (await to.send("tea", b"second")).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)
            assert len(master.copies.followers.following) == 1

    run(test())


def test_another_version_is_refused_with_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master:
            with caplog.at_level(logging.WARNING):
                said = await closes(master.port + 1, OPENING.pack(-9))
            assert said[: OPENING.size] == OPENING.pack(-VERSION)
            assert b"version 9" in said
            assert "version 9" in caplog.text

    run(test())


def test_many_connections_close_the_oldest_stranger_and_warn_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
            await eventually_async(lambda: slave.copies.following.is_connected, text="the slave follows")
            strangers = [await asyncio.open_connection("127.0.0.1", master.port + 1) for _ in range(70)]
            async with asyncio.timeout(20):
                for reader, _out in strangers[:7]:
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
            assert not strangers[7][0].at_eof()
            assert slave.copies.following.is_connected
            for _reader, out in strangers:
                out.transport.abort()

    run(test())
    assert caplog.text.count("more than 64 connections") == 1

"""A slave that speaks the classic bytes; the real one is in tests/interop/test_copies_exchange.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.protocol.codes import ResponseCode
from kappamq.replication.classic import HEAD, PIECE_BYTES_MAX, REPORT
from tests.broker.copies.copying import log_bytes
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


async def receive(reader: asyncio.StreamReader, start: int, end: int) -> bytes:
    found = b""
    while start + len(found) < end:
        async with asyncio.timeout(20):
            offset, size = HEAD.unpack(await reader.readexactly(HEAD.size))
            assert offset == start + len(found)
            assert size <= PIECE_BYTES_MAX
            found += await reader.readexactly(size)
    return found


@pytest.mark.parametrize("counts", [False, True])
def test_a_classic_slave_gets_the_log_and_counts_if_configured(tmp_path: Path, counts: bool) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER, count_apache_slaves=counts)
        async with running(tmp_path / "m", copies=copies) as master, speaking(master) as to:
            await to.send("tea", b"x" * 100_000)
            end = master.store.log.end
            reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(REPORT.pack(0))
            assert await receive(reader, 0, end) == log_bytes(master, 0, end)
            out.write(REPORT.pack(end))
            await eventually_async(
                lambda: [link.feed and link.feed.written for link in master.copies.followers.following] == [end]
            )
            sending = asyncio.create_task(to.send("tea", b"next"))
            await receive(reader, end, end + 1)
            if counts:
                assert not sending.done(), "the slave has not reported it"
            out.write(REPORT.pack(master.store.log.end))
            answer = await sending
            assert answer.code == (0 if counts else ResponseCode.SLAVE_NOT_AVAILABLE)
            out.transport.abort()
            await eventually_async(lambda: not master.copies.followers.following, text="it is known to be gone")

    run(test())


def test_an_empty_slave_gets_the_last_file_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, speaking(master) as to:
            for _ in range(12):
                await to.send("tea", b"x" * 100_000)
            start, end = master.store.log.segment_end - (1 << 20), master.store.log.end
            assert start > 0
            reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(REPORT.pack(0))
            assert await receive(reader, start, end) == log_bytes(master, start, end)
            out.write(REPORT.pack(0))  # said again before it has stored anything, which is no step back
            await to.send("tea", b"next")
            await receive(reader, end, master.store.log.end)
            out.transport.abort()

    run(test())


def test_with_a_secret_nobody_copies_without_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m", copies=CopiesConfig(secret="not for everybody")) as master:
            reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(REPORT.pack(0))
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            out.transport.abort()

    run(test())

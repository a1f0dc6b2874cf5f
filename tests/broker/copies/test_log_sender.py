from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.config.copies import CopiesConfig
from kappamq.replication.classic import HEAD, REPORT
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


def test_no_more_is_sent_than_the_window_allows(tmp_path: Path) -> None:
    """To a follower of either protocol that reports nothing: what is sent, and has to be kept for it, is bounded."""

    async def test() -> None:
        window = 64 << 10
        async with running(tmp_path / "m", copies=CopiesConfig(window_bytes=window)) as master, speaking(master) as to:
            for _ in range(5):
                assert (await to.send("tea", b"x" * 100_000)).code == 0
            end = master.store.log.end
            reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(REPORT.pack(0))
            at = 0
            while at < end:
                async with asyncio.timeout(20):
                    _offset, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                    at += len(await reader.readexactly(size))
                (link,) = master.copies.followers.following
                assert link.feed is not None
                assert link.feed.sent - link.feed.written <= window
                if at == link.feed.sent:
                    out.write(REPORT.pack(at))
            await eventually_async(lambda: link.feed is not None and link.feed.written == end)
            out.transport.abort()

    run(test())

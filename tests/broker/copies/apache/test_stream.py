"""The slave's end of Apache's protocol, against our own master, which speaks it, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.copies.apache.stream import ClassicStream
from kappamq.broker.copies.incoming import NotKnown, connected
from kappamq.config.copies import SLAVE, CopiesConfig
from tests.broker.copies.copying import copies_port, same_logs
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_the_log_goes_over_and_is_reported(tmp_path: Path, flush: str) -> None:
    async def test() -> None:
        slave_config = CopiesConfig(role=SLAVE, master_address="127.0.0.1:1")
        async with (
            running(tmp_path / "m") as master,
            running(tmp_path / "s", copies=slave_config, broker_id=1, store={"flush": flush}) as slave,
            speaking(master) as to,
        ):
            heard: list[int] = []
            for life in range(2):
                for _ in range(6):
                    assert (await to.send("tea", b"x" * 100_000)).code == 0
                assert slave.store.log.end < 1 << 20, (
                    "the master is still in its first file, which is all that it sends"
                )
                reader, out = await connected(copies_port(master))
                stream = ClassicStream(
                    reader, out, slave.writer, slave.store, slave.clock, lambda: heard.append(slave.store.log.end)
                )
                # Our master takes the report 1 at its word, as Apache's does, so an empty copy gets all but the first byte.
                receiving = asyncio.create_task(stream.receive())
                async with asyncio.timeout(30):
                    await stream.reach(master.store.log.end)
                end = master.store.log.end
                await eventually_async(
                    lambda end=end: (
                        [link.feed.written for link in master.copies.followers.following if link.feed] == [end]
                    ),  # type: ignore[misc]
                    text="it has reported everything",
                )
                if flush == "sync":
                    assert slave.store.marks.flushed.offset >= end
                same_logs(master, slave)
                out.transport.abort()
                with pytest.raises(NotKnown if life else (NotKnown, OSError)):
                    await receiving
            assert heard[-1] == master.store.log.end > 1 << 20

    run(test())

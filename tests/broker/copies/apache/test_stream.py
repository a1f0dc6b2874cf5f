"""The slave's end of Apache's protocol, against our own master, which speaks it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kappamq.broker.copies.apache.stream import ClassicStream
from kappamq.broker.copies.incoming import NotKnown, connected
from kappamq.clock import VirtualClock
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.replication import classic
from kappamq.store.log.watermark import Watermark
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


def test_one_waiter_for_the_disk_is_enough(tmp_path: Path) -> None:
    """The log grows while the disk is behind, and each piece that comes is reported."""
    waiting: list[tuple[int, Callable[[], None]]] = []
    store: Any = SimpleNamespace(
        config=SimpleNamespace(flush="sync"), log=SimpleNamespace(end=0), marks=SimpleNamespace(flushed=Watermark())
    )
    writer: Any = SimpleNamespace(when_flushed=lambda end, then: waiting.append((end, then)))
    reports: list[bytes] = []
    out: Any = SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: False), write=reports.append)
    reader: Any = None
    stream = ClassicStream(reader, out, writer, store, VirtualClock(), lambda: None)
    for turn in range(1, 101):
        store.log.end += 1000
        stream.report()
        assert len(waiting) == 1
        if turn % 5 == 0:
            store.marks.flushed.advance(store.log.end - 2000)
            end, then = waiting.pop()
            then() if end <= store.marks.flushed.offset else waiting.append((end, then))
    store.marks.flushed.advance(store.log.end)
    while waiting:
        waiting.pop()[1]()
    assert reports[-1] == classic.REPORT.pack(store.log.end)

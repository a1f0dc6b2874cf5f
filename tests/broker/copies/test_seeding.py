"""A copy that has nothing, or too little, of a log whose beginning is gone: it gets snapshots and the rest, whenever it is killed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.errors import StoreError
from kappamq.replication.seeding import MARKER_NAME
from tests.broker.copies.copying import caught_up, copies_port, same_logs, slave_of
from tests.broker.copies.seeding import SMALL, fill, numbering, shorten, tables, with_a_past
from tests.broker.running import run, running, speaking
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
    assert tables(copy) == tables(master)
    assert numbering(copy) == numbering(master)


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
            assert [r.body for r in await reader.read("tea", 0, low)] == [r.body for r in await speaker.read("tea", 0, low)]

    run(test())

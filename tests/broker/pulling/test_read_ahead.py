"""Blocks of old log: read once, the next one ahead, told to the kernel, forgotten in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.pulling import read_ahead as module
from kappamq.broker.pulling.read_ahead import ReadAhead
from kappamq.clock import VirtualClock
from kappamq.native.layout import WARM_BLOCK_BYTES as BLOCK
from tests.broker.running import run


class Kernel:
    hot_from = 100 * BLOCK

    def __init__(self) -> None:
        self.warm: set[int] = set()

    def mark_warm(self, block: int, is_warm: bool) -> None:
        (self.warm.add if is_warm else self.warm.discard)(block)


class Store:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.bad: set[int] = set()

    def warm(self, log_offset: int, size: int) -> None:
        assert (log_offset % BLOCK, size) == (0, BLOCK)
        if log_offset // BLOCK in self.bad:
            raise OSError(5, "bad sector")


class Hands:
    """Workers whose reads are done when the test says so."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, asyncio.Future[None], Callable[[], None]]] = []
        self.most = 0  # at the same time

    def __call__(self, work: Any, start: int, size: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reads.append((start // BLOCK, future, lambda: work(start, size)))
        self.most = max(self.most, sum(not future.done() for _number, future, _work in self.reads))
        return future

    @property
    def blocks(self) -> list[int]:
        return [number for number, _future, _work in self.reads]

    async def finish(self) -> None:
        for _number, future, work in self.reads:
            if not future.done():
                try:
                    future.set_result(work())
                except OSError as error:
                    future.set_exception(error)
        for _ in range(5):
            await asyncio.sleep(0)


def made() -> tuple[ReadAhead, Store, Hands, VirtualClock]:
    store, hands, clock = Store(), Hands(), VirtualClock()
    return ReadAhead(store, store.kernel, clock, hands), store, hands, clock  # type: ignore[arg-type]


async def fetched(ahead: ReadAhead, hands: Hands, low: int, high: int) -> None:
    """As for a pull that finds nothing in memory."""
    fetch = asyncio.ensure_future(ahead.fetch(low, high))
    await asyncio.sleep(0)
    await hands.finish()
    await fetch


def test_the_next_block_is_read_before_it_is_needed() -> None:
    async def scenario() -> None:
        ahead, store, hands, _clock = made()
        assert not ahead.has(10, 20)
        waiting = [asyncio.ensure_future(ahead.fetch(10, 20)), asyncio.ensure_future(ahead.fetch(500, 600))]
        await asyncio.sleep(0)
        assert hands.blocks == [0], "read once, whoever waits for it"
        await hands.finish()
        await asyncio.gather(*waiting)
        assert store.kernel.warm == {0}
        assert hands.blocks == [0, 1]
        await hands.finish()
        assert store.kernel.warm == {0}, "the first pull in it comes by here, so that the next one is read"
        assert ahead.has(BLOCK + 5, BLOCK + 9)
        assert (store.kernel.warm, hands.blocks) == ({0, 1}, [0, 1, 2])

    run(scenario())


def test_who_goes_on_reading_gets_longer_stretches() -> None:
    async def scenario() -> None:
        ahead, store, hands, _clock = made()
        await fetched(ahead, hands, 0, 1)
        reached, came_by = 0, []
        while reached < 40:
            if reached not in store.kernel.warm:
                came_by.append(reached)
                while not ahead.has(reached * BLOCK, reached * BLOCK + 1):
                    await hands.finish()
                for _ in range(10):
                    await hands.finish()
            reached += 1
        assert came_by == [1, 2, 4, 8, 16, 24, 32], "the kernel answers the pulls in between alone"
        assert len(hands.blocks) == len(set(hands.blocks)) == 48
        assert hands.most == 1, "one after the other"
        assert not ahead.has(70 * BLOCK, 70 * BLOCK + 1)
        await fetched(ahead, hands, 70 * BLOCK, 70 * BLOCK + 1)
        assert hands.blocks[48:] == [70, 71], "somebody else begins anew"

    run(scenario())


def test_a_pull_over_two_blocks() -> None:
    async def scenario() -> None:
        ahead, store, hands, _clock = made()
        await fetched(ahead, hands, BLOCK - 1, BLOCK + 1)
        assert store.kernel.warm == {0, 1}
        assert hands.blocks == [0, 1, 2]

    run(scenario())


def test_what_is_hot_anyway_is_not_read() -> None:
    async def scenario() -> None:
        ahead, _store, hands, _clock = made()
        await fetched(ahead, hands, 99 * BLOCK, 99 * BLOCK + 1)
        assert hands.blocks == [99]

    run(scenario())


def test_a_block_that_cannot_be_read() -> None:
    async def scenario() -> None:
        ahead, store, hands, _clock = made()
        store.bad = {0, 2}
        fetch = asyncio.ensure_future(ahead.fetch(0, 1))
        await asyncio.sleep(0)
        await hands.finish()
        with pytest.raises(OSError, match="bad sector"):
            await fetch
        await fetched(ahead, hands, BLOCK, BLOCK + 1)
        await hands.finish()  # block 2, which nobody has asked for yet
        assert store.kernel.warm == {1}
        assert not ahead.has(0, 1)
        assert not ahead.has(2 * BLOCK, 2 * BLOCK + 1)

    run(scenario())


def test_blocks_are_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_BLOCKS_MAX", 4)

    async def scenario() -> None:
        ahead, store, hands, clock = made()
        for number in range(0, 20, 2):
            await fetched(ahead, hands, number * BLOCK, number * BLOCK + 1)
        await hands.finish()
        assert store.kernel.warm == {16, 18}, "and the two that were read ahead"
        assert ahead.has(18 * BLOCK, 18 * BLOCK + 1)
        clock.advance(11)
        assert not ahead.has(18 * BLOCK, 18 * BLOCK + 1), "nobody knows whether it is still in memory"
        ahead.expire()
        assert not store.kernel.warm

    run(scenario())


def test_who_does_not_go_on_is_forgotten() -> None:
    """A few looks at old messages here and there cost the next one who reads in order nothing."""

    async def scenario() -> None:
        ahead, store, hands, clock = made()
        for number in range(0, 60, 2):
            await fetched(ahead, hands, number * BLOCK, number * BLOCK + 1)
        await hands.finish()
        clock.advance(11)
        ahead.expire()
        assert not ahead._stretches
        store.kernel.mark_warm(60, True)
        await fetched(ahead, hands, 60 * BLOCK, 60 * BLOCK + 1)
        store.kernel.warm.clear()  # somebody else's blocks have taken the places
        assert ahead.has(60 * BLOCK, 60 * BLOCK + 1)
        assert store.kernel.warm == {60}

    run(scenario())

"""Reads old parts of the log from disk for consumers: in blocks, by workers, before they are needed.

The kernel answers pulls only from blocks that it was notified of. It is notified of a stretch that was read ahead when the first
pull reaches it: that pull passes through here, and so the next stretch is read while this one is being consumed. A consumer that goes on
reading in order gets longer and longer ones.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kappamq.clock import Clock
from kappamq.native.interface import Kernel
from kappamq.native.layout import WARM_BLOCK_BYTES, WARM_BLOCKS
from kappamq.store.message_store import MessageStore

Worker = Callable[..., Awaitable[Any]]

COMPACT_BYTES = 4 * WARM_BLOCK_BYTES
"""A pull whose records lie farther apart reads only these: the bytes between them belong to other queues."""
_WARM_S = 10.0  # after that it is not known whether the memory was needed for something else
_BLOCKS_MAX = WARM_BLOCKS // 2
_STRETCH_MAX = 8
_STRETCHES_MAX = 64


@dataclass(slots=True, eq=False)
class Block:
    reading: asyncio.Future[None] | None
    until: float = 0.0  # liveness
    is_known: bool = False  # the kernel knows


class ReadAhead:
    def __init__(self, store: MessageStore, kernel: Kernel, clock: Clock, worker: Worker) -> None:
        self._store = store
        self._kernel = kernel
        self._clock = clock
        self._worker = worker
        self._blocks: OrderedDict[int, Block] = OrderedDict()  # the one read longest ago first
        self._stretches: OrderedDict[int, int] = OrderedDict()  # first block -> how many are read ahead from there on

    def has(self, low: int, high: int) -> bool:
        """Return whether all of it is in memory. If so, the kernel is notified, and the next stretch is read."""
        numbers = _numbers(low, high)
        now = self._clock.liveness()
        if not all(self._is_there(number, now) for number in numbers):
            return False
        if all(self._blocks[number].is_known for number in numbers):
            for number in numbers:
                self._kernel.mark_warm(number, True)  # somebody else's block may have its place there
        else:
            self._reached(numbers, now)
        return True

    def _is_there(self, number: int, now: float) -> bool:
        block = self._blocks.get(number)
        return block is not None and block.reading is None and block.until >= now

    def _reached(self, numbers: range, now: float) -> None:
        """A consumer has reached these blocks, which shows what it will need next."""
        count = self._stretches.pop(numbers[-1], 0)
        end = numbers[-1] + max(count, 1)
        for number in range(numbers[0], end):
            if self._is_there(number, now):
                self._kernel.mark_warm(number, True)
                self._blocks[number].is_known = True
        fair = _BLOCKS_MAX // (4 * (1 + len(self._stretches)))
        count = max(1, min(2 * count, _STRETCH_MAX, fair))
        self._stretches[end] = count
        if len(self._stretches) > _STRETCHES_MAX:
            self._stretches.popitem(last=False)
        self._read_on(end, end + count)

    def _read_on(self, first: int, stop: int, _before: asyncio.Future[None] | None = None) -> None:
        """Read these blocks one after the other: all at once, they would take too much CPU from others."""
        for number in range(first, stop):
            reading = self._read(number)
            if reading is not None:
                reading.add_done_callback(partial(self._read_on, number + 1, stop))
                return

    async def fetch(self, low: int, high: int) -> None:
        """Have it read. Raises OSError if some of it cannot be."""
        reads = filter(None, [self._read(number) for number in _numbers(low, high)])
        await asyncio.gather(*map(asyncio.shield, reads))  # a pull that gives up must not end the reads of others
        self.has(low, high)

    def expire(self) -> None:
        """From time to time: blocks that were read long ago may have left memory."""
        now = self._clock.liveness()
        for number, block in list(self._blocks.items()):
            if block.reading is None:
                if block.until >= now and len(self._blocks) <= _BLOCKS_MAX:
                    break
                self._forget(number)
        for first in [first for first in self._stretches if first not in self._blocks]:
            del self._stretches[first]  # the consumer it was read for does not go on

    def _read(self, number: int) -> asyncio.Future[None] | None:
        """The read of this block that is under way; None if it has been read."""
        block = self._blocks.get(number)
        if block is not None and (block.reading is not None or block.until >= self._clock.liveness()):
            return block.reading
        start = number * WARM_BLOCK_BYTES
        if start >= self._kernel.hot_from:
            return None
        reading = asyncio.ensure_future(self._worker(self._store.warm, start, WARM_BLOCK_BYTES))
        self._blocks[number] = Block(reading)
        self._blocks.move_to_end(number)
        reading.add_done_callback(lambda done: self._has_read(number, done))
        return reading

    def _has_read(self, number: int, reading: asyncio.Future[None]) -> None:
        block = self._blocks[number]
        if reading.cancelled() or reading.exception() is not None:
            self._forget(number)  # a pull that needs it gets the error
            return
        block.reading, block.until = None, self._clock.liveness() + _WARM_S
        self.expire()

    def _forget(self, number: int) -> None:
        del self._blocks[number]
        self._kernel.mark_warm(number, False)


def _numbers(low: int, high: int) -> range:
    return range(low // WARM_BLOCK_BYTES, (max(low, high - 1)) // WARM_BLOCK_BYTES + 1)

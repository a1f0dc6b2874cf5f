"""Reads all queues of a topic at once and merges them in the order in which messages were stored.

A message is shown when no older one can arrive: when every other queue has a next message, or has been read to its end.
Messages that arrive while all queues are at their ends are collected for a moment and then shown in order.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence

from kappamq.cli.shared import messages
from kappamq.cli.shared.cluster import Cluster
from kappamq.cli.shared.output import Output, counted
from kappamq.client.admin.queries import age
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.errors import KappaError, Retry
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.names import TOOLS_GROUP

HOLD_S = 15.0  # how long the broker may hold an empty pull
PAUSE_S = 1.0  # after an error
COLLECT_S = 0.02  # answers from different queues arrive in any order
WAITING_MAX = 256  # messages of a queue to read ahead


class Line:
    """Messages of one queue that wait for their turn."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.offset = offset
        self.waiting: deque[ReceivedMessage] = deque()
        self.behind = True  # older messages than those of other queues may still arrive
        self.room = asyncio.Event()


class Tail:
    """`start`: "end", "start" or a time in milliseconds."""

    def __init__(
        self, topic: str, start: str | int, tags: str, count: int | None, follow: bool, cluster: Cluster, out: Output
    ) -> None:
        self.topic = topic
        self.start = start
        self.tags = tags
        self.count = count
        self.follow = follow
        self.cluster = cluster
        self.out = out
        self.damaged = 0  # damaged messages, which cannot be shown
        self.missing = 0  # offsets that the broker left out
        self._changed = asyncio.Event()
        self._lines: list[Line] = []
        self._heads: list[tuple[tuple[int, str, int], int]] = []  # a heap: age of its first message, number of a line
        self._running = 0

    async def run(self) -> int:
        """Return how many messages were shown."""
        async with AsyncPullConsumer(**self.cluster.options, group=TOOLS_GROUP) as reader:
            queues = await reader.queues(self.topic)
            starts = await asyncio.gather(*(self._first(reader, queue) for queue in queues))
            if self.follow:
                self.out.note(f"{counted(len(queues), 'queue')} of {self.topic}; Ctrl-C exits")
            self._lines = [Line(queue, start) for queue, start in zip(queues, starts, strict=True)]
            self._running = len(self._lines)
            tasks = [asyncio.create_task(self._read(reader, number)) for number in range(len(self._lines))]
            try:
                return await self._show()
            finally:
                self.damaged, self.missing = reader.damaged, reader.missing
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, reader: AsyncPullConsumer, queue: MessageQueue) -> int:
        if self.start == "end":
            return await reader.max_offset(queue)
        if self.start == "start":
            return await reader.min_offset(queue)
        assert isinstance(self.start, int)
        return await reader.search(queue, self.start)

    async def _read(self, reader: AsyncPullConsumer, number: int) -> None:
        """Fill one line until its queue ends, which it does only without --follow."""
        line = self._lines[number]
        try:
            if self.follow:
                await self._follow(reader, number)
            else:
                async for part in reader.read_parts(line.queue, line.offset, tags=self.tags):
                    await self._arrived(number, part, behind=True)
        except KappaError as error:
            self.out.warn(f"{line.queue}: {error}")
        finally:
            line.behind = False
            self._running -= 1
            self._changed.set()

    async def _follow(self, reader: AsyncPullConsumer, number: int) -> None:
        line = self._lines[number]
        # Messages stored from now on are new; only earlier ones have to be merged.
        line.behind = line.offset < await reader.max_offset(line.queue)
        self._changed.set()
        while True:
            try:
                result = await reader.pull(line.queue, line.offset, wait=HOLD_S, tags=self.tags)
            except KappaError as error:
                if error.retry is Retry.NEVER:
                    raise
                self.out.warn(f"{line.queue}: {error}; retrying")
                await self._arrived(number, [], behind=False)  # the others need not wait for it
                await asyncio.sleep(PAUSE_S)
                continue
            line.offset = result.next_offset
            await self._arrived(number, result.messages, behind=result.next_offset < result.max_offset)

    async def _arrived(self, number: int, part: Sequence[ReceivedMessage], *, behind: bool) -> None:
        line = self._lines[number]
        if part and not line.waiting:
            heapq.heappush(self._heads, (age(part[0]), number))
        line.waiting.extend(part)
        line.behind = behind
        self._changed.set()
        while len(line.waiting) > WAITING_MAX:
            line.room.clear()
            await line.room.wait()

    async def _show(self) -> int:
        shown = 0
        while self.count is None or shown < self.count:
            if not self._heads or any(line.behind and not line.waiting for line in self._lines):
                if not self._heads and not self._running:
                    break
                self._changed.clear()
                await self._changed.wait()
                if self.follow:
                    await asyncio.sleep(COLLECT_S)
                continue
            # All lines have a message; that stays so until one runs empty.
            missing = False
            while self._heads and not missing and shown != self.count:
                message, missing = self._pop()
                messages.line(self.out, message)
                shown += 1
        return shown

    def _pop(self) -> tuple[ReceivedMessage, bool]:
        """Return the oldest message, and whether its line is now the one to wait for."""
        _, number = heapq.heappop(self._heads)
        line = self._lines[number]
        message = line.waiting.popleft()
        if line.waiting:
            heapq.heappush(self._heads, (age(line.waiting[0]), number))
        if len(line.waiting) <= WAITING_MAX:
            line.room.set()
        return message, line.behind and not line.waiting

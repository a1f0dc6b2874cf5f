"""Reading all queues of a topic at once, into one bounded line of messages."""

from __future__ import annotations

import asyncio

from kappamq.cli import messages
from kappamq.cli.output import Output, counted
from kappamq.client.pull_consumer import AsyncPullConsumer
from kappamq.errors import KappaError, Retry
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.names import TOOLS_GROUP

HOLD_S = 15.0  # how long the broker may hold an empty pull
PAUSE_S = 1.0  # after an error
WAITING_MAX = 256  # messages read ahead of the screen


class Tail:
    """`start`: "end", "start" or a time in milliseconds."""

    def __init__(
        self, topic: str, start: str | int, tags: str, count: int | None, follow: bool, nameserver: str, out: Output
    ) -> None:
        self.topic = topic
        self.start = start
        self.tags = tags
        self.count = count
        self.follow = follow
        self.nameserver = nameserver
        self.out = out
        self._waiting: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue(WAITING_MAX)

    async def run(self) -> int:
        """Returns how many messages were shown."""
        async with AsyncPullConsumer(self.nameserver, group=TOOLS_GROUP) as reader:
            queues = await reader.queues(self.topic)
            starts = await asyncio.gather(*(self._first(reader, queue) for queue in queues))
            if self.follow:
                self.out.note(f"{counted(len(queues), 'queue')} of {self.topic}; Ctrl-C ends")
            tasks = [
                asyncio.create_task(self._read(reader, queue, start))
                for queue, start in zip(queues, starts, strict=True)
            ]
            try:
                return await self._show(len(tasks))
            finally:
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

    async def _read(self, reader: AsyncPullConsumer, queue: MessageQueue, offset: int) -> None:
        """Put the messages of one queue into the common line; None when it has ended."""
        try:
            if not self.follow:
                async for message in reader.read(queue, offset, tags=self.tags):
                    await self._waiting.put(message)
                return
            while True:
                try:
                    result = await reader.pull(queue, offset, wait=HOLD_S, tags=self.tags)
                except KappaError as error:
                    if error.retry is Retry.NEVER:
                        raise
                    self.out.warn(f"{queue}: {error}; trying again")
                    await asyncio.sleep(PAUSE_S)
                    continue
                offset = result.next_offset
                for message in result.messages:
                    await self._waiting.put(message)
        except KappaError as error:
            self.out.warn(f"{queue}: {error}")
        finally:
            await self._waiting.put(None)

    async def _show(self, running: int) -> int:
        shown = 0
        while running and (self.count is None or shown < self.count):
            message = await self._waiting.get()
            if message is None:
                running -= 1
                continue
            messages.line(self.out, message)
            shown += 1
        return shown

"""Changing the number of queues of a topic without losing a message.

Producers use the number of write queues, consumers that of read queues; the two may differ. Growing adds the read queues
first and sets an initial offset in them for every group, then adds the write queues. Shrinking removes the write queues
first, waits until all groups have consumed the others, then removes the read queues. Stopping halfway leaves a working
topic. A broker accepts messages for every readable queue, so a producer with an outdated route can still write to the last
ones until the read queues are removed; so these are checked once more afterwards, and restored if they got new messages.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.errors import InvalidParameter, KappaError, QueryNotFound, RequestTimeout
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import ConsumeOffset, TopicOffset
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.headers.client import GetMaxOffset, OffsetResponse, QueryConsumerOffset, UpdateConsumerOffset

LOOK_S: Final = 0.1


class Resizing(ABC):
    """The methods of an admin that change the number of queues of a topic."""

    @abstractmethod
    def start(self) -> ClientCore: ...

    @abstractmethod
    async def topic_config(self, topic: str) -> dict[str, TopicConfig]: ...

    @abstractmethod
    async def update_topic(self, topic: str, *, queues: int | None = None, read_queues: int | None = None) -> None: ...

    @abstractmethod
    async def groups_of_topic(self, topic: str) -> list[str]: ...

    @abstractmethod
    async def consumer_progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffset]: ...

    @abstractmethod
    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]: ...

    async def resize_topic(
        self, topic: str, queues: int, *, timeout: float = 60.0, notice: float | None = None
    ) -> None:
        """Give a topic `queues` queues on each of its brokers.

        When shrinking, producers get `notice` seconds (`route_poll_ms`) to learn of it; then it waits until all groups have
        consumed the other queues. Raises RequestTimeout after `timeout` more seconds, naming the groups that lag: nothing is
        lost, and calling it again continues.
        """
        arguments.number("queues", queues)
        arguments.seconds("timeout", timeout)
        if queues < 1:
            raise InvalidParameter(f"a topic must have at least 1 queue; got {queues}")
        now = (await self.topic_config(topic)).values()
        read = max(queues, *(config.read_queues for config in now))
        await self.update_topic(topic, queues=min(queues, *(config.write_queues for config in now)), read_queues=read)
        await self._give_starts(topic, min(config.read_queues for config in now))
        await self.update_topic(topic, queues=queues, read_queues=read)
        if read > queues:
            await asyncio.sleep(self.start().config.route_poll_ms / 1000 if notice is None else notice)
            await self._shrink(topic, queues, read, timeout)

    async def _shrink(self, topic: str, queues: int, read: int, timeout: float) -> None:
        core = self.start()
        deadline = core.clock.liveness() + timeout
        last = [queue for queue in await self.topic_stats(topic) if queue.queue_id >= queues]
        while True:
            ends = await self._ends(last)
            await self._until_read(topic, queues, deadline - core.clock.liveness())
            changed = True
            try:
                await self.update_topic(topic, queues=queues, read_queues=queues)
                await asyncio.sleep(LOOK_S)  # messages accepted just before must have reached their queue
                changed = ends != await self._ends(last)
            finally:
                if changed:
                    await self.update_topic(topic, queues=queues, read_queues=read)
            if not changed:
                return
            if core.clock.liveness() > deadline:
                raise RequestTimeout(
                    f"topic {topic!r} is shrinking to {queues} queues, but a producer still writes to the others. Nothing is lost: "
                    "resize again when all producers have the new route"
                )

    async def _ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        core, ends = self.start(), {}
        for queue in queues:
            answer = await core.ask_queue(queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
            ends[queue] = OffsetResponse.decode(answer.ext).offset
        return ends

    async def _give_starts(self, topic: str, first: int) -> None:
        """The new queues have no messages yet: set every group's offset in them to the current end, connected or not."""
        core = self.start()
        ends = {
            queue: at.max_offset for queue, at in (await self.topic_stats(topic)).items() if queue.queue_id >= first
        }
        for group in await self.groups_of_topic(topic):
            for queue, end in ends.items():
                try:
                    await core.ask_queue(
                        queue,
                        QueryConsumerOffset(
                            consumer_group=group, topic=topic, queue_id=queue.queue_id, zero_if_not_found=False
                        ),
                    )
                except QueryNotFound:
                    await core.ask_queue(
                        queue,
                        UpdateConsumerOffset(
                            consumer_group=group, topic=topic, queue_id=queue.queue_id, commit_offset=end
                        ),
                    )

    async def _until_read(self, topic: str, queues: int, timeout: float) -> None:
        core = self.start()
        deadline = core.clock.liveness() + timeout
        while behind := await self._behind(topic, queues):
            if core.clock.liveness() > deadline:
                raise RequestTimeout(
                    f"topic {topic!r} takes messages in {queues} queues now, but {'; '.join(behind)}. Nothing is lost: let "
                    "them catch up, or delete groups that are no longer used, then resize again"
                )
            await asyncio.sleep(LOOK_S)

    async def _behind(self, topic: str, queues: int) -> Iterable[str]:
        """Return the groups that lag in the queues from number `queues` on."""
        behind: list[str] = []
        for group in await self.groups_of_topic(topic):
            try:
                progress = await self.consumer_progress(group, topic)
            except KappaError as error:
                behind.append(f"the progress of group {group} is unknown ({error})")
                continue
            left = sum(
                max(0, at.broker_offset - max(0, at.consumer_offset))
                for queue, at in progress.items()
                if queue.topic == topic and queue.queue_id >= queues
            )
            if left:
                behind.append(f"group {group} has a lag of {left} messages in the others")
        return behind

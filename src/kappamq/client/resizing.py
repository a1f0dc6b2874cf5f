"""Giving a topic more queues or fewer, without losing a message.

Producers look at the number of queues to write, consumers at those to read; the two may differ. Growing: first readers get the
new queues, and every group a place to begin in them; then writers. Shrinking: first writers leave the last queues, then the
groups read what is in them, then readers leave. Whoever stops halfway leaves a topic that works.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from kappamq.client.core import ClientCore
from kappamq.errors import InvalidParameter, KappaError, QueryNotFound, RequestTimeout
from kappamq.message import MessageQueue
from kappamq.protocol.bodies_admin import ConsumeOffset, TopicOffset
from kappamq.protocol.bodies_topics import TopicConfig
from kappamq.protocol.headers_client import QueryConsumerOffset, UpdateConsumerOffset

LOOK_S: Final = 0.1


class Resizing(ABC):
    """The part of an admin that changes how many queues a topic has."""

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

    async def resize_topic(self, topic: str, queues: int, *, timeout: float = 60.0) -> None:
        """Let a topic have `queues` queues on each of its brokers.

        With fewer than before it waits until all groups have read what lies in the others. Raises RequestTimeout after
        `timeout` seconds, naming those that have not: nothing is lost, and calling again goes on with it.
        """
        if queues < 1:
            raise InvalidParameter(f"a topic has at least 1 queue; got {queues}")
        now = (await self.topic_config(topic)).values()
        read = max(queues, *(config.read_queues for config in now))
        await self.update_topic(topic, queues=min(queues, *(config.write_queues for config in now)), read_queues=read)
        await self._give_starts(topic, min(config.read_queues for config in now))
        await self.update_topic(topic, queues=queues, read_queues=read)
        if read > queues:
            await self._until_read(topic, queues, timeout)
            await self.update_topic(topic, queues=queues, read_queues=queues)

    async def _give_starts(self, topic: str, first: int) -> None:
        """Nobody has written to the new queues yet: each group begins there where they end now, also one that is away."""
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
                    "them read on, or delete groups that are not used any more, then resize again"
                )
            await asyncio.sleep(LOOK_S)

    async def _behind(self, topic: str, queues: int) -> Iterable[str]:
        """Which groups have not read everything in the queues from number `queues` on."""
        behind: list[str] = []
        for group in await self.groups_of_topic(topic):
            try:
                progress = await self.consumer_progress(group, topic)
            except KappaError as error:
                behind.append(f"what group {group} has read is not known ({error})")
                continue
            left = sum(
                max(0, at.broker_offset - max(0, at.consumer_offset))
                for queue, at in progress.items()
                if queue.topic == topic and queue.queue_id >= queues
            )
            if left:
                behind.append(f"group {group} has not read {left} messages in the others")
        return behind

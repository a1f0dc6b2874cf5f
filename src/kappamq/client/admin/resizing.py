"""Giving a topic more queues or fewer, without losing a message.

Producers look at the number of queues to write, consumers at those to read; the two may differ. Growing: first readers get the
new queues, and every group a place to begin in them; then writers. Shrinking: first writers leave the last queues, then the
groups read what is in them, then readers leave. Whoever stops halfway leaves a topic that works. A broker takes messages for
all queues that can be read, so a producer with an old route can still write to the last ones, until readers leave: then they are
looked at once more, and if there is something new, readers come back.
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

    async def resize_topic(
        self, topic: str, queues: int, *, timeout: float = 60.0, notice: float | None = None
    ) -> None:
        """Let a topic have `queues` queues on each of its brokers.

        With fewer than before producers get `notice` seconds (`route_poll_ms`) to hear of it; then it waits until all groups
        have read what lies in the others. Raises RequestTimeout after `timeout` more seconds, naming those that have not:
        nothing is lost, and calling again goes on with it.
        """
        arguments.number("queues", queues)
        arguments.seconds("timeout", timeout)
        if queues < 1:
            raise InvalidParameter(f"a topic has at least 1 queue; got {queues}")
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
                await asyncio.sleep(LOOK_S)  # what was taken just before must have got to its queue
                changed = ends != await self._ends(last)
            finally:
                if changed:
                    await self.update_topic(topic, queues=queues, read_queues=read)
            if not changed:
                return
            if core.clock.liveness() > deadline:
                raise RequestTimeout(
                    f"topic {topic!r} is to have {queues} queues, but somebody still writes to the others. Nothing is lost: "
                    "resize again when all producers have heard of it"
                )

    async def _ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        core, ends = self.start(), {}
        for queue in queues:
            answer = await core.ask_queue(queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
            ends[queue] = OffsetResponse.decode(answer.ext).offset
        return ends

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

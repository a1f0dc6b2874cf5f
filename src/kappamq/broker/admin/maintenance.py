"""Cleaning up on request: what upkeep does by itself from time to time, at once."""

from __future__ import annotations

from collections.abc import Callable

from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.slices import Worker
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import CleanExpiredQueues, CleanUnusedTopics, DeleteExpiredLog
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore


class Maintenance:
    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        upkeep: Upkeep,
        write: Worker,
        forget_topic: Callable[[str], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._upkeep = upkeep
        self._write = write
        self._forget_topic = forget_topic

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
        }

    async def delete_expired(self, request: Request[DeleteExpiredLog]) -> Frame:
        """Delete expired log files now, whatever the hour. The answer says how many there were."""
        count = await self._upkeep.delete_expired(asked=True)
        return request.reply(remark=f"{count} log files deleted")

    async def clean_queues(self, request: Request[CleanExpiredQueues]) -> Frame:
        """Remove entries of queue and index files that point below the log's beginning."""
        await self._upkeep.raise_minimums()
        return request.reply()

    async def clean_topics(self, request: Request[CleanUnusedTopics]) -> Frame:
        """Delete queue files of topics that no longer exist."""
        folders = {topic for topic, _queue_id in await self._write(lambda: list(self._store.queues.queues()))}
        gone = [
            topic for topic in sorted(folders) if self._topics.get(topic) is None and not self._topics.is_system(topic)
        ]
        for topic in gone:
            self._forget_topic(topic)
        return request.reply(remark=f"{len(gone)} topics cleaned")

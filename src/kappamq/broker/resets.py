"""Moving a group to another place in its queues: the next pull of each queue is told to go there.

A reset is in the table of offsets at once. But a consumer that runs knows better where it is: it would pull on from there,
and commit that. So a reset stays pending, queue by queue: a pull is told to go there (code 21, with the new offset), and the
pull after it shows that the consumer has heard of it. Until then commits of that queue are ignored (one may be on its way
while we tell), who asks for the offset gets the new one, and the kernel answers no pull of this group and topic by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kappamq.broker.admin_topics import WhenSafe
from kappamq.broker.burst import Handler
from kappamq.broker.groups import Groups
from kappamq.broker.offsets import Offsets
from kappamq.broker.slices import Worker, in_slices, spliced
from kappamq.broker.topics import Topics
from kappamq.errors import BrokerError, GroupNotFound, KappaError
from kappamq.message import MessageQueue
from kappamq.net.connection import Connection
from kappamq.protocol import fastjson
from kappamq.protocol.bodies_clients import ResetOffset
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers_admin import ResetOffsetByBroker
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

Record = Callable[[str, Any], int]
ALL_QUEUES = BY_TIME = -1


class PendingResets:
    """Which queue of which group is to go where. A fold over the log: a restart does not lose a reset."""

    file = "kappamq.resets.json"
    kinds = ("reset", "reset-done", "reset-forgotten")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._pending: dict[tuple[str, str], dict[int, int]] = {}  # (group, topic) -> queue id -> offset
        self._told: set[tuple[str, str, int]] = set()
        self.dirty = False
        self.on_change: Callable[[str, str], None] = lambda group, topic: None

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where this queue is to go, if its consumer is not known to have gone there."""
        queues = self._pending.get((group, topic))
        return queues.get(queue_id) if queues is not None else None

    def is_pending(self, group: str, topic: str) -> bool:
        return (group, topic) in self._pending

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """A pull at `offset` has come: where it must go instead, None if it may go on. It is told once."""
        target = self.get(group, topic, queue_id)
        if target is None:
            return None
        if target != offset and (group, topic, queue_id) not in self._told:
            self._told.add((group, topic, queue_id))
            return target
        # It is there, or it has been told and has its own mind.
        self._done(group, topic, queue_id)
        self._note("reset-done", [group, topic, queue_id])
        return None

    def add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._record("reset", [group, topic, {str(queue): offset for queue, offset in offsets.items()}])
        self._add(group, topic, offsets)
        self.on_change(group, topic)

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """The group or the topic is gone."""
        if self._forget(group, topic):
            self._note("reset-forgotten", [group, topic])

    def _note(self, kind: str, change: Any) -> None:
        """Record what has happened anyway. With the disk full it is not recorded, and then told twice after a crash."""
        try:
            self._record(kind, change)
        except KappaError as error:
            log.info("not recorded: %s", error)

    def _add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._pending.setdefault((group, topic), {}).update(offsets)
        self._told.difference_update((group, topic, queue_id) for queue_id in offsets)
        self.dirty = True

    def _done(self, group: str, topic: str, queue_id: int) -> None:
        queues = self._pending.get((group, topic), {})
        queues.pop(queue_id, None)
        if not queues:
            self._pending.pop((group, topic), None)
        self._told.discard((group, topic, queue_id))
        self.dirty = True

    def _forget(self, group: str | None, topic: str | None) -> bool:
        gone = [key for key in self._pending if group in (None, key[0]) and topic in (None, key[1])]
        for key in gone:
            self._told.difference_update((*key, queue_id) for queue_id in self._pending.pop(key))
        self.dirty |= bool(gone)
        return bool(gone)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return {
            "pending": [
                {"group": group, "topic": topic, "offsets": {str(queue): offset for queue, offset in queues.items()}}
                for (group, topic), queues in self._pending.items()
            ]
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        for row in table.get("pending") or []:
            self.apply("reset", [row["group"], row["topic"], row["offsets"]])

    def apply(self, kind: str, change: Any) -> None:
        if kind == "reset":
            group, topic, offsets = change
            self._add(str(group), str(topic), {int(queue): int(offset) for queue, offset in offsets.items()})
        elif kind == "reset-done":
            self._done(str(change[0]), str(change[1]), int(change[2]))
        else:
            self._forget(change[0], change[1])


class Resets:
    """The request that resets, from `mqadmin resetOffsetByTime` and friends."""

    def __init__(
        self, broker_name: str, store: MessageStore, topics: Topics, groups: Groups, offsets: Offsets, pending: PendingResets,
        worker: Worker, when_safe: WhenSafe,
    ) -> None:  # fmt: skip
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._pending = pending
        self._worker = worker
        self._when_safe = when_safe
        self.on_reset: Callable[[str, int], None] = lambda topic, queue_id: None

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, connection: Connection, frame: Frame) -> None:
        """By offset, by time, or (a negative time) to the end; without `isForce` only backwards."""
        header = ResetOffsetByBroker.decode(frame.ext)
        topic = self._topics.existing(header.topic)
        if header.group not in self._groups.table:
            raise GroupNotFound(f"subscription group [{header.group}] does not exist")
        queue_ids: list[int] = list(range(topic.read_queues))
        if header.queue_id is not None and header.queue_id != ALL_QUEUES:
            if not 0 <= header.queue_id < topic.read_queues:
                raise BrokerError(f"topic {topic.name} has no queue {header.queue_id}")
            queue_ids = [header.queue_id]
        if header.offset is not None and header.offset != BY_TIME:
            if header.queue_id in (None, ALL_QUEUES):
                raise BrokerError(f"offset {header.offset} means a queue: name it (queueId), or reset by time")
            targets = {queue_ids[0]: self._checked(topic.name, queue_ids[0], header.offset)}
        else:
            targets = await self._by_time(topic.name, queue_ids, header.timestamp)
        moved = dict(targets)
        if not header.force:
            for queue_id in list(moved):
                consumed = self._offsets.get(header.group, topic.name, queue_id)
                if consumed is not None and consumed <= moved[queue_id]:
                    del moved[queue_id]
                    targets[queue_id] = consumed
        if moved:
            self._pending.add(header.group, topic.name, moved)
            self._offsets.reset(header.group, topic.name, moved)
            for queue_id in moved:
                self.on_reset(topic.name, queue_id)
        parts: list[bytes] = []
        async for some in in_slices(list(targets.items())):
            parts.append(await self._worker(self._rows, topic.name, some))
        self._when_safe(connection, frame, reply(frame, body=spliced(ResetOffset().encode(), "offsetTable", parts)))

    def _rows(self, topic: str, targets: Sequence[tuple[int, int]]) -> bytes:
        return fastjson.dumps({MessageQueue(topic, self._broker_name, q): offset for q, offset in targets})[1:-1]

    def _checked(self, topic: str, queue_id: int, offset: int) -> int:
        low, end, _next, _stored = self._store.kernel.queue_state(topic, queue_id)
        if not low <= offset <= end:
            raise BrokerError(f"Target offset {offset} not in consume queue range [{low}-{end}]")
        return offset

    async def _by_time(self, topic: str, queue_ids: list[int], ms: int) -> dict[int, int]:
        found: dict[int, int] = {}
        async for some in in_slices(queue_ids):
            if ms < 0:
                offsets = [self._store.kernel.queue_state(topic, queue_id)[1] for queue_id in some]
            else:
                offsets = await self._worker(lambda ids=some: [self._store.search(topic, q, ms) for q in ids])
            found.update(zip(some, offsets, strict=True))
        return found

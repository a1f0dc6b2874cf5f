"""Requests for queue locks (41, 42): only members of a group get them, and only after the log has a record of it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from itertools import islice

from kappamq.broker.clients.registry import Clients
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter, NoPermission, SubscriptionUnknown
from kappamq.message import MessageQueue
from kappamq.net.requests.reader import RequestReader
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import LockBatch, LockBatchResponse
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import LockQueues, UnlockQueues
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.topics import Topics

QUEUES_MAX = 65_536
_QUEUES_AT_ONCE = 500


class Locking:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        locks: QueueLocks,
        writer: LogWriter,
        reader: RequestReader,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._locks = locks
        self._writer = writer
        self._turns, self._beside = reader.turns, reader.beside

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Request[LockQueues]) -> Frame | Awaitable[Frame]:
        wanted = request.parse(LockBatch)
        if not wanted.client_id or not wanted.consumer_group:
            raise InvalidParameter("a lock needs clientId and consumerGroup")
        self._groups.existing(wanted.consumer_group)
        if len(wanted.queues) > QUEUES_MAX:
            raise NoPermission(f"{len(wanted.queues)} queues in one lock request are too many")
        now = self._clock.liveness()
        self._check_member(request.connection, wanted, now)
        if request.was_read_beside:
            return self._lock_in_turns(request, wanted)
        ours = {queue for queue in wanted.queues if self._is_ours(queue)}
        held = self._locks.lock(wanted.consumer_group, wanted.client_id, ours, now)
        answer = request.reply(body=LockBatchResponse(held.queues).encode())
        return self._when_safe(answer, held.safe) if held.safe else answer

    async def _lock_in_turns(self, request: Request[LockQueues], wanted: LockBatch) -> Frame:
        """Too many for one turn: lock them over several turns. Each is granted independently."""
        held: set[MessageQueue] = set()
        safe = 0
        async for queues in self._turns.share(_parts(wanted.queues)):
            ours = {queue for queue in queues if self._is_ours(queue)}
            part = self._locks.lock(wanted.consumer_group, wanted.client_id, ours, self._clock.liveness())
            held |= part.queues
            safe = max(safe, part.safe)
        answer = request.reply(body=await self._beside.run(request.connection, LockBatchResponse(held).encode))
        return await self._when_safe(answer, safe) if safe else answer

    async def _unlock_in_turns(self, request: Request[UnlockQueues], given: LockBatch) -> Frame:
        async for queues in self._turns.share(_parts(given.queues)):
            self._locks.unlock(given.consumer_group, given.client_id, queues)
        return request.reply()

    async def _when_safe(self, answer: Frame, end: int) -> Frame:
        """An owner begins to consume when it gets our answer: a crash after that must not lose the lock."""
        await self._writer.answerable(end)
        if self._config.lock_strictly:
            await self._writer.confirmed(end)
        self._locks.safe_up_to = max(self._locks.safe_up_to, end)
        return answer

    def _check_member(self, connection: Connection, wanted: LockBatch, now: float) -> None:
        """Require membership: a lock keeps others from consuming for a minute, so it is only for clients that consume.

        A present owner need not be a member: after a restart of the broker its renewal may come before its next heartbeat."""
        group, client_id = wanted.consumer_group, wanted.client_id
        members = self._clients.consumers.get(group)
        if members is not None and (
            connection in members.members or any(client_id == member.client_id for member in members.members.values())
        ):
            return
        if not self._locks.is_owner(group, client_id, now):
            raise SubscriptionUnknown(
                f"client {client_id} is no member of consumer group {group}, so it cannot lock queues for it: "
                "send a heartbeat that names the group first"
            )

    def _is_ours(self, queue: MessageQueue) -> bool:
        """Return whether the queue exists here: locks of others are refused, since their number would be unlimited."""
        topic = self._topics.get(queue.topic)
        queues = max(topic.read_queues, topic.write_queues) if topic is not None else 0
        return queue.broker == self._config.name and 0 <= queue.queue_id < queues

    def unlock(self, request: Request[UnlockQueues]) -> Frame | Awaitable[Frame]:
        given = request.parse(LockBatch)
        if request.was_read_beside:
            return self._unlock_in_turns(request, given)
        self._locks.unlock(given.consumer_group, given.client_id, given.queues)
        return request.reply()


def _parts(queues: Iterable[MessageQueue]) -> Iterator[set[MessageQueue]]:
    rest = iter(queues)
    while part := set(islice(rest, _QUEUES_AT_ONCE)):
        yield part

"""The clients of a simulated group: they send, commit and lock at a random broker, and remember the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, LockBatch, LockBatchResponse, SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, FrameDecoder, request
from kappamq.protocol.headers.admin import DeleteTopic, TransferLeader
from kappamq.protocol.headers.client import (
    HeartBeat,
    LockQueues,
    SendMessageResponse,
    SendMessageV2,
    UnlockQueues,
    UpdateConsumerOffset,
)
from kappamq.protocol.headers.header import Header
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from kappamq.protocol.records.ids import parse_offset_id
from kappamq.sim.brokers.checkers import Checker
from kappamq.sim.brokers.loop import Loop
from kappamq.sim.brokers.machine import PORT
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.streams import Streams
from kappamq.sim.world import World

HOST = "10.0.0.100"
TOPICS = ("tea", "coffee", "milk")
QUEUES = 3
GROUP = "drinkers"
OWNERS = ("x", "y")
LOCKS_TRIED = 3
LOCKS_WITHIN_MS = 1_500


@dataclass(frozen=True, slots=True)
class Sent:
    bodies: list[bytes]
    topic: str


class _Connection(asyncio.Protocol):
    """A connection to one broker, for as long as it lasts."""

    def __init__(self, heard: Callable[[Frame], None]) -> None:
        self._decoder = FrameDecoder()
        self._heard = heard
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._heard(frame)


class Clients:
    def __init__(self, world: World, faults: Faults, streams: Streams, checker: Checker, hosts: dict[str, str]) -> None:
        """`hosts`: broker name -> host."""
        self.world, self.faults, self.checker, self._hosts = world, faults, checker, hosts
        self.loop = Loop(world, streams, HOST, lambda: None)  # type: ignore[abstract]
        self._connections: dict[str, _Connection] = {}
        self._connecting: set[str] = set()
        self._asked: dict[int, tuple[float, Callable[[Frame, float], None]]] = {}  # opaque -> (when, handler)
        self._count = 0
        self.answered = 0

    # -- speaking ----------------------------------------------------------------------------------------------------------

    def ask(
        self, name: str, header: Header, body: bytes, heard: Callable[[Frame, float], None], code: int | None = None
    ) -> None:
        """`heard`: called with the answer, if one comes, and with the time of the question."""
        connection = self._connections.get(name)
        if connection is None or connection.transport is None:
            self._connect(name)
            return
        frame = request(header, body, code=code)
        self._count += 1
        frame.opaque = self._count
        self._asked[frame.opaque] = (self.world.now, heard)
        connection.transport.write(frame.encode())

    def _connect(self, name: str) -> None:
        if name not in self._connecting:
            self._connecting.add(name)
            self.loop.run(lambda: self.loop.create_task(self._connected(name)))

    async def _connected(self, name: str) -> None:
        try:
            async with asyncio.timeout(1.0):
                _side, made = await self.loop.create_connection(
                    lambda: _Connection(self._heard), self._hosts[name], PORT
                )
        except (OSError, TimeoutError):
            pass
        else:
            assert isinstance(made, _Connection)
            self._connections[name] = made
            for owner in OWNERS:
                subscription = SubscriptionData(topic=TOPICS[0], expression="*", codes=set(), version=1)
                beat = HeartbeatData(
                    client_id=owner, consumers=[ConsumerData(group=GROUP, subscriptions=[subscription])]
                )
                self.ask(name, HeartBeat(), beat.encode(), lambda frame, asked_at: None)
        finally:
            self._connecting.discard(name)

    def _heard(self, frame: Frame) -> None:
        if frame.is_response and frame.opaque in self._asked:
            asked_at, heard = self._asked.pop(frame.opaque)
            self.answered += 1
            heard(frame, asked_at)

    # -- what clients do ---------------------------------------------------------------------------------------------------

    def act(self, name: str) -> None:
        """Do something at random at the broker of this name."""
        dice = self.world.dice
        match dice.randrange(20):
            case 0 | 1:
                self._lock(name, dice.choice(OWNERS))
            case 2:
                self._unlock(name, dice.choice(OWNERS))
            case 3:
                self._commit(name)
            case 4:
                self._delete(name, f"gone{dice.randrange(3)}")
            case 5:
                self._send(name, f"gone{dice.randrange(3)}", counts=False)
            case 6 | 7 | 8:
                self._send(name, dice.choice(TOPICS), together=dice.randint(2, 6))
            case _:
                for _ in range(dice.randint(1, self.faults.pieces_max)):
                    self._send(name, dice.choice(TOPICS))

    def _send(self, name: str, topic: str, *, together: int = 1, counts: bool = True) -> None:
        dice = self.world.dice
        bodies = []
        for _ in range(together):
            self._count += 1
            bodies.append(b"%d:" % self._count + b"." * dice.randint(0, self.faults.body_bytes))
        header = SendMessageV2(
            producer_group="makers", topic=topic, default_topic="TBW102", default_topic_queues=QUEUES,
            queue_id=dice.randrange(QUEUES), sys_flag=0, born_ms=int(self.world.now), flag=0,
            properties=f"UNIQ_KEY\x01U{self._count}\x02KEYS\x01k{self._count % 7}\x02", reconsume_times=0, unit_mode=False,
            batch=together > 1,
        )  # fmt: skip
        if counts:
            self.checker.sends(topic, bodies)

        def heard(frame: Frame, asked_at: float) -> None:
            if frame.code == 0 and counts:
                told = SendMessageResponse.decode(frame.ext)
                offsets = [parse_offset_id(text).log_offset for text in told.message_id.split(",")]
                self.checker.acknowledged(topic, told.queue_id, told.queue_offset, bodies, offsets)

        if together > 1:
            body = batch.encode(Member(body=one, properties=f"UNIQ_KEY\x01B{self._count}\x02") for one in bodies)
            self.ask(name, header, body, heard, code=RequestCode.SEND_BATCH_MESSAGE)
        else:
            self.ask(name, header, bodies[0], heard)

    def _commit(self, name: str) -> None:
        dice = self.world.dice
        header = UpdateConsumerOffset(
            consumer_group=GROUP, topic=TOPICS[0], queue_id=dice.randrange(QUEUES), commit_offset=dice.randrange(20)
        )
        self.ask(name, header, b"", lambda frame, asked_at: None)

    def _delete(self, name: str, topic: str) -> None:
        self.ask(name, DeleteTopic(topic=topic), b"", lambda frame, asked_at: None)

    def transfer(self, name: str, member: str) -> None:
        """An operator transfers the leadership."""
        self.ask(name, TransferLeader(member=member), b"", lambda frame, asked_at: None)

    def _queue(self) -> MessageQueue:
        return MessageQueue(TOPICS[0], "g", self.world.dice.randrange(QUEUES))

    def hear_of(self, name: str) -> None:
        """A new leader was elected: owners renew their locks there, and other clients try to get them."""
        for _ in range(LOCKS_TRIED):
            for owner in OWNERS:
                self.world.after(self.world.between(0, LOCKS_WITHIN_MS), self._lock, name, owner)

    def _lock(self, name: str, owner: str) -> None:
        queues = {MessageQueue(TOPICS[0], "g", queue_id) for queue_id in range(QUEUES)}

        def heard(frame: Frame, asked_at: float) -> None:
            if frame.code == 0:
                for queue in sorted(LockBatchResponse.decode(frame.body).locked):
                    # As real clients do: they rely on a lock for half the time that the broker keeps it.
                    until = asked_at + self.faults.lock_ms / 2
                    self.checker.locked(str(queue), owner, asked_at, until, self.world.now)

        body = LockBatch(consumer_group=GROUP, client_id=owner, queues=queues).encode()
        self.ask(name, LockQueues(), body, heard)

    def _unlock(self, name: str, owner: str) -> None:
        queue = self._queue()
        self.checker.unlocked(str(queue), owner, self.world.now)
        body = LockBatch(consumer_group=GROUP, client_id=owner, queues={queue}).encode()
        self.ask(name, UnlockQueues(), body, lambda frame, asked_at: None)

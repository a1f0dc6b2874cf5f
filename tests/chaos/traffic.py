"""Clients of a group, which keep the history: producers of every kind, consumers, commits of offsets, and two rivals for a queue's lock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from kappamq.client import AsyncConsumer, AsyncProducer, AsyncTransactionProducer
from kappamq.errors import KappaError, TransactionFailed
from kappamq.message import Decision, Message, MessageQueue, ReceivedMessage, SendResult
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.clients import LockBatch, LockBatchResponse
from kappamq.protocol.headers.client import LockQueues, UpdateConsumerOffset
from tests.chaos.history import History, Sent
from tests.chaos.members import GROUP, Group
from tests.crash.books import Outcome
from tests.crash.checker import Violation

QUEUES = 4
PLAIN, BATCH, KEYED, TIMER, DELAY, TRANSACTION = TOPICS = ("plain", "batch", "keyed", "timer", "delay", "transaction")
DELAY_LEVEL = 2  # five seconds
DELAY_MS = 5000
TURN_MS = 500
"""A delay is counted from when the broker's turn began, which may be before its client has made the message, if the machine is busy."""
COMMITTING = "committing"
LOCKING = "locking"
LOCK_S = 60.0
"""The broker's lease of a queue lock."""
SEND_S = 20.0
TRY_MS = 1500
BODY_BYTES = 300


def body(sent: Sent) -> bytes:
    return sent.id.encode() + b"#" + b"." * BODY_BYTES


def id_of(data: bytes) -> str:
    return data.partition(b"#")[0].decode(errors="replace")


class Traffic:
    def __init__(self, nameserver: str, group: Group, history: History, dice: random.Random, pause_s: float = 0.002):
        self._names, self._group, self._history, self._dice = nameserver, group, history, dice
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self.delivered: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}

    async def start(self) -> None:
        options = {"send_timeout_ms": int(SEND_S * 1000), "send_try_timeout_ms": TRY_MS}
        enter = self._stack.enter_async_context
        producer = await enter(AsyncProducer(self._names, **options))
        transactions = await enter(
            AsyncTransactionProducer(self._names, group="deciders", check=self._check, topics=[TRANSACTION], **options)
        )
        for topic in TOPICS:  # so that consumers find them; their first queues are made by it
            await self._one(lambda topic=topic: self._plain(producer, topic, topic))
        await enter(
            AsyncConsumer(
                self._names,
                group="readers",
                topics={PLAIN: "*", KEYED: "*"},
                consume_from="first",
                listener=self._heard,
            )
        )
        actors: list[Callable[[], Awaitable[None]]] = [
            *[lambda: self._plain(producer, PLAIN, "plain")] * 2,
            lambda: self._batch(producer),
            *[lambda key=key: self._keyed(producer, key) for key in ("red", "blue")],
            lambda: self._later(producer),
            lambda: self._transact(transactions),
        ]
        for act in actors:
            self._tasks.append(asyncio.create_task(self._again(act, self._pause_s)))
        self._tasks.append(asyncio.create_task(self._again(self._commit, 0.05)))
        self._tasks.append(asyncio.create_task(self._again(self._lock, 0.3)))

    async def stop(self, *, consumers: bool = True) -> None:
        """Producers end; then consumers, too."""
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), SEND_S * 2)
        if consumers:
            for channel in self._channels.values():
                channel.close()
            await self._stack.aclose()

    # -- repeating ---------------------------------------------------------------------------------------------------------

    async def _again(self, act: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self._stop.is_set():
            await self._one(act)
            await asyncio.sleep(pause_s)

    async def _one(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except (KappaError, OSError, TimeoutError) as error:
            name = f"{type(error).__name__}: {error}"[:200]
            self.errors[name] = self.errors.get(name, 0) + 1

    # -- producers ---------------------------------------------------------------------------------------------------------

    def _enter(self, sent: Sent, result: SendResult) -> None:
        if result.ok:
            self._history.acked(sent, result.queue.queue_id, result.queue_offset)

    async def _plain(self, producer: AsyncProducer, topic: str, kind: str) -> None:
        sent = self._history.begin(kind, topic)
        self._enter(sent, await producer.send(Message(topic, body(sent))))

    async def _batch(self, producer: AsyncProducer) -> None:
        first = self._history.begin("batch", BATCH)
        first.batch = first.id
        members = [first, *(self._history.begin("batch", BATCH, first.id) for _ in range(self._dice.randint(1, 9)))]
        results = await producer.send_batch([Message(BATCH, body(sent)) for sent in members])
        for sent, result in zip(members, results, strict=True):
            self._enter(sent, result)

    async def _keyed(self, producer: AsyncProducer, key: str) -> None:
        """One at a time: the next is begun when this one is answered, so their order in the queue is known."""
        sent = self._history.begin(key, KEYED)
        self._enter(sent, await producer.send(Message(KEYED, body(sent)), key=key))

    async def _later(self, producer: AsyncProducer) -> None:
        now_ms = int(time.time() * 1000)
        if self._dice.random() < 0.3:
            sent = self._history.begin("delay", DELAY, late=True, due_ms=now_ms + DELAY_MS - TURN_MS)
            message = Message(DELAY, body(sent), delay_level=DELAY_LEVEL)
        else:
            due_ms = now_ms + self._dice.randrange(1000, 9000)
            sent = self._history.begin("timer", TIMER, late=True, due_ms=due_ms)
            message = Message(TIMER, body(sent), deliver_at=due_ms)
        self._enter(sent, await producer.send(message))

    async def _transact(self, producer: AsyncTransactionProducer) -> None:
        how = self._dice.choice(("commit", "commit", "roll", "open-commit", "open-roll"))
        sent = self._history.begin(f"tx-{how}", TRANSACTION, late=True, wanted="commit" in how)
        try:
            async with producer.transaction(Message(TRANSACTION, body(sent))) as transaction:
                self._enter(sent, transaction.result)  # type: ignore[arg-type]
                if how == "roll":
                    transaction.rollback()
                elif how.startswith("open"):
                    transaction.leave_open()
        except TransactionFailed as error:
            self._history.problems.append(Violation("decided twice", f"{sent.id}: {error}"))

    async def _check(self, message: ReceivedMessage) -> Decision:
        return Decision.COMMIT if "commit" in id_of(message.body) else Decision.ROLLBACK

    # -- consumers ---------------------------------------------------------------------------------------------------------

    async def _heard(self, message: ReceivedMessage) -> None:
        name = id_of(message.body)
        self.delivered[name] = self.delivered.get(name, 0) + 1

    def undelivered(self) -> list[Sent]:
        return [
            sent for sent in self._history.sent.values()
            if sent.topic in (PLAIN, KEYED) and sent.outcome is Outcome.ACKED and sent.id not in self.delivered
        ]  # fmt: skip

    async def _ask(self, what: object, data: bytes = b"") -> object:
        leader = self._group.leader()
        if leader is None:
            raise TimeoutError("nobody leads")
        channel = self._channels.get(leader.address)
        if channel is None or not channel.is_open:
            channel = self._channels[leader.address] = await Channel.connect(leader.address, timeout=2)
        return await channel.request(what, data, timeout=2)  # type: ignore[arg-type]

    async def _commit(self) -> None:
        queue = (PLAIN, self._dice.randrange(QUEUES))
        offset = min(self._history.asked.get(queue, 0) + self._dice.randint(1, 3), self._history.ends.get(queue, 0))
        self._history.commit_asked(queue, offset)
        answer = await self._ask(
            UpdateConsumerOffset(consumer_group=COMMITTING, topic=queue[0], queue_id=queue[1], commit_offset=offset)
        )
        if answer.code == 0:  # type: ignore[attr-defined]
            self._history.committed(queue, offset)

    # -- locks -------------------------------------------------------------------------------------------------------------

    _held_since = float("-inf")

    async def _lock(self) -> None:
        """One holds the lock and renews it; whoever else asks must not get it before the lease is over."""
        asked = time.monotonic()
        if await self._locked("holder"):
            self._held_since = asked
        held = self._held_since
        if await self._locked("rival") and time.monotonic() - held < LOCK_S:
            self._history.problems.append(
                Violation("lock given twice", f"{time.monotonic() - held:.1f} s after it was renewed by its holder")
            )

    async def _locked(self, who: str) -> bool:
        queue = MessageQueue(PLAIN, GROUP, 0)
        data = LockBatch(consumer_group=LOCKING, client_id=who, queues={queue}).encode()
        answer = await self._ask(LockQueues(), data)
        if answer.code:  # type: ignore[attr-defined]
            return False
        return queue in LockBatchResponse.decode(answer.body).locked  # type: ignore[attr-defined]

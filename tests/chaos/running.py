"""A group under traffic, and the questions that are asked about it: what failover and chaos have in common."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.process import ProcessFailed
from benchmarks.wire import Refused, Wire
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.records.record import Record
from tests.chaos.backlog import PROPERTIES as BACKLOG_PROPERTIES
from tests.chaos.backlog import Backlog, fill, timers_behind
from tests.chaos.history import Found, History
from tests.chaos.members import Group, Member, Reign
from tests.chaos.network import Network
from tests.chaos.traffic import COMMITTING, PLAIN, QUEUES, TOPICS, Traffic, id_of
from tests.crash.checker import Violation
from tests.waiting import eventually_async

LEADS_S_MAX = 60.0
AGAIN_S_MAX = 90.0
LATE_S_MAX = 60.0
OFFSETS_KEPT_S = 3.0
_POLL_S = 0.02
PULL_COUNT = 64
PROPERTIES: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5000,
    "maxMessageSize": 64 << 10,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 5000,
    "defaultTopicQueueNums": QUEUES,
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 2000,
}


class Run:
    """A group with its traffic. Violations gather in `wrong`."""

    def __init__(
        self,
        folder: Path,
        nameserver: str,
        seed: int,
        *,
        relays: bool = False,
        backlog: Backlog | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.dice = random.Random(seed)
        self.network = Network(["n0", "n1", "n2"]) if relays else None
        route = self.network.route if self.network is not None else lambda _source, _target, port: port
        self._backlog, self._say = backlog, say
        properties = PROPERTIES if backlog is None else PROPERTIES | BACKLOG_PROPERTIES
        self.group = Group(folder, nameserver, properties, route)
        self.history = History()
        self.traffic = Traffic(nameserver, self.group, self.history, self.dice)
        self.wrong: list[Violation] = []
        self._broke = float("inf")

    async def __aenter__(self) -> Self:
        try:
            if self.network is not None:
                await self.network.start()
            await self.group.start()
            await self.leads()
            if self._backlog is not None:
                leader = self.group.leader()
                assert leader is not None
                await asyncio.to_thread(fill, leader.address, self._backlog, self._say)
            await self.traffic.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.traffic.stop()
        finally:
            await self._close()

    async def _close(self) -> None:
        self.group.kill_all()
        if self.network is not None:
            await self.network.stop()

    # -- waiting -----------------------------------------------------------------------------------------------------------

    async def leads(self, after_term: int = 0, seconds_max: float = LEADS_S_MAX) -> Reign:
        """Wait until a member that runs leads, in a later term."""
        end = time.monotonic() + seconds_max
        while True:
            reign = self.group.reign()
            if reign is not None and reign.term > after_term:
                return reign
            if time.monotonic() > end:
                raise ProcessFailed(f"nobody leads behind term {after_term} after {seconds_max:g} s")
            await asyncio.sleep(_POLL_S)

    async def answered(self, since: float, seconds_max: float = AGAIN_S_MAX) -> float:
        """Wait for the first answer to a producer behind a moment (wall-clock); return when it came."""
        end = time.monotonic() + seconds_max
        while not (self.history.acks and self.history.acks[-1] > since):
            if time.monotonic() > end:
                raise ProcessFailed(f"no send was answered for {seconds_max:g} s; errors: {self.traffic.errors}")
            await asyncio.sleep(_POLL_S)
        return next(ack for ack in self.history.acks if ack > since)

    async def timers_entered(self, seconds_max: float = AGAIN_S_MAX) -> float:
        """Wait until the leader has all timers in its files; return when that was."""
        end = time.monotonic() + seconds_max
        while True:
            leader = self.group.leader()
            try:
                if leader is not None and not await asyncio.to_thread(timers_behind, leader.address):
                    return time.time()
            except OSError:
                pass  # another one is being elected
            if time.monotonic() > end:
                raise ProcessFailed(f"timers are not entered after {seconds_max:g} s")
            await asyncio.sleep(_POLL_S)

    def breaks(self) -> None:
        """Something is broken from now on."""
        self._broke = time.monotonic()
        self.history.trouble_begins()

    def heals(self) -> None:
        self.history.trouble_ends()

    async def restart(self, *members: Member) -> None:
        await self.group.start(*(member.name for member in members))

    # -- checking ----------------------------------------------------------------------------------------------------------

    async def check(self, *, last: bool = False) -> list[Violation]:
        """Read everything from the leader and judge it."""
        self.group.check_alive()
        for attempt in range(20):
            leader, began = self.group.leader(), time.monotonic()
            try:
                assert leader is not None
                self.wrong += await asyncio.to_thread(self._read, leader)
                break
            except (OSError, Refused, AssertionError):
                if attempt == 19:
                    raise
                await asyncio.sleep(0.5)  # another one is being elected
        self.wrong += self.history.judge(last=last, read=began)
        self.wrong += [Violation("complaint", text) for text in self.group.complaints()]
        return self.wrong

    def _read(self, leader: Member) -> list[Violation]:
        wrong: list[Violation] = []
        with Wire(leader.address, timeout=30) as wire:
            for topic in TOPICS:
                for queue in range(QUEUES):
                    wrong += self.history.note(topic, queue, self._found(wire, topic, queue))
            for queue in range(QUEUES):
                now = wire.committed(COMMITTING, PLAIN, queue) or 0
                wrong += self.history.judge_offset((PLAIN, queue), now, self._broke, OFFSETS_KEPT_S)
        return wrong

    def _found(self, wire: Wire, topic: str, queue: int) -> list[Found]:
        try:
            end = wire.max_offset(topic, queue)
        except Refused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []
        found: list[Found] = []
        at = 0
        while at < end:
            pulled = wire.pull(topic, queue, at, PULL_COUNT, group="checker")
            if not pulled.records:
                raise Refused(f"{topic}/{queue} at {at} of {end}: nothing", _answer(pulled.code))
            # Not what has come since: a batch might be cut where the answer ends.
            found += [_of(record) for record in pulled.records if record.queue_offset < end]
            at = pulled.next_offset
        return found

    async def finish(self) -> list[Violation]:
        """The traffic ends, everything that is still to come comes, and all members hold the same."""
        await self.leads()
        await self.traffic.stop(consumers=False)
        end = time.monotonic() + LATE_S_MAX
        await self.check()
        while (self.history.missing() or self.traffic.undelivered()) and not self.wrong and time.monotonic() < end:
            await asyncio.sleep(1.0)
            await self.check()
        await self.check(last=True)
        self.wrong += [
            Violation("not delivered", f"{sent.id} of {sent.topic} to its consumers")
            for sent in self.traffic.undelivered()
        ]
        try:
            await eventually_async(lambda: not self.group.differing_logs(), timeout=LATE_S_MAX, pause=0.5)
        except AssertionError:
            self.wrong.append(Violation("logs differ", self.group.differing_logs()))
        return self.wrong


def _of(record: Record) -> Found:
    return Found(id_of(record.body), record.queue_offset, record.stored_ms)


def _answer(code: int) -> object:
    from kappamq.protocol.frame import Frame

    return Frame(code=code)

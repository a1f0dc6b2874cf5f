"""Everything about transactions on a store of its own, without sockets and tasks: for tests that open it again and again."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kappamq.broker.clients.registry import Client, Clients
from kappamq.broker.requests.request import Request
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.transactions.checks import TransactionChecks
from kappamq.broker.transactions.half_fold import HalfFold
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.half_records import GROUP
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.transactions.transactions import Transactions
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError
from kappamq.events import Events
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.frame import Frame, FrameDecoder, decode, request
from kappamq.protocol.headers.client import CheckTransaction, EndTransaction
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from kappamq.protocol.records.record import Record
from kappamq.state.metadata import Metadata
from kappamq.state.offsets import Offsets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots
from tests.broker.transacting import Begun
from tests.store.stores import BOOT, BORN, config, kernels, make, make_room, read


class Turns:
    """As much of LogWriter as is needed here: what is appended is written when the test says so."""

    def __init__(self, store: MessageStore, clock: VirtualClock) -> None:
        self._store = store
        self._clock = clock
        self.answers: list[tuple[Frame, int]] = []

    def append(self, append: Callable[[], Any], *, own: bool = False) -> Any:
        while True:
            try:
                return append()
            except self._store.kernel_module.SegmentFull:
                make_room(self._store, self._clock.message_ms())

    def set_turn(self, now_ms: int | None = None) -> None: ...

    def end_turn(self) -> None:
        self._store.write(self._clock.message_ms())

    def park(self, waiting: Any, answers: bytes, end: int, size: int, *, flushed: bool = True) -> None:
        (response,) = FrameDecoder().feed(answers)
        self.answers.append((response, end))


class Peer:
    """A producer's connection."""

    is_open, is_stalled = True, False

    def __init__(self) -> None:
        self.questions: list[CheckTransaction] = []

    def send(self, data: bytes) -> None:
        self.questions.append(CheckTransaction.decode(decode(data).ext))


class HalfLife:
    def __init__(self, root: Path, clock: VirtualClock | None = None, boot: str = BOOT, **settings: Any) -> None:
        self.root = root
        self.clock = clock or VirtualClock()
        self.store = make(config(root, message_bytes_max=4 << 10), kernels()[-1])
        self.recovered = self.store.open(boot)
        self.turns = turns = Turns(self.store, self.clock)
        snapshots = Snapshots(root / "config", self.store.files)
        self.metadata = Metadata(self.store, snapshots, self.clock, bytes(8), turns)  # type: ignore[arg-type]
        self.config = BrokerConfig(name="broker", **settings)
        self.topics = Topics(self.config, self.store.kernel, self.metadata.now_ms, self.metadata.commit)
        self.offsets = Offsets(
            self.metadata.now_ms,
            self.metadata.commit,
            end=lambda topic, queue_id: self.store.kernel.queue_state(topic, queue_id).end,
        )
        self.metadata.add(self.topics)
        self.metadata.add(self.offsets)
        reopened = Reopened()
        self.metadata.add(reopened)
        self.metadata.load(self.offsets.clamp)
        self.clock.not_before(self.store.last_ms)
        appender = Appender(self.store.kernel, turns, self.metadata, self.clock)  # type: ignore[arg-type]
        self.appender = appender
        self.log = HalfLog(
            self.config,
            self.clock,
            self.store,
            turns,
            appender,
            self.topics,
            self.offsets,
            reopened,
            self.store.kernel.forget_half,
        )  # type: ignore[arg-type]
        self.log.rebuild(self.new_fold())
        self.clients = Clients(self.config, Events())
        self.requests = Transactions(self.config, self.clock, turns, self.log, self._worker, lambda *asked: None)  # type: ignore[arg-type]
        self.jobs: list[Coroutine[Any, Any, None]] = []
        self.checks = TransactionChecks(
            self.config, self.clock, self.log, self.clients, self._worker, lambda _part, job: self.jobs.append(job)
        )
        if self.topics.get("t") is None:
            self.topics.update(TopicConfig("t", 1, 1, 6))

    def new_fold(self) -> HalfFold:
        return HalfFold(self.config, self.clock, self.store, self.offsets)

    async def _worker(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    # -- producers ---------------------------------------------------------------------------------------------------------

    def join(self, group: str) -> Peer:
        peer = Peer()
        self.clients.producers.setdefault(group, {})[peer] = Client("c", peer, 0, 0, 0.0)  # type: ignore[index, arg-type]
        return peer

    def leave(self, group: str) -> None:
        self.clients.producers.pop(group, None)

    def begin(self, body: bytes, group: str = "pg", immune_s: int | None = None) -> Begun:
        pairs = {"UNIQ_KEY": f"U{body.decode()}", "TRAN_MSG": "true", "PGROUP": group}
        if immune_s is not None:
            pairs["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(immune_s)
        placed = self.requests.prepare(
            Draft("t", 0, body, pairs, born_ms=self.clock.message_ms(), born=BORN, sys_flag=4), group
        )
        return Begun(placed.log_offset, placed.queue_offset, pairs["UNIQ_KEY"])

    def end(self, begun: Begun, decision: int, group: str = "pg", *, from_check: bool = False) -> int:
        """The code of the answer."""
        header = EndTransaction(
            producer_group=group, transaction_offset=begun.transaction_offset, log_offset=begun.log_offset,
            decision=decision, from_check=from_check, message_id=begun.unique,
        )  # fmt: skip
        try:
            answer = self.requests.end(Request(header, None, request(header)))  # type: ignore[arg-type]
            if asyncio.iscoroutine(answer):
                asyncio.run(answer)
        except KappaError as error:
            return int(error.response_code or 0)
        return 0

    # -- time and disk -----------------------------------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        until = self.clock.message_ms() + ms
        while (due := self.checks.due_ms()) is not None and due <= until:
            self.clock.not_before(due)
            self.checks.run(self.clock.message_ms())
            while self.jobs:
                asyncio.run(self.jobs.pop())
        self.clock.not_before(until)

    def write(self) -> None:
        self.turns.end_turn()

    def flush(self) -> None:
        self.store.request_flush()
        while self.store.marks.flushed.offset < self.store.log.end:
            select.select([self.store.flush_fd], [], [], 10)
            self.store.flush_done()

    def keep_positions(self) -> None:
        """What upkeep does every second."""
        self.log.keep_positions()
        self.offsets.record_commits()

    def save(self) -> None:
        work = self.metadata.collect()
        self.write()
        self.flush()
        self.metadata.save(work)
        while not (work := self.store.collect()).complete:
            self.store.write_derived(work)
        self.store.write_derived(work)

    # -- what is there -----------------------------------------------------------------------------------------------------

    def seen(self) -> list[bytes]:
        """What consumers can see."""
        return [record.body for record in self.records("t")]

    def records(self, topic: str) -> list[Record]:
        return read(self.store, topic)

    def open_bodies(self) -> list[bytes]:
        """Bodies of the open transactions, as they would be committed."""
        return sorted(self.log.load(half).body for half in list(self.log.halves._live.values()))

    def open_for_java(self) -> list[bytes]:
        """The same as a RocketMQ broker works it out: from its two offsets, by what the records say."""
        half_from, op_from = (self.offsets.get(GROUP, topic, 0) or 0 for topic in (HALF_TOPIC, HALF_OP_TOPIC))
        settled = {
            int(piece) for op in self.records(HALF_OP_TOPIC)[op_from:] for piece in op.body.decode().split(",") if piece
        }
        halves = enumerate(self.records(HALF_TOPIC))
        return sorted(record.body for place, record in halves if place >= half_from and place not in settled)

"""Open transactions and the log: each change of one is a group of records, stored whole or not at all.

The state changes when the group is appended, so a second decision right after the first finds it ended. A crash
reverts both or none. Everything visible outside (answers, positions) waits until the log is safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from kappamq.broker.sending.appending import Appender, Draft, Placed
from kappamq.broker.sending.gate import not_master
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.transactions import half_records
from kappamq.broker.transactions.half_fold import HalfFold, due_ms, records_of
from kappamq.broker.transactions.open_transactions import Half, Halves, Op, Outcome, Positions
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, InvalidParameter, ProtocolError, TopicNotFound
from kappamq.native.layout import SYS_COMMIT, HalfEnded, HalfOpened
from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, decode
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.state.offsets import Offsets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_FLUSH_S = 30.0
_OPS_AT_ONCE = 256
_OPS_SEARCHED_MAX = 100 * _OPS_AT_ONCE
"""A transaction is ended soon after it began, or when its producer was asked: its op record is not far."""
_RECORD_EXTRA_BYTES = 64 << 10  # a record is this much longer than its body at most


class HalfLog:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        writer: LogWriter,
        appender: Appender,
        topics: Topics,
        offsets: Offsets,
        reopened_before: Reopened,
        forget_in_kernel: Callable[[int], None],
        on_due: Callable[[], None] = lambda: None,
    ) -> None:
        """`forget_in_kernel`: takes the half message at a log offset from the kernel, which may have kept it."""
        self._forget_in_kernel = forget_in_kernel
        self.halves = Halves()
        self._config = config
        self._clock = clock
        self._store = store
        self._writer = writer
        self._appender = appender
        self._topics = topics
        self._offsets = offsets
        self._reopened = reopened_before
        self._kept = Positions(0, 0, 0)
        self._next: tuple[int, Positions] | None = None  # true as soon as the log is safe up to there
        self._moved_on = asyncio.Event()
        self._on_due = on_due  # something may be due earlier than before
        self._stopped = False

    # -- finding it again --------------------------------------------------------------------------------------------------

    def rebuild(self, fold: HalfFold) -> None:
        """Read both queues to their ends, and go on from there. For a worker: it may read much. Nothing is appended meanwhile."""
        fold.read_all()
        self.halves = fold.halves
        self._kept = self._positions()
        if len(self.halves):
            log.info("%d transactions are open", len(self.halves))

    async def recall(self, root: int, worker: Worker) -> None:
        """Remember again how a transaction was ended that is neither open nor remembered, if the log still knows."""
        if self.halves.get(root) is not None or self.halves.ended(root) is not None:
            return
        end = self._store.queue_state(names.HALF_OP_TOPIC, 0).end
        start: int = await worker(self._store.first_at_or_behind, names.HALF_OP_TOPIC, 0, root)
        last: Op | None = None
        for at in range(start, min(end, start + _OPS_SEARCHED_MAX), _OPS_AT_ONCE):
            op: Op | None = await worker(self._end_of, root, at, min(end, at + _OPS_AT_ONCE))
            last = op or last
            if last is not None and last.outcome is not Outcome.GIVEN_UP:
                break  # what was given up may have been opened again and ended later
        if last is not None and self.halves.get(root) is None:
            self.halves.remember(last)

    def _end_of(self, root: int, start: int, end: int) -> Op | None:
        """Worker: the op record among these that has ended a transaction."""
        last: Op | None = None
        for record, size in records_of(self._store, names.HALF_OP_TOPIC, start, end):
            if record.prepared_offset == root:
                op = half_records.read_op(record, size)
                if op is not None and op.outcome not in (None, Outcome.MOVED):
                    last = op
        return last

    # -- where to read on --------------------------------------------------------------------------------------------------

    def keep_positions(self) -> None:
        """From time to time: positions among the consumer offsets, once everything they rest on is safe on disk."""
        if self._next is not None and self._store.marks.confirmed.offset >= self._next[0]:
            kept, self._next = self._next[1], None
            self._kept = kept
            self._moved_on.set()
            self._offsets.set(half_records.GROUP, names.HALF_TOPIC, 0, kept.half)
            self._offsets.set(half_records.GROUP, names.HALF_OP_TOPIC, 0, kept.op)
        if self._next is None:
            now = self._positions()
            if now != self._kept:
                self._next = self._store.append_offset, now

    async def positions_behind(self, log_offset: int) -> None:
        """Return when nothing of the log below `log_offset` is needed any more, even after a power failure."""
        self._store.request_flush()
        async with asyncio.timeout(_FLUSH_S):
            while self._kept.needed_from < log_offset:
                if self._stopped:
                    raise not_master()
                self._moved_on.clear()
                await self._moved_on.wait()

    def stop(self) -> None:
        """Stop storing positions: nothing needs to wait for them."""
        self._stopped = True
        self._moved_on.set()

    def _positions(self) -> Positions:
        store = self._store
        half_end, op_end = (store.queue_state(topic, 0).next for topic in (names.HALF_TOPIC, names.HALF_OP_TOPIC))
        return self.halves.positions(half_end, op_end, store.append_offset)

    @property
    def needed_from(self) -> int:
        """Log offset of the oldest record that is needed to go on from the positions."""
        return self._kept.needed_from

    @property
    def end(self) -> int:
        """Log offset behind everything that has happened so far."""
        return self._store.append_offset

    @property
    def behind(self) -> int:
        """How many places of the half queue lie behind the oldest open half."""
        oldest = self.halves.oldest
        return 0 if oldest is None else self.places_behind(oldest)

    def places_behind(self, half: Half) -> int:
        return self._store.queue_state(names.HALF_TOPIC, 0).next - half.queue_offset

    # -- changes of a transaction ------------------------------------------------------------------------------------------

    def prepare(self, draft: Draft, group: str) -> Placed:
        """Store a message as a half message, invisible until it is committed."""
        half_records.prepare(draft, group)
        return self._opened(draft, self._appender.append(draft))

    def reopen(self, record: Record, root: int) -> Placed:
        """Store a half message again that was given up, as if nobody had been asked yet; once for each time it was given up."""
        if record.log_offset in self._reopened.places:
            raise BrokerError(
                f"the transaction that was given up at log offset {record.log_offset} was opened again before. If it was given "
                f"up again there is a newer one in {names.TRANSACTION_GIVEN_UP_TOPIC}: name that"
            )
        draft = Draft.of(record)
        draft.topic, draft.queue_id, draft.source = names.HALF_TOPIC, 0, root
        for name in (properties.TRANSACTION_CHECK_TIMES, properties.HALF_SINCE, properties.PREPARED_QUEUE_OFFSET):
            draft.properties.pop(name, None)
        change = self._reopened.change(record.log_offset, self._store.log.min)
        (placed,) = self._appender.append_group([draft], [change], own=True)
        return self._opened(draft, placed)

    def _opened(self, draft: Draft, placed: Placed) -> Placed:
        self._open([half_records.opened(draft, *placed, self._clock.message_ms())])
        return placed

    def _open(self, halves: list[Half]) -> None:
        before = self.halves.due_ms()
        for half in halves:
            half.due_ms = due_ms(self._config, half, half.since_ms)
            self.halves.open(half)
        if before is None or any(half.due_ms < before for half in halves):
            self._on_due()

    def noted(self, notes: Iterable[HalfOpened | HalfEnded], now_ms: int) -> None:
        """The kernel has opened transactions, or ended some of those."""
        opened: list[Half] = []
        for note in notes:
            if isinstance(note, HalfOpened):
                log_offset, queue_offset, size, group, topic = note
                opened.append(Half(log_offset, log_offset, queue_offset, size, group, topic, now_ms))
                continue
            if opened:
                self._open(opened)
                opened = []
            root, decision, op_offset, end = note
            outcome = Outcome.COMMITTED if decision == SYS_COMMIT else Outcome.ROLLED_BACK
            half = self.halves.get(root)
            assert half is not None, f"the kernel has ended transaction {root}, which was not open"
            self.halves.end(half, Op(op_offset, (half.queue_offset,), root, outcome, end))
        if opened:
            self._open(opened)

    def commit(self, half: Half, record: Record) -> int:
        """Store what consumers get, and that it was done; returns the log offset at which that is safe."""
        draft = half_records.committed(half, record)
        topic = self._topics.get(draft.topic)
        if topic is None:
            raise TopicNotFound(
                f"topic {draft.topic} does not exist any more: make it again and commit, or roll the transaction back"
            )
        if draft.queue_id >= max(topic.read_queues, topic.write_queues):
            if not topic.write_queues:
                raise InvalidParameter(f"topic {topic.name} has no queue to write to: give it some and commit")
            draft.queue_id %= topic.write_queues  # it has fewer than when the message was sent
        return self._end(half, Outcome.COMMITTED, [draft])

    def roll_back(self, half: Half) -> int:
        return self._end(half, Outcome.ROLLED_BACK, [])

    def give_up(self, half: Half, record: Record) -> int:
        """Give it up: it was never decided, and its producers are not asked any more."""
        self._topics.ensure(names.TRANSACTION_GIVEN_UP_TOPIC, 1)
        return self._end(half, Outcome.GIVEN_UP, [half_records.given_up(half, record)], own=True)

    def _end(self, half: Half, outcome: Outcome, drafts: list[Draft], *, own: bool = False) -> int:
        self._check_open(half)
        self._forget_in_kernel(half.root)
        # The op record first: it bears the mark of the group, and the message stays as its producer made it.
        placed = self._appender.append_group([self._op(half, outcome), *drafts], own=own)
        end = placed[-1].end
        self.halves.end(half, Op(placed[0].queue_offset, (half.queue_offset,), half.root, outcome, end))
        return end

    def drop(self, half: Half) -> int:
        """Forget a half message that cannot be read any more."""
        return self._end(half, Outcome.GIVEN_UP, [], own=True)

    def renew(self, half: Half, record: Record) -> None:
        """Store a new copy of an open half, which takes the place of the old one."""
        self._move(half, record, half.checks, half.due_ms)

    def check(self, half: Half, record: Record) -> Draft:
        """The same, because its producer is going to be asked; returns the new copy."""
        due_ms = self._clock.message_ms() + self._config.transaction_check_interval_ms
        return self._move(half, record, half.checks + 1, due_ms)

    def ask_anew(self, half: Half, record: Record) -> None:
        """The same, and its producer is going to be asked at once, as if for the first time."""
        self._move(half, record, 0, self._clock.message_ms())

    def _move(self, half: Half, record: Record, checks: int, due_ms: int) -> Draft:
        self._check_open(half)
        self._forget_in_kernel(half.root)
        draft = half_records.copied(half, record, checks)
        op, placed = self._appender.append_group([self._op(half, Outcome.MOVED), draft], own=True)
        settled = Op(op.queue_offset, (half.queue_offset,), half.root, Outcome.MOVED, op.end)
        half.checks = checks
        before = self.halves.due_ms()
        self.halves.move(half, settled, *placed, due_ms)
        if before is None or due_ms < before:
            self._on_due()
        return draft

    def _check_open(self, half: Half) -> None:
        """Before anything is appended: a copy of what was ended would be open again after a restart."""
        if self.halves.get(half.root) is not half:
            raise BrokerError(f"the transaction at log offset {half.root} was ended meanwhile: nothing was changed")

    def _op(self, half: Half, outcome: Outcome) -> Draft:
        return half_records.op_record(half, outcome, self._clock.message_ms(), self._store.host)

    # -- records -----------------------------------------------------------------------------------------------------------

    def is_hot(self, log_offset: int) -> bool:
        """Return whether it can be read at once; else a worker should read it."""
        return bool(log_offset >= self._store.hot_from)

    def write_up_to(self, log_offset: int) -> None:
        """What was appended there in this very turn can be read from now on. A quick producer knows it before it is written."""
        if self._store.log.end <= log_offset < self._store.append_offset:
            self._writer.end_turn()

    def load(self, half: Half) -> Record:
        """The newest copy of a half that is hot. On the loop only."""
        self.write_up_to(half.log_offset)
        return _readable(self.record_at(half.log_offset), half.log_offset)

    async def load_slowly(self, root: int, worker: Worker) -> Record | None:
        """The newest copy of a half, wherever it lies, as of the moment this returns; None if it is not open (any more)."""
        while (half := self.halves.get(root)) is not None:
            log_offset = half.log_offset
            self.write_up_to(log_offset)  # here, not by the worker: turns belong to the loop
            record = await worker(self.record_at, log_offset)
            if self.halves.get(root) is half and half.log_offset == log_offset:
                return _readable(record, log_offset)
        return None

    def record_at(self, log_offset: int) -> Record | None:
        """Whatever record lies there; None if none does. The offset may come from a client. For workers, too."""
        files = self._store.log
        if log_offset < files.min:
            return None
        front = Front(files.slice(log_offset, FRONT_BYTES))
        if front.log_offset != log_offset:
            return None
        if not 0 < front.size <= self._store.config.message_bytes_max + _RECORD_EXTRA_BYTES:
            return None
        try:
            return decode(bytes(files.slice(log_offset, front.size)))
        except ProtocolError:
            return None


def _readable(record: Record | None, log_offset: int) -> Record:
    if record is None:
        raise BrokerError(f"the half message at log offset {log_offset} cannot be read any more")
    return record

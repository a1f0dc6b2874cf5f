"""Which transactions are open, read from the half queue and the op queue, a little at a time.

A role reads both to their end when it begins. A node that may get the role follows them meanwhile (`half_follower`), so that little
is left to read then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kappamq.broker.transactions import half_records
from kappamq.broker.transactions.open_transactions import Half, Halves, Op
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from kappamq.state.offsets import Offsets
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_REMEMBERED = 1000
_DIGITS = 20  # a number of the log has fewer


class HalfFold:
    """For one thread at a time."""

    def __init__(self, config: BrokerConfig, clock: Clock, store: MessageStore, offsets: Offsets) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._steps = store.clock_steps
        self.halves = Halves()
        # From the positions on; a little further back than needed: a producer whose answer was lost may ask once more how it was ended.
        low = store.queue_state(names.HALF_OP_TOPIC, 0).first
        self._op_at = max(low, _position(store, offsets, names.HALF_OP_TOPIC) - _REMEMBERED)
        self._half_at = _position(store, offsets, names.HALF_TOPIC)
        self._java_copies: dict[int, int] = {}  # where the original lay -> where its copy lies
        self._reading: Iterator[None] | None = None

    @property
    def is_outdated(self) -> bool:
        """The wall clock was set since this was begun, so times in it are counted by another clock."""
        return self._store.clock_steps is not self._steps

    @property
    def is_behind(self) -> bool:
        """Whether there is something to read."""
        ends = (self._store.queue_state(topic, 0).end for topic in (names.HALF_OP_TOPIC, names.HALF_TOPIC))
        return self._reading is not None or (self._op_at, self._half_at) != tuple(ends)

    def read_on(self, count: int) -> bool:
        """Read about `count` records more; returns whether more is left than came meanwhile. For a worker."""
        for _ in range(count):
            if self._reading is None:
                self._reading = self._round()
            if next(self._reading, self) is self:
                self._reading = None
                return False
        return True

    def read_all(self) -> None:
        """Read to the end. For a worker: it may read much. Nothing is appended meanwhile."""
        while self._reading is not None and self.read_on(1000):
            pass  # what was begun may not know of what has come since
        while self.read_on(1000):
            pass

    def _round(self) -> Iterator[None]:
        """Both queues to where they end now; op records first, so that most halves need not be looked at."""
        op_end = self._store.queue_state(names.HALF_OP_TOPIC, 0).end
        half_end = self._store.queue_state(
            names.HALF_TOPIC, 0
        ).end  # not before: whatever the op records settle is below
        settled: set[int] = set()
        for record, size in records_of(self._store, names.HALF_OP_TOPIC, self._op_at, op_end):
            op = half_records.read_op(record, size)
            if op is not None:
                self._settle(op)
                settled.update(op.settled)
            else:
                log.warning("the op record at %d is malformed: skipped", record.log_offset)
            yield
        for record, size in records_of(self._store, names.HALF_TOPIC, self._half_at, half_end, settled):
            self._open(record, size, settled)
            yield
        self._op_at, self._half_at = op_end, half_end
        self.halves.positions(half_end, op_end, 0)  # forgets op records that nothing needs

    def _settle(self, op: Op) -> None:
        self.halves.settle(op)
        for place in op.settled:
            self.halves.drop(place)
            if (copy := self._java_copies.pop(place, None)) is not None:
                self.halves.drop(copy)  # a Java broker has copied it, and then its producer has ended the one it knew

    def _open(self, record: Record, size: int, settled: set[int]) -> None:
        pairs = record.property_map()
        original = _number(pairs.get(properties.PREPARED_QUEUE_OFFSET))
        if original in settled:
            return  # likewise
        half = half_records.read_half(record, pairs, size)
        if half is None:
            log.warning("the half message at %d lacks the properties of a half message: skipped", record.log_offset)
            return
        if original is not None:
            self._java_copies[original] = half.queue_offset
        now_ms = self._clock.message_ms()  # nothing was stored later, whatever it says
        shift_ms = self._store.clock_steps.shift_ms(record.log_offset)  # the clock may have been set since
        half.since_ms = min(half.since_ms + shift_ms, now_ms)
        half.due_ms = due_ms(self._config, half, min(record.stored_ms + shift_ms, now_ms))
        self.halves.open(half)
        if half_records.is_nameless_copy(record, pairs):
            self.halves.name(half, pairs.get(properties.UNIQUE_KEY, ""), record.born_ms)


def due_ms(config: BrokerConfig, half: Half, stored_ms: int) -> int:
    """Return when to check its producer (again), if its newest copy was stored at `stored_ms`."""
    if half.checks:
        return stored_ms + config.transaction_check_interval_ms
    return half.since_ms + (config.transaction_timeout_ms if half.immune_ms is None else half.immune_ms)


def records_of(
    store: MessageStore, topic: str, start: int, end: int, without: set[int] | frozenset[int] = frozenset()
) -> Iterator[tuple[Record, int]]:
    """Messages [start, end) of the only queue of a topic, each with its bytes in the log."""
    for offset in range(start, end):
        if offset in without:
            continue
        entry = store.entry(topic, 0, offset)
        found = store.found(entry[0]) if entry is not None else None
        if found is not None:
            yield found[1], len(found[0])
        elif entry is None or entry[0] >= store.log.min:  # else it was settled, and deleted while this was read
            log.warning("message %d of %s cannot be read: skipped", offset, topic)


def _position(store: MessageStore, offsets: Offsets, topic: str) -> int:
    low, end, _next, _stored = store.queue_state(topic, 0)
    known = offsets.get(half_records.GROUP, topic, 0)
    return int(low if known is None else min(max(known, low), end))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and len(text) < _DIGITS and text.isascii() and text.isdigit() else None

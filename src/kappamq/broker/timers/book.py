"""Timers on disk: brings the queue of the timer topic into RocketMQ's timer files, and reads from them what is due.

Belongs to one worker thread, which runs one job after the other: so reads include everything entered
before. Nothing here decides about deliveries; `timers.py` does, on the loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from kappamq.broker.timers.acted import is_done
from kappamq.broker.timers.progress import FOREVER, Late, TimerProgress
from kappamq.broker.timers.upcoming import PACKED, Bucket, Timer
from kappamq.errors import StoreDamaged, StoreFormatError
from kappamq.native.layout import ENTRY, FILLER_BYTES, FOUND
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records.tags import java_hash
from kappamq.protocol.records.view import RecordView, walk
from kappamq.protocol.timing import Parked, parked, parked_in
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.acts import acts, not_after, not_before
from kappamq.store.timer.entries import CANCEL, PLAIN, PRECISION_MS, ROLL, ROLL_MS, UNIT, Stamp, Unit, slot_ms
from kappamq.store.timer.files import TimerFiles

log = logging.getLogger(__name__)

ENTER_MAX = 1024
_FETCH_MAX = 512  # records of usual size fit into what is fetched at once
WEEK_MS = 7 * 86_400_000
"""No timer, not even another broker's, is further ahead in the files."""


class Opened(NamedTuple):
    queue_offset: int  # messages of the timer topic from here on are to be entered
    read_ms: int  # the slots before that of this time are done with
    change: dict[str, object] | None  # of the progress, if another broker has been here
    rebuilt: bool


class Entered(NamedTuple):
    queue_offset: int
    stored_ms: int  # of the last one
    upcoming: list[Timer]  # in slots that are loaded already
    slots: list[int]  # the others they are in
    cancels: list[tuple[str, int]]  # (key, due) of recalls to drop a message in slots that are loaded already
    counts: dict[bytes, int]  # of messages by real topic


class Loaded(NamedTuple):
    upto_ms: int  # the slots before are in memory
    buckets: list[Bucket]
    cancels: list[tuple[str, int]]
    next_slot: int | None  # the first one behind that has anything in it


class TimerBook:
    def __init__(self, store: MessageStore, files: TimerFiles) -> None:
        self._store = store
        self._files = files
        self.hashes: dict[bytes, int] = {}

    @property
    def files(self) -> TimerFiles:
        return self._files

    # -- opening -------------------------------------------------------------------------------------------------------------

    def open(self, progress: TimerProgress) -> Opened:
        """Continue from what the last broker left; what cannot be trusted is rebuilt from the queue."""
        try:
            return self._continue(self._files.open(self.last_step), progress)
        except (StoreFormatError, StoreDamaged) as error:
            return self.rebuild(progress, str(error))

    def open_to_follow(self, progress: TimerProgress) -> Opened | None:
        """The same on a node that does not deliver; None if another broker has written the files."""
        try:
            stamp = self._files.open(self.last_step)
            return self._continue(stamp, progress) if stamp is None or stamp.ours else None
        except (StoreFormatError, StoreDamaged) as error:
            return self.rebuild(progress, str(error))

    def _continue(self, stamp: Stamp | None, progress: TimerProgress) -> Opened:
        low, end, _next, _stored = self._store.queue_state(TIMER_TOPIC, 0)
        if stamp is None:
            lost = low < end and bool(low or progress.due_ms)  # else this is the first timer of all
            return self.rebuild(progress, "the timer files are missing" if lost else "")
        checkpoint = self._files.checkpoint
        if not stamp.ours:
            return self._adopt(low, end, progress)
        if progress.built_behind < self.last_step:
            return self.rebuild(progress, "the wall clock was set")
        if not (stamp.same_boot or stamp.clean):
            return self.rebuild(progress, "the machine went down, or the wall clock was set")
        if not low <= checkpoint.queue_offset <= end:
            return self.rebuild(progress, f"the timer files end at message {checkpoint.queue_offset} of [{low}, {end}]")
        queue_offset = self._files.resume(checkpoint.queue_offset, self._log_offset_of)
        # Only the log knows what is delivered: the checkpoint may have heard of copies that did not get to the disk.
        return Opened(queue_offset, max(progress.due_ms, self._stored_ms(low)), None, False)

    def rebuild(self, progress: TimerProgress, why: str) -> Opened:
        """Start over: enter every message of the timer topic that may be pending again."""
        self._files.reset(self.last_step)
        low = self._store.queue_state(TIMER_TOPIC, 0).first
        if progress.due_ms:
            low = max(low, self._store.search(TIMER_TOPIC, 0, progress.due_ms - self.reach_ms(progress)))
        if why:
            log.warning("rebuilding the timer files from message %d of the timer topic: %s", low, why)
        return Opened(low, max(progress.due_ms, self._stored_ms(low)), None, True)

    def _adopt(self, low: int, end: int, progress: TimerProgress) -> Opened:
        """Another broker's files: its checkpoint says what it has delivered, its last unit what it has entered."""
        checkpoint = self._files.checkpoint
        last = self._files.adopt()
        record = None if last is None else self._store.decoded(last.log_offset)
        entered = checkpoint.queue_offset if record is None else record.queue_offset + 1
        entered = min(max(entered, low), end)
        read_ms = max(checkpoint.read_ms, self._stored_ms(low) - WEEK_MS)
        if progress.foreign_ms == checkpoint.read_ms:  # we have been here before, and died before we had left our mark
            return Opened(entered, read_ms, None, False)
        # What it found too late for its slot it delivered at once, without a unit: whether it did is known up to here only.
        surely = min(max(min(checkpoint.master_queue_offset, entered), low), end)
        late = Late(surely, end, checkpoint.read_ms) if surely < end else None
        change: dict[str, object] = {
            "due": [checkpoint.read_ms, FOREVER],
            "late": None if late is None else list(late),
            "foreign": checkpoint.read_ms,
        }
        log.info(
            "timers: another broker has delivered what was due up to %d, taking over from there", checkpoint.read_ms
        )
        return Opened(entered, read_ms, change, False)

    def _stored_ms(self, queue_offset: int) -> int:
        """A time that a message of the timer topic, and all behind it, were stored at or after: they are due later than that."""
        stored, entry = (
            self._store.store_ms(TIMER_TOPIC, 0, queue_offset),
            self._store.entry(TIMER_TOPIC, 0, queue_offset),
        )
        return 0 if stored is None or entry is None else self._store.clock_steps.floor_ms(entry[0], stored)

    @property
    def last_step(self) -> int:
        """Return where in the log the wall clock was last set."""
        steps = self._store.clock_steps.steps
        return steps[-1].log_offset if steps else 0

    def reach_ms(self, progress: TimerProgress) -> int:
        """What is pending was stored no longer than this before it is looked at."""
        return WEEK_MS if progress.due_ms < progress.foreign_ms + WEEK_MS else ROLL_MS + PRECISION_MS

    def _log_offset_of(self, queue_offset: int) -> int | None:
        found = self._store.entry(TIMER_TOPIC, 0, queue_offset)
        return None if found is None else found[0]

    # -- entering ------------------------------------------------------------------------------------------------------------

    def at_hand(self, first: int, count: int) -> tuple[bytes, bytes]:
        """Entries and records of these messages that are in memory, for `enter`. On the loop: one call for many of them, the others are
        read one by one."""
        store = self._store
        found = [store.fetch(TIMER_TOPIC, 0, at, _FETCH_MAX) for at in range(first, first + count, _FETCH_MAX)]
        records = b"".join(payload for verdict, payload in found if verdict == FOUND)
        return store.tail_entries(TIMER_TOPIC, 0, first, count), records

    def stored_ms(self, queue_offset: int) -> int:
        """When a message of the timer topic was stored, by the current clock; 0 if that cannot be read."""
        entry = self._store.entry(TIMER_TOPIC, 0, queue_offset)
        stored_ms = self._store.store_ms(TIMER_TOPIC, 0, queue_offset)
        if entry is None or stored_ms is None:
            return 0
        return stored_ms + self._store.clock_steps.shift_ms(entry[0])

    def enter(
        self,
        first: int,
        count: int,
        entries: bytes,
        loaded_ms: int,
        progress: TimerProgress,
        now_ms: int,
        pending_ms: int,
        records: bytes = b"",
    ) -> Entered:
        """Bring messages [first, first + count) of the timer topic into the files. `entries` if the queue's memory has them, and
        of their `records` those that were at hand, back to back; of those before, all that are due before `pending_ms` are
        delivered."""
        upcoming: list[Timer] = []
        slots: set[int] = set()
        cancels: list[tuple[str, int]] = []
        counts: dict[bytes, int] = {}
        stored_ms = 0
        entries = entries or self._entries(first, count)
        steps = self._store.clock_steps
        for log_offset, size, said in self._parked(entries, now_ms, records):
            stored_ms = steps.floor_ms(log_offset, said.stored_ms)
            act = acts(said, log_offset, steps)
            at_ms = act.at_ms
            kind = PLAIN | (CANCEL if said.cancels else 0) | (ROLL if act.rolls else 0)
            if is_done(said, log_offset, at_ms, steps, progress):
                continue  # files are built again, or it is late and delivered on its own
            at_ms = not_before(at_ms, now_ms)
            topic_hash = self.hashes.get(said.real_topic)
            if topic_hash is None:
                if len(self.hashes) > 1000:
                    self.hashes.clear()
                topic_hash = self.hashes[said.real_topic] = java_hash(said.real_topic.decode("utf-8", "replace"))
            # files know the time between the two in 32 bits
            written_ms = max(min(act.stored_ms, at_ms), at_ms - WEEK_MS)
            slot = self._files.add(kind, written_ms, at_ms, log_offset, size, topic_hash)
            pending_ms = min(pending_ms, at_ms)
            if slot < loaded_ms:
                upcoming.append(Timer(at_ms, log_offset, size, kind))
                if kind & CANCEL and not act.rolls:
                    cancels.append((said.cancels.decode("utf-8", "replace"), at_ms))
            else:
                slots.add(slot)
            if not kind & CANCEL:
                counts[said.real_topic] = counts.get(said.real_topic, 0) + 1
        queue_offset = first + len(entries) // ENTRY.size
        # The next ones are due after they were stored, and so after the last of these was stored.
        self._files.commit(now_ms, max(progress.due_ms, min(pending_ms, stored_ms)), queue_offset)
        return Entered(queue_offset, stored_ms, upcoming, sorted(slots), cancels, counts)

    def late(self, late: Late, count_max: int) -> tuple[int, list[Timer]]:
        """(next queue offset, those of the next messages that are due)."""
        entries = self._entries(late.first, min(count_max, late.stop - late.first))
        found = [
            Timer(said.due_ms, log_offset, size, PLAIN | (CANCEL if said.cancels else 0))
            for log_offset, size, said in self._parked(entries)
            if said.due_ms <= late.due_ms
        ]
        return (late.first + len(entries) // ENTRY.size) if entries else late.stop, found

    def _parked(self, entries: bytes, now_ms: int = FOREVER, records: bytes = b"") -> list[tuple[int, int, Parked]]:
        """What records of the timer topic say. None was stored after `now_ms`, whatever its stamp says."""
        found: list[tuple[int, int, Parked]] = []
        at_hand = {view.log_offset: view for view in walk(records, check_crc=False) if isinstance(view, RecordView)}
        for log_offset, size, _code in ENTRY.iter_unpack(entries):
            said = None
            record = at_hand.get(log_offset)
            if record is not None:
                said = parked_in(record)
            elif 0 < size < FILLER_BYTES:
                with self._store.log.slice(log_offset, size) as view:
                    said = parked(view)
            if said is None:
                log.error("the record at %d in the timer topic is not a timer: skipped", log_offset)
            else:
                found.append((log_offset, size, not_after(said, log_offset, self._store.clock_steps, now_ms)))
        return found

    def _entries(self, first: int, count: int) -> bytes:
        """Entries of the timer topic from memory, else from the queue's files, as far as one of the two has them."""
        data: bytes = self._store.tail_entries(TIMER_TOPIC, 0, first, count)
        if data:
            return data
        data = self._store.queues.read(TIMER_TOPIC, 0, first, count)
        known = sum(1 for _ in takewhile(lambda entry: entry[1] > 0, ENTRY.iter_unpack(data[: len(data) // 20 * 20])))
        return data[: known * ENTRY.size]

    # -- loading -------------------------------------------------------------------------------------------------------------

    def load(self, from_ms: int, to_ms: int, horizon_ms: int, count_max: int, progress: TimerProgress) -> Loaded:
        """What is due in the slots [from_ms, to_ms); whole slots, and no further than `count_max` of them fill.

        Raises StoreDamaged if the files make no sense."""
        buckets: list[Bucket] = []
        cancels: list[tuple[str, int]] = []
        count = 0
        at = from_ms
        while at < to_ms and count < count_max:
            slot = self._files.next_used(at, to_ms)
            if slot is None:
                at = to_ms
                break
            by_ms: dict[int, bytearray] = {}
            for unit in self._files.chain(slot):
                due_ms = unit.due_ms or self._due_of(unit)
                if slot_ms(due_ms) != slot:
                    raise StoreDamaged(f"a unit of the timer log in the slot {slot} says it is due at {due_ms}")
                if progress.is_done(due_ms, unit.log_offset):
                    continue
                count += 1
                packed = PACKED.pack(unit.log_offset, unit.size, unit.kind)
                bucket = by_ms.get(due_ms)
                if bucket is None:
                    by_ms[due_ms] = bytearray(packed)
                else:
                    bucket += packed
                if unit.kind & (CANCEL | ROLL) == CANCEL:
                    record = self._read(unit)
                    if record is not None:
                        cancels.append((record.cancels.decode("utf-8", "replace"), due_ms))
                if unit.log_offset < self._store.hot_from:
                    self._store.warm(unit.log_offset, unit.size)
            buckets += [Bucket(due_ms, by_ms[due_ms]) for due_ms in sorted(by_ms)]
            at = slot + PRECISION_MS
        return Loaded(at, buckets, cancels, self._files.next_used(at, max(horizon_ms, at)))

    def _due_of(self, unit: Unit) -> int:
        """Of a unit that another broker has written: as its record says, but in its slot."""
        said = None if unit.kind & ROLL else self._read(unit)
        if said is not None and slot_ms(said.due_ms) == unit.slot_ms:
            return said.due_ms
        return unit.slot_ms + PRECISION_MS

    def _read(self, unit: Unit) -> Parked | None:
        with self._store.log.slice(unit.log_offset, unit.size) as view:
            return parked(view) if len(view) == unit.size else None

    # -- counting ------------------------------------------------------------------------------------------------------------

    def count(
        self, position: int, end: int, topics: Mapping[int, str], progress: TimerProgress
    ) -> tuple[Counter[str], int | None]:
        """How many of the next units from `position` (0: the first) on wait for each of `topics`, which are told by their hash, and where
        to count on; None at the `end`."""
        units = [unit for unit in self._files.units(position) if unit.position < end]
        waiting = [
            unit for unit in units if not unit.kind & CANCEL and not progress.is_done(unit.due_ms, unit.log_offset)
        ]
        counts = Counter(topics.get(unit.topic_hash, "") for unit in waiting)
        del counts[""]
        return counts, units[-1].position + UNIT.size if units else None

    # -- keeping -------------------------------------------------------------------------------------------------------------

    def save(self, now_ms: int, read_ms: int) -> None:
        """Now and then: for a broker that opens the store after our death. How far the files are, they know best: messages may
        have been entered since this was asked for."""
        self._files.commit(now_ms, read_ms, self._files.checkpoint.queue_offset)

    def close(self, now_ms: int, read_ms: int, queue_offset: int, left: list[Timer] | None) -> None:
        """A clean stop. `left`: all remaining work in the slot of `read_ms`, if part of that slot was done."""
        if left is not None:
            start = slot_ms(read_ms)
            units = [
                Unit(0, -1, timer.kind, now_ms, start, timer.log_offset, timer.size, 0, timer.due_ms) for timer in left
            ]
            self._files.replace_slot(start, units)
        self._files.commit(now_ms, read_ms, queue_offset, clean=True)
        self._files.close()

    def leave(self) -> None:
        """A stop without knowing what the log holds: the files stay as a crash would leave them."""
        self._files.close()

    def forget_below(self, log_min: int) -> None:
        """The log has lost its beginning: so do the timer files."""
        if self._files.delete_below(log_min):
            checkpoint = self._files.checkpoint
            self._files.commit(checkpoint.version_ms, checkpoint.read_ms + 1, checkpoint.queue_offset)

    def needed_from(self, progress: TimerProgress, log_end: int) -> tuple[int, int]:
        """(log offset of the first record that may be pending, its place in the timer topic)."""
        first = self._store.search(TIMER_TOPIC, 0, progress.due_ms - self.reach_ms(progress))
        found = self._store.entry(TIMER_TOPIC, 0, first)
        return (log_end if found is None else found[0]), first

"""Opening a store: find out how far queues and log can be trusted, and dispatch the rest of the log again.

Where the scan begins depends on which broker wrote last and how it stopped:

- our own stop or crash, same boot: at the offset up to which all queue entries had been handed to the system;
- our own, but the machine went down: at the offset up to which they had been fsynced;
- a Java broker: its queues are trusted as they are; the scan begins in the file that its checkpoint points to;
- queue files are missing: at the log's beginning.

Dispatching a record twice has no effect, so beginning too early only costs time. If other brokers copy the log, only records known to be
confirmed are dispatched; later ones only raise the next offsets of their queues. The scan ends at the first byte that is not a
good record. Below the durably flushed offset that is damage, not the end: the store opens only with the operator's consent. A page
that cannot be read appears as zeros (native/mapping.c) and is never taken for the end.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kappamq.errors import StoreDamaged
from kappamq.native.layout import FILLER_BYTES, SCAN_BLANK, Misnumbered
from kappamq.protocol.records.view import FRONT_BYTES, Front, fronts_in
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.position import Position
from kappamq.store.queues.deleted_topics import ForgottenTopics
from kappamq.store.receiving import misnumbered

if TYPE_CHECKING:
    from kappamq.store.message_store import MessageStore

_STAMP_AHEAD_MS = 60_000  # a record's store time may be this much later than its file's
_FOREVER = 1 << 62
_WINDOW_BYTES = 32 << 20
_RELIEF_BYTES = 256 << 20  # every so many bytes entries go to their files, so that a long scan does not fill memory
FINGERPRINT_BYTES = 64


@dataclass(slots=True)
class Recovered:
    """The result of opening the store, for the broker's log and for tests."""

    clean: bool = True
    writer: str = "new"  # new, ours, or foreign (also if the writer is unknown)
    contradicted: bool = False  # our position file exists, but the log or the checkpoint contradicts it
    scanned_from: int = 0
    end: int = 0
    entered: int = 0  # records from here on are not in their queues: they may be unconfirmed
    records: int = 0
    last_ms: int = 0
    index_from: int = 0
    rebuilt: bool = False
    damage: list[tuple[int, int]] = field(default_factory=list)  # [from, to) that was skipped
    notes: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None  # replaces the one that was found
    crashed_pid: int | None = None  # of the broker that did not stop cleanly, if known

    def story(self, seconds: float) -> str:
        """One sentence for the log: the state of the store, what recovery did, and how long it took."""
        if self.writer == "new":
            return "a new store"
        if self.clean:
            found = "the store was closed cleanly"
        else:
            who = f" (process {self.crashed_pid})" if self.crashed_pid else ""
            found = f"the last broker{who} did not stop cleanly"
        if self.writer == "foreign":
            found += ", and kappamq.position is missing or does not fit, as after another implementation of the broker"
        looked = f"{self.records} records in {self.end - self.scanned_from} bytes from offset {self.scanned_from} on"
        did = f"{looked} were checked and entered into their queues" if self.records else "its queues are complete"
        if self.rebuilt:
            did += " (queue files were missing: all of it)"
        if self.entered < self.end:
            did += f", but for the last {self.end - self.entered} bytes, which may not be confirmed"
        if self.damage:
            lost = sum(stop - start for start, stop in self.damage)
            did += f", {lost} damaged bytes were skipped"
        return f"{found}: {did}, the log ends at {self.end}; ready after {seconds:.2f} s"


def fingerprint(store: MessageStore, offset: int) -> int:
    """CRC of the log's bytes just before `offset`: identifies the log that a position file belongs to."""
    start = _fingerprint_start(store, offset)
    return zlib.crc32(store.log.whole_view(start)[: offset - start])


def _fingerprint_start(store: MessageStore, offset: int) -> int:
    return max(offset - FINGERPRINT_BYTES, offset - offset % store.config.segment_bytes)


def recover(
    store: MessageStore,
    position: Position | None,
    checkpoint: Checkpoint,
    clean: bool,
    boot_id: str,
    enter_up_to: int | None,
    begin_at: int,
) -> Recovered:
    log = store.log
    found = Recovered(clean=clean)
    if not any(True for _ in log.segments()):
        if position is not None and position.flushed > 0:
            raise StoreDamaged(
                f"the log was flushed up to {position.flushed}, but {log.folder} has no log files: is a file system not mounted? Bring "
                f"them back; or, to begin anew without any message, delete {store.derived.position_path}"
            )
        # Without a log, queue entries refer to messages that no longer exist.
        for topic, queue_id in list(store.queues.queues()):
            store.queues.cut(topic, queue_id, 0)
        log.open_end(begin_at)
        found.scanned_from = found.end = found.entered = begin_at
        return found
    start, ours, loaded = _where_to_begin(store, position, checkpoint, clean, boot_id, found)
    if not ours and not clean and enter_up_to is not None:
        # If several brokers wrote to the log in turn, store times are useless, as their clocks differ. Queue entries that a power cut
        # removed can only be found in the log.
        start = min(start, log.min)
    found.scanned_from = start
    if not loaded:
        _load_queues(store, start)
    if not clean or not ours:
        _cut_queues(store)
    flushed = position.flushed if ours and position is not None else 0
    believed = found.checkpoint or checkpoint
    limit = _FOREVER
    if enter_up_to is not None:
        limit = max(enter_up_to, start, position.dispatched if ours and position is not None else 0)
    found.entered = start
    end = _scan(store, start, limit, flushed, None if ours else believed.physic_ms, found)
    if ours and not found.records:  # else use the newest record: the clock may have been set back since the checkpoint
        found.last_ms = believed.physic_ms
    if not ours and found.checkpoint is not None:
        found.checkpoint = Checkpoint()  # _FOREVER was a placeholder; the next checkpoint has real times
    log.open_end(end)
    found.end = end
    return found


def _where_to_begin(
    store: MessageStore, position: Position | None, checkpoint: Checkpoint, clean: bool, boot_id: str, found: Recovered
) -> tuple[int, bool, bool]:
    """(offset from which every record is dispatched again, whether our broker wrote last, whether the kernel already has the queue
    files' entries for records below that offset)."""
    log_min = store.log.min
    if position is not None:
        if position.boot_id == boot_id:
            trusted, crc, counts = position.dispatched, position.last_crc, (position.queues, position.entries)
        else:
            trusted, crc, counts = (
                position.synced,
                position.synced_crc,
                (position.synced_queues, position.synced_entries),
            )
        _require_readable(store, start := _fingerprint_start(store, trusted), trusted - start)
        # Files may have been deleted since queues were last made durable: then the whole remaining log is dispatched again.
        whole = trusted >= log_min
        same_log = not whole or fingerprint(store, trusted) == crc
        if same_log and (position.wrote(checkpoint.encode()) or _heal_checkpoint(store, position, checkpoint, found)):
            found.writer = "ours"
            found.index_from = max(log_min, min(position.index, trusted))
            if not whole:
                trusted = log_min
            queues, entries = _load_queues(store, trusted)
            if trusted == log_min and position.boot_id != boot_id:
                _forget_empty_queues(store)
            if not whole:
                return log_min, True, True
            if queues >= counts[0] and entries >= counts[1]:
                return trusted, True, True
            found.notes.append(
                f"queue files hold {entries} entries in {queues} queues, expected {counts[1]} in {counts[0]}"
            )
            found.rebuilt = True
            return log_min, True, False
        found.contradicted = True
        found.notes.append(
            "the log has changed since our last stop, perhaps by another broker: its queue files are used as they are"
        )
    found.writer = "foreign"
    newest = _newest_known(store)
    found.last_ms = _newest_ms(store)
    java_start = _java_start(store, checkpoint)
    if not checkpoint.is_possible(found.last_ms):
        found.notes.append(
            f"the checkpoint file is damaged: {checkpoint} does not fit a log whose newest known record is of {found.last_ms} ms. "
            f"It is ignored and rewritten"
        )
        found.checkpoint = Checkpoint(physic_ms=_FOREVER)  # no good record may count as a torn tail
        java_start = store.log.min
    found.index_from = start = newest if clean else min(newest, java_start)
    return start, False, False


def _heal_checkpoint(store: MessageStore, position: Position, checkpoint: Checkpoint, found: Recovered) -> bool:
    """Decide whether a changed checkpoint beside an unchanged log is damage or was written by another broker.

    Our position has a copy. It is used if the difference is one bit, or if no broker can have written the file."""

    def newest_ms() -> int:
        _newest_known(store)
        return _newest_ms(store)

    damaged = position.is_damaged(checkpoint, newest_ms)
    if damaged:
        found.notes.append(
            f"the checkpoint file is damaged or missing ({checkpoint}): restored from the copy in {store.derived.position_path.name}"
        )
        found.checkpoint = Checkpoint.decode(position.checkpoint)
    return damaged


def _newest_ms(store: MessageStore) -> int:
    """The largest store time of the last record of each queue and the first of each log file."""
    places = [segment.start for segment in store.log.segments()]
    for topic, queue_id in store.queues.queues():
        end = store.kernel.queue_state(topic, queue_id).end
        log_offset, size, _code = store.queues.entry(topic, queue_id, end - 1) if end else (0, 0, 0)
        if size and size != FILLER_BYTES:
            places.append(log_offset)
    newest = 0
    for place in places:
        view = store.log.whole_view(place)[: 8 << 20]
        size = Front(view).size
        _require_readable(store, place, min(len(view), size) or 1)
        _good, _why, records, _ms = store.kernel_module.scan(view[:size], place, True)
        if records:
            newest = max(newest, _first_store_ms(store, place))
    return newest


def _require_readable(store: MessageStore, offset: int, size: int) -> None:
    """Raise if these bytes cannot be read: they appear as zeros, which say nothing about the writer of the log. With `skip_damage`
    they count as damage, and the log is treated as another broker's."""
    if not store.config.skip_damage and store.log.has_lost(offset, size):
        store.log.require_readable(offset)


def _load_queues(store: MessageStore, log_end: int) -> tuple[int, int]:
    """Load the queue files' entries for records below `log_end` into the kernel: (non-empty queues, sum of their ends)."""
    queues = entries = 0
    for topic, queue_id in store.queues.queues():
        low, end = store.queues.bounds(topic, queue_id, store.log.min, log_end)
        store.kernel.set_queue(topic, queue_id, low, end)
        if end:
            queues += 1
            entries += end
    return queues, entries


def _forget_empty_queues(store: MessageStore) -> None:
    """The whole remaining log is dispatched again after a power cut. A queue without valid entries may have lost its first ones, so it
    begins with its first record in the log. If the log has none, kappamq.queues.json says where the queue ended."""
    for topic, queue_id in store.queues.queues():
        state = store.kernel.queue_state(topic, queue_id)
        if state.first == state.end:
            store.kernel.set_queue(topic, queue_id, 0, 0)


def _newest_known(store: MessageStore) -> int:
    """The end of the last record that a queue file of a Java broker refers to."""
    newest = store.log.min
    _load_queues(store, _FOREVER)
    for topic, queue_id in store.queues.queues():
        end = store.kernel.queue_state(topic, queue_id).end
        if end:
            log_offset, size, _code = store.queues.entry(topic, queue_id, end - 1)
            if size != FILLER_BYTES:
                newest = max(newest, log_offset + size)
    # A queue entry that points beyond the log was written before its record reached the disk.
    return newest if store.log.whole_view(newest - 1) else store.log.min


def _java_start(store: MessageStore, checkpoint: Checkpoint) -> int:
    """After a Java broker's crash: the last file whose first record is older than its checkpoint."""
    chosen = store.log.min
    for segment in store.log.segments():
        _good, _why, records, _store_ms = store.kernel_module.scan(
            store.log.whole_view(segment.start)[: 8 << 20], segment.start, False
        )
        if not records or _first_store_ms(store, segment.start) > checkpoint.min_timestamp():
            break
        chosen = segment.start
    return chosen


def _first_store_ms(store: MessageStore, offset: int) -> int:
    return Front(store.log.whole_view(offset)).stored_ms


def _scan(
    store: MessageStore,
    start: int,
    limit: int,
    flushed: int,
    foreign_ms: int | None,
    found: Recovered,
) -> int:
    """Dispatch every good record in [`start`, `limit`); return where the log ends."""
    at, forgotten = start, ForgottenTopics(store.log)
    while True:
        view = store.log.whole_view(at)
        if not view:
            return at
        window = view[:_WINDOW_BYTES]
        good, why, records, store_ms = store.kernel_module.scan(window, at, store.config.check_crc_on_recovery)
        if not good and len(window) < len(view) and why != SCAN_BLANK:
            good, why, records, store_ms = store.kernel_module.scan(view, at, store.config.check_crc_on_recovery)
        if good:
            _enter(store, at, view[:good], limit, found, forgotten)
            if (at + good) // _RELIEF_BYTES > at // _RELIEF_BYTES:
                for topic, queue_id, first, entries in store.kernel.take_entries(_FOREVER):
                    low = store.kernel.queue_state(topic, queue_id).first
                    store.queues.write(topic, queue_id, first, entries, low)
            found.records += records
            found.last_ms = store_ms
            at += good
            continue
        if why == SCAN_BLANK:
            if found.entered == at and at + len(view) <= limit:
                found.entered += len(view)
            at += len(view)
            continue
        resumed = _behind_damage(store, at, flushed, foreign_ms)
        if resumed is None:
            return at
        found.damage.append((at, resumed))
        if found.entered == at and resumed <= limit:
            found.entered = resumed
        at = resumed


def _enter(
    store: MessageStore, at: int, records: memoryview, limit: int, found: Recovered, forgotten: ForgottenTopics
) -> None:
    """Dispatch records below `limit`; for the others only raise the next offsets of their queues."""
    size = len(records)
    if at + size > limit:  # the limit is within these records: never dispatch a part of a batch
        size = store.kernel_module.scan(records[: max(0, limit - at)], at, False)[0] if found.entered == at else 0
    if size:
        store.enter(at, records[:size])
        found.entered = at + size
    known: set[tuple[str, int]] = set()
    while (wrong := store.kernel.number(records[size:])[1]) is not None:
        if (wrong.topic, wrong.queue_id) not in known and _begins_again(store, at + size + wrong.at, wrong, forgotten):
            known.add((wrong.topic, wrong.queue_id))
            continue
        raise StoreDamaged(
            f"the log's unconfirmed end has a gap: {misnumbered(at + size, wrong)}. Cut it off at {found.entered} (kappamq store cut)"
        )


def _begins_again(store: MessageStore, at: int, wrong: Misnumbered, forgotten: ForgottenTopics) -> bool:
    """Whether the topic was deleted and forgotten before this record: then its queues have begun at 0 again, and old entries that their
    files still have do not count."""
    if wrong.number > wrong.expected or not forgotten.is_forgotten(wrong.topic, at):
        return False
    low, end, _next, _stored = store.kernel.queue_state(wrong.topic, wrong.queue_id)
    if wrong.number and low < wrong.number <= end:  # some of the new messages have their entries already
        store.kernel.set_queue(wrong.topic, wrong.queue_id, low, wrong.number)
    else:
        store.kernel.set_queue(wrong.topic, wrong.queue_id, end, end)
    return True


def _behind_damage(store: MessageStore, at: int, flushed: int, foreign_ms: int | None) -> int | None:
    """Where good records continue behind the damage at `at`; None if the log ends there. `foreign_ms`: another broker wrote last, and
    its checkpoint covers records up to this store time."""
    if not store.config.skip_damage:
        store.log.require_readable(at)
    if foreign_ms is None and at >= flushed and store.log.first_lost(at) is None:
        return None
    resumed = next_good(store, at)
    if resumed is None:
        store.log.require_readable(at)
        if at < flushed:
            raise StoreDamaged(
                f"the log was flushed up to {flushed} but ends at {at}: {flushed - at} bytes are missing. Restore them from a copy; or, "
                f"to continue without them, delete {store.derived.position_path} (then the log ends at {at})"
            )
        return None
    if foreign_ms is not None and _first_store_ms(store, resumed) > foreign_ms:
        return None
    if not store.config.skip_damage:
        raise StoreDamaged(
            f"the log is damaged at {at}: {resumed - at} bytes up to {resumed} are not records, good records follow. Restore the file from "
            f"a copy; or, to open the store without those bytes (they are kept), start with --set store.skip_damage=true"
        )
    return resumed


def next_good(store: MessageStore, after: int) -> int | None:
    """The next offset behind `after` where a record begins that contains this log offset and whose checksums match."""
    at = after + 1
    while True:
        fd = store.log.fd_at(at)
        if fd is None:
            return None
        start_of_file = at - at % store.config.segment_bytes
        written = store.files.next_data(fd, at - start_of_file)  # skip holes
        if written is None:
            at = start_of_file + store.config.segment_bytes
            continue
        at = start_of_file + written
        view = store.log.whole_view(at)
        data = bytes(view[:_WINDOW_BYTES])
        for place in fronts_in(data, at):
            start = at + place
            good, _why, records, _ms = store.kernel_module.scan(store.log.whole_view(start)[: 64 << 20], start, True)
            if good and records:
                return start
        at += max(len(data) - FRONT_BYTES, 1) if len(data) < len(view) else len(view)


def _cut_queues(store: MessageStore) -> None:
    """Remove entries behind a queue's trusted end: they are dispatched again or point to lost records, and would look valid once
    new ones reach them."""
    for topic, queue_id in store.queues.queues():
        store.queues.cut(topic, queue_id, store.kernel.queue_state(topic, queue_id).end)


def newest_stored_ms(found: Recovered, written: dict[int, int], end: int) -> int:
    """When the newest record was stored, by the record or the checkpoint, but not later than the last write to its file (`written`: by
    the file's start): one wrong store time, or one flipped bit, must not move the clock to next year."""
    claimed_ms = found.last_ms
    written_ms = max(((start, ms) for start, ms in written.items() if start < end), default=(0, 0))[1]
    if claimed_ms > written_ms + _STAMP_AHEAD_MS:
        found.notes.append(
            f"the newest record has the store time {claimed_ms}, but its log file was last written at {written_ms}: "
            f"that store time is ignored"
        )
        return written_ms
    return claimed_ms

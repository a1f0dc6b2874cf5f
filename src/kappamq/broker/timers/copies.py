"""The results of due timers: a copy for the real topic, another stage of a long delay, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kappamq.broker.delivery.parking import Unparking
from kappamq.broker.sending.appending import Draft, member
from kappamq.broker.timers.upcoming import Timer
from kappamq.native.pure_record import GroupMember
from kappamq.protocol.recall import delete_key
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, decode
from kappamq.protocol.timing import due_ms, value
from kappamq.state.topics import Topics
from kappamq.store.log.clock_steps import ClockSteps
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.entries import CANCEL, PLAIN, ROLL, slot_ms

log = logging.getLogger(__name__)


class Made(NamedTuple):
    copies: list[GroupMember]  # to be stored now
    gone: dict[str, int]  # how many messages of each topic wait no longer
    recalls: dict[str, int]  # to drop a message that is still to come: key -> when that is due


class TimerCopies:
    def __init__(self, topics: Topics, store: MessageStore) -> None:
        self._unparking = Unparking(topics)
        self._store = store
        self._cancelled: dict[str, int] = {}  # key -> when the message would have been due

    def cancel(self, recalls: Iterable[tuple[str, int]]) -> None:
        """(key, due) of messages that are not to be delivered."""
        self._cancelled.update(recalls)

    def passed(self, due: int) -> None:
        """Everything before is done with."""
        if self._cancelled:
            self._cancelled = {key: at for key, at in self._cancelled.items() if slot_ms(at) >= slot_ms(due)}

    def make(self, timers: Sequence[Timer], records: Sequence[bytes | None], now_ms: int) -> Made:
        self._unparking.begin()
        made = Made([], {}, {})
        for timer, data in zip(timers, records, strict=False):
            if data is None:
                log.error("the timer at log offset %d cannot be read: skipped", timer.log_offset)
                continue
            plain = self._is_plain(timer)
            copy = self._unparking.copy(data, now_ms) if plain else self._special(timer, data, now_ms, made.recalls)
            if copy is not None:
                made.copies.append(copy)
            if not timer.kind & CANCEL:
                topic = copy[0] if copy is not None and not timer.kind & ROLL else real_topic(data)
                made.gone[topic] = made.gone.get(topic, 0) + 1
        return made

    def _is_plain(self, timer: Timer) -> bool:
        return timer.kind == PLAIN and not self._cancelled

    def _special(self, timer: Timer, data: bytes, now_ms: int, recalls: dict[str, int]) -> GroupMember | None:
        record = decode(data)
        due = due_of(record, self._store.clock_steps)
        if timer.kind & ROLL and due > now_ms:
            return member(rolled(record, due))
        if timer.kind & ROLL and timer.kind & CANCEL:
            # Overdue on its way: it never gets to the slot of its message, which is still to come.
            recalls[record.property_map().get(properties.TIMER_DELETE_UNIQUE_KEY, "")] = due
            self.cancel(recalls.items())
        if timer.kind & CANCEL or delete_key_of(record) in self._cancelled:
            return None
        return self._unparking.copy(data, now_ms)


def real_topic(data: bytes) -> str:
    return value(data, b"REAL_TOPIC\x01").decode("utf-8", "replace")


def due_of(record: Record, steps: ClockSteps) -> int:
    """When a parked record is due, by today's clock."""
    pairs = record.property_map()
    due = due_ms(*(int(pairs.get(name, "0")) for name in (properties.TIMER_OUT_MS, properties.TIMER_DELIVER_MS)))
    is_delay = properties.TIMER_DELAY_SECONDS in pairs or properties.TIMER_DELAY_MS in pairs
    return due + steps.shift_ms(record.log_offset) if is_delay else due


def delete_key_of(record: Record) -> str:
    """What a recall names it by."""
    pairs = record.property_map()
    return delete_key(pairs.get(properties.REAL_TOPIC, ""), pairs.get(properties.UNIQUE_KEY, ""))


def rolled(record: Record, due: int) -> Draft:
    """A timer that is stored again on its way to a time far ahead."""
    draft = Draft.of(record)
    if due_of(record, ClockSteps()) != due:  # the clock was set since: the copy says it by today's
        draft.properties[properties.TIMER_OUT_MS] = str(slot_ms(due))
        draft.properties[properties.TIMER_DELIVER_MS] = str(due)
    draft.waited = True
    times = draft.properties.get(properties.TIMER_ROLL_TIMES, "0")
    draft.properties[properties.TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isdecimal() else 1)
    return draft

"""Messages that consumers must not see yet, in Python: half messages and their ends, and messages with a delivery time.

Defines the behaviour of waiting.c and halves.c. The message is stored in a system queue, with its real topic and queue in its
properties. What Python must know about is returned as notes with the result of a burst. The kernel ends only halves that it has stored
itself and that have not been touched since; all others are left to Python.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from kappamq.native.layout import (
    DONE,
    FULL,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    HALVES_MAX,
    LEFT,
    QUEUE_OFFSET_MAX,
    SCHEDULE_TOPIC,
    SYS_BORN_V6,
    SYS_COMMIT,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    TIMER_TOPIC,
    TOPIC_SEND,
    HalfEnded,
    HalfOpened,
    LevelParked,
    Note,
    SegmentFull,
)
from kappamq.native.pure_append import Appends, NoRecord
from kappamq.native.pure_queues import Queue
from kappamq.native.pure_record import Fields, GroupMember, encode, intact, parse, property_values, without_tail_crc
from kappamq.native.pure_scan import End, Fixed, Wish, positive

_PRECISION_MS: Final = 1000
_QUEUE_ID_DIGITS_MAX: Final = 10
_LETTERS: Final = {SYS_COMMIT: b"c", SYS_TRANSACTION: b"r"}

Answer = Callable[[list[int], int, int, str, str], None]
"""Called with the log offsets, queue id, queue offset, unique key and recall handle of what was stored."""


class Waiting(Appends):
    def __init__(self, segment_bytes: int, tail_crc: bool, pending_bytes_max: int) -> None:
        super().__init__(segment_bytes, tail_crc, pending_bytes_max)
        self.accepting = False  # sends go to Python while the store cannot accept them
        self._halves_allowed = False
        self._timer_ms_max = self._levels = 0
        self._broker = ""
        self._halves: dict[int, tuple[int, int]] = {}  # log offset -> queue offset, size
        self._notes: list[Note] = []
        self._parked: set[int] = set()

    def let_wait(self, halves: bool, timer_ms_max: int, levels: int, broker: str) -> None:
        """What sends may wait for without Python: a decision, a delivery time at most this far ahead, one of so many delay
        levels. `broker` is the name in recall handles. Halves opened so far are left to Python from now on."""
        if not 0 <= levels < 64 or not 0 <= timer_ms_max <= QUEUE_OFFSET_MAX:
            raise ValueError(f"there cannot be {levels} delay levels, and timers up to {timer_ms_max} ms")
        self._broker = broker
        self._halves_allowed, self._timer_ms_max, self._levels = halves, timer_ms_max, levels
        self._halves.clear()

    def forget_half(self, log_offset: int) -> None:
        """Leave the half at `log_offset`, if the kernel knows it, to Python."""
        self._halves.pop(log_offset, None)

    def rewind(self) -> None:
        super().rewind()
        self._halves.clear()  # some may no longer exist

    def _take_notes(self) -> list[Note]:
        if not (self._notes or self._parked):
            return []
        notes = [*self._notes, *(LevelParked(level) for level in sorted(self._parked))]
        self._notes.clear()
        self._parked.clear()
        return notes

    # -- sends ---------------------------------------------------------------------------------------------------------

    def _parking(self, wish: Wish, now_ms: int) -> tuple[str, int, int] | None:
        """The queue that a message waits in, and its delivery time if it is a timer; None if Python must decide."""
        if wish.name == "TRAN_MSG":
            return (HALF_TOPIC, 0, 0) if self._halves_allowed and wish.value == "true" and wish.group else None
        number = positive(wish.value)
        if number is None:
            return None
        if wish.name == "DELAY":
            return (SCHEDULE_TOPIC, number - 1, 0) if number <= self._levels else None
        delay = {"TIMER_DELAY_SEC": number * 1000, "TIMER_DELAY_MS": number}.get(wish.name, number - now_ms)
        return (TIMER_TOPIC, 0, now_ms + delay) if 0 < delay <= self._timer_ms_max else None

    def _waiting_send(
        self, wish: Wish, target: Queue, fixed: Fixed, born_ms: int, text: str, body: bytes, born: bytes, now_ms: int,
        answer: Answer,
    ) -> int:  # fmt: skip
        parking = self._parking(wish, now_ms)
        if parking is None:
            return LEFT
        topic_name, queue_id, due_ms = parking
        queue = self.queue(topic_name, queue_id)
        topic = queue.topic
        noted, name = "", target.topic.name.decode()
        if due_ms:
            noted += f"TIMER_OUT_MS\x01{(due_ms - 1) // _PRECISION_MS * _PRECISION_MS}\x02"
        if wish.name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
            noted += f"TIMER_DELIVER_MS\x01{due_ms}\x02"
        noted += f"REAL_TOPIC\x01{name}\x02REAL_QID\x01{target.id}\x02"
        if topic_name == HALF_TOPIC:
            noted += f"__transactionId__\x01{wish.unique_key}\x02"
        log_offset, queue_offset = self.append_offset, queue.next
        properties = (text if text[-1] == "\x02" else text + "\x02").encode() + self._added + noted.encode()
        record = encode(
            topic.magic, topic.field, queue_id, fixed.flag, fixed.sys_flag & ~SYS_TRANSACTION, born_ms, born, fixed.reconsume_times,
            0, body, properties, now_ms, queue_offset, log_offset, self._store_host, self.tail_crc,
        )  # fmt: skip
        if record is None or queue_offset > QUEUE_OFFSET_MAX:
            return LEFT
        if not self._room(len(record)):
            return FULL
        self._pending += record
        queue.next += 1
        self.put_count += 1
        self.put_bytes += len(record)
        if topic_name != HALF_TOPIC:
            self._parked.add(0 if due_ms else queue_id + 1)
        else:
            self._notes.append(HalfOpened(log_offset, queue_offset, len(record), wish.group, name))
            if len(self._halves) < HALVES_MAX:
                self._halves[log_offset] = queue_offset, len(record)
        handle = f"v1 {name} {self._broker} {due_ms} {wish.unique_key}" if due_ms else ""
        answer(
            [log_offset], target.id, queue_offset, wish.unique_key, base64.urlsafe_b64encode(handle.encode()).decode()
        )
        return DONE

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _end(self, end: End, now_ms: int) -> int:
        """Store what consumers get, if anything, and the record that says so."""
        half = self._halves.get(end.log_offset) if self.accepting and self._halves_allowed else None
        if half is None or half[0] != end.queue_offset:
            return LEFT
        data = self._read_half(end.log_offset, *half)
        fields = parse(data, 0, len(data)) if data is not None else None
        if data is None or fields is None or isinstance(fields, int):
            return LEFT
        if not intact(data, 0, fields[0], fields[6], fields[7], fields[9]):
            return LEFT
        properties = without_tail_crc(fields[9])
        pairs = property_values(properties)
        if pairs.get(b"PGROUP", b"") != end.group.encode():
            return LEFT
        if pairs.get(b"UNIQ_KEY", b"") not in (end.transaction_id.encode(), end.message_id.encode()):
            return LEFT
        commits = end.decision == SYS_COMMIT
        target = self._target(pairs) if commits else None
        if commits and target is None:
            return LEFT
        group: list[GroupMember] = [
            (HALF_OP_TOPIC, 0, 0, 0, now_ms, self._store_host, 0, end.log_offset, b"%d," % end.queue_offset,
             b"TAGS\x01d\x02__END#\x01%b\x02" % _LETTERS[end.decision]),
        ]  # fmt: skip
        if target is not None:
            group.append(_committed(data, fields, target, properties))
        try:
            placed = self.append_group(group, now_ms)
        except SegmentFull:
            return FULL
        except NoRecord:
            return LEFT
        log_offset, _queue_offset, size = placed[-1]
        self._notes.append(HalfEnded(end.log_offset, end.decision, placed[0][1], log_offset + size))
        del self._halves[end.log_offset]
        return DONE

    def _read_half(self, log_offset: int, queue_offset: int, size: int) -> bytes | None:
        """The record of a half, if it is in memory at its offset."""
        topic = self.topics.get(HALF_TOPIC.encode())
        queue = topic.queues.get(0) if topic is not None else None
        if queue is None or log_offset < max(self.hot_from, self.log_min) or log_offset + size > self._written:
            return None
        return self.collect([(log_offset, size)]) if self._lies_there(log_offset, size, queue, queue_offset) else None

    def _target(self, pairs: dict[bytes, bytes]) -> Queue | None:
        digits = pairs.get(b"REAL_QID", b"")
        topic = self.topics.get(pairs.get(b"REAL_TOPIC", b""))
        if topic is None or not topic.flags & TOPIC_SEND or len(digits) > _QUEUE_ID_DIGITS_MAX:
            return None
        if digits and not digits.isdigit():
            return None
        queue_id = int(digits or b"0")
        return topic.queue(queue_id) if queue_id < topic.write_queues else None


def _committed(data: bytes, fields: Fields, target: Queue, properties: bytes) -> GroupMember:
    """The message that consumers get: the half, with the bytes it was sent with."""
    sys_flag, body_at, body_bytes = fields[4], fields[6], fields[7]
    born, host = (20 if sys_flag & bit else 8 for bit in (SYS_BORN_V6, SYS_STORE_V6))

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "big", signed=True)

    return (
        target.topic.name.decode(), target.id, number(16, 4), sys_flag & ~SYS_TRANSACTION | SYS_COMMIT, number(40, 8),
        data[48 : 48 + born], number(56 + born + host, 4), fields[3], data[body_at : body_at + body_bytes], properties,
    )  # fmt: skip

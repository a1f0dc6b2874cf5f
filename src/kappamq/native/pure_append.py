"""Appending in Python: the broker's own records, groups of them, and the members of a batch, all or none of them.

Defines the behaviour of the appends in burst.c. Appended bytes are collected until they are taken, once per turn, and written to the
log. Records that another broker appended are only numbered here (the end of dispatch.c).
"""

from __future__ import annotations

import struct
from typing import cast

from kappamq.native import pure_record
from kappamq.native.layout import (
    BATCH_NAME,
    BATCH_PROPERTY_BYTES,
    BLANK_BYTES,
    HEAD,
    PROPERTIES_BYTES_MAX,
    QUEUE_OFFSET_MAX,
    SYS_TRANSACTION,
    TAIL_CRC_BYTES,
    Misnumbered,
    SegmentFull,
)
from kappamq.native.pure_queues import Queue, Queues
from kappamq.native.pure_record import (
    Buffer,
    Fields,
    GroupMember,
    Member,
    check_host,
    encode,
    parse,
    split_batch,
)

_NUMBERS = struct.Struct(">iiiiqqq")


class NoRecord(ValueError):
    """A member of a group does not fit into a record."""


class Appends(Queues):
    def __init__(self, segment_bytes: int, tail_crc: bool, pending_bytes_max: int) -> None:
        super().__init__(segment_bytes)
        self.tail_crc = tail_crc
        self.pending_bytes_max = pending_bytes_max
        self.put_count = self.put_bytes = 0
        self._added = b""  # properties that every message gets
        self._store_host = bytes(8)
        self._pending = bytearray()
        self._written = 0  # log offset of the first pending byte
        self._segment_end = 0

    @property
    def append_offset(self) -> int:
        """The log offset of the next record."""
        return self._written + len(self._pending)

    def _room(self, size: int) -> bool:
        pending = len(self._pending)
        if pending and pending + size > self.pending_bytes_max:
            return False
        return self._written + pending + size + BLANK_BYTES <= self._segment_end

    def _append_members(
        self,
        queue: Queue,
        sys_flag: int,
        born_ms: int,
        born: bytes,
        reconsume_times: int,
        members: list[Member],
        now_ms: int,
    ) -> list[int] | None:
        """Log offsets of the members, all or none of them: [] if there is no room here, None if one does not fit into a record."""
        topic = queue.topic
        several = len(members) > 1
        extra = (TAIL_CRC_BYTES if self.tail_crc else 0) + (BATCH_PROPERTY_BYTES if several else 0)
        fixed = HEAD[len(born), len(self._store_host)].size + len(topic.field) + 2
        total = 0
        for _flag, body, properties in members:
            if len(properties) + extra > PROPERTIES_BYTES_MAX:
                return None
            total += fixed + len(body) + len(properties) + extra
            extra = TAIL_CRC_BYTES if self.tail_crc else 0
        if queue.next > QUEUE_OFFSET_MAX - len(members):
            return None
        if not self._room(total):
            return []
        offsets: list[int] = []
        mark = BATCH_NAME + b"%010d\x02" % total if several else b""
        log_offset = self.append_offset
        records: list[bytes] = []
        for number, (flag, body, properties) in enumerate(members):
            offsets.append(log_offset)
            record = encode(
                topic.magic, topic.field, queue.id, flag, sys_flag, born_ms, born, reconsume_times, 0, body, properties + mark, now_ms,
                queue.next + number, log_offset, self._store_host, self.tail_crc,
            )  # fmt: skip
            assert record is not None
            records.append(record)
            log_offset += len(record)
            mark = b""
        self._pending += b"".join(records)
        queue.next += len(members)
        self.put_count += len(members)
        self.put_bytes += total
        return offsets

    def append(
        self, topic: str, queue_id: int, flag: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        prepared: int, body: bytes, properties: bytes, now_ms: int,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Append one record as given: (log offset, queue offset, size). Raises SegmentFull, or ValueError if it is invalid.

        Records of prepared and rolled back transactions are not in the queue: their queue offset is 0."""
        check_host(born)
        queue = self.queue(topic, queue_id)
        made = queue.topic
        counted = sys_flag & SYS_TRANSACTION in (0, 0x8)
        log_offset, queue_offset = self.append_offset, queue.next if counted else 0
        try:
            record = encode(
                made.magic, made.field, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body, properties, now_ms,
                queue_offset, log_offset, self._store_host, self.tail_crc,
            )  # fmt: skip
        except struct.error as error:
            raise ValueError(f"no record can hold this: {error}") from None
        if record is None or queue.next > QUEUE_OFFSET_MAX:
            raise ValueError(
                f"properties are longer than {PROPERTIES_BYTES_MAX} bytes, or the queue is full: {queue.next}"
            )
        if not self._room(len(record)):
            raise SegmentFull(len(record))
        self._pending += record
        queue.next += counted
        self.put_count += 1
        self.put_bytes += len(record)
        return log_offset, queue_offset, len(record)

    def append_group(self, members: list[GroupMember], now_ms: int) -> list[tuple[int, int, int]]:
        """Append records for any queues, consecutively, all or none even in a torn tail; returns for each what `append` returns.

        A member is (topic, queue id, flag, sys flag, born ms, born, reconsume times, prepared, body, properties)."""
        if not members:
            raise ValueError("a group has at least one member")
        _check_members(members, now_ms)
        for member in members:
            self.queue(member[0], member[1])
        records = self._encode_group(members, 0, 0, now_ms)
        total = sum(len(record) for _queue, record, _offset in records)
        if not self._room(total):
            raise SegmentFull(total)
        placed: list[tuple[int, int, int]] = []
        log_offset = self.append_offset
        for queue, record, queue_offset in self._encode_group(members, total, log_offset, now_ms):
            placed.append((log_offset, queue_offset, len(record)))
            log_offset += len(record)
            self._pending += record
            sys_flag = members[len(placed) - 1][3]
            queue.next += sys_flag & SYS_TRANSACTION in (0, 0x8)
        self.put_count += len(members)
        self.put_bytes += total
        return placed

    def append_batch(
        self,
        note: GroupMember,
        topic: str,
        queue_id: int,
        born_ms: int,
        born: bytes,
        prepared: int,
        body: bytes,
        now_ms: int,
    ) -> int | None:
        """Append a note and the messages of a batch body as one group; each message gets what the broker adds to every message. Returns
        the end of the group in the log; None, and nothing is appended, if a message is not plain."""
        if not body:
            raise ValueError("a batch has at least one member")
        _check_members([note, (topic, queue_id, 0, 0, born_ms, born, 0, prepared, body, b"")], now_ms)
        self.queue(note[0], note[1])
        self.queue(topic, queue_id)
        members = split_batch(body, True)
        if members is None:
            return None
        group = [note]
        for flag, text, properties in pure_record.complete(members, [], self._added):
            group.append((topic, queue_id, flag, 0, born_ms, born, 0, prepared, text, properties))
        try:
            log_offset, _queue_offset, size = self.append_group(group, now_ms)[-1]
        except NoRecord:
            return None
        return log_offset + size

    def _encode_group(
        self, members: list[GroupMember], total: int, log_offset: int, now_ms: int
    ) -> list[tuple[Queue, bytes, int]]:
        records: list[tuple[Queue, bytes, int]] = []
        mark = BATCH_NAME + b"%010d\x02" % total if len(members) > 1 else b""
        taken: dict[Queue, int] = {}
        for topic, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body, properties in members:
            queue = self.queue(topic, queue_id)
            if mark and properties and properties[-1] != 2:
                properties += b"\x02"
            queue_offset = 0
            if sys_flag & SYS_TRANSACTION in (0, 0x8):
                queue_offset = queue.next + taken.setdefault(queue, 0)
                taken[queue] += 1
            record = encode(
                queue.topic.magic, queue.topic.field, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body,
                properties + mark, now_ms, queue_offset, log_offset, self._store_host, self.tail_crc,
            )  # fmt: skip
            if record is None or queue.next > QUEUE_OFFSET_MAX - len(members):
                raise NoRecord(
                    f"properties of a member are longer than {PROPERTIES_BYTES_MAX} bytes, or a queue is full"
                )
            records.append((queue, record, queue_offset))
            log_offset += len(record)
            mark = b""
        return records

    # -- bytes of another broker's log ------------------------------------------------------------------------------

    def number(self, buffer: Buffer) -> tuple[int, Misnumbered | None]:
        """Raise the next offsets of queues by records that were not appended here and are not dispatched yet.

        Each must be the next message of its queue. A queue without messages may begin anywhere: its topic may have been deleted and
        forgotten, or the log begins behind its first messages. Returns how many bytes were processed; stops at the first byte that is
        not part of a whole record. If a record has another number, the call changes nothing and returns that record."""
        at, limit = 0, len(buffer)
        while at < limit:
            fields = parse(buffer, at, limit)
            if type(fields) is int:
                break
            size, queue_id, number, _claimed, sys_flag, _ms, _body_at, _body_bytes, name, _text = cast(Fields, fields)
            if sys_flag & SYS_TRANSACTION in (0, 0x8):
                queue = self.topic(name).queue(queue_id)
                expected = queue.next
                if number != expected:
                    if expected != queue.end or queue.min < queue.end or queue.begun:
                        self._take_numbers_back(buffer, at)
                        return at, Misnumbered(at, name.decode(), queue_id, number, expected)
                    queue.begun = number + 1
                queue.next = number + 1
            at += size
        return at, None

    def _take_numbers_back(self, buffer: Buffer, end: int) -> None:
        at = 0
        while at < end:
            size, queue_id, number, _claimed, sys_flag, _ms, _body_at, _body_bytes, name, _text = cast(
                Fields, parse(buffer, at, end)
            )
            if sys_flag & SYS_TRANSACTION in (0, 0x8):
                queue = self.topic(name).queue(queue_id)
                if queue.begun == number + 1:
                    queue.next, queue.begun = queue.end, 0
                elif number < queue.next and (queue.begun or number >= queue.end):
                    queue.next = number  # undo: its first record in this call had the former next number
            at += size

    def rewind(self) -> None:
        """The log was cut to what is dispatched: the next offset of each queue is its end."""
        assert not self._pending, "write what is pending first"
        for topic in self.topics.values():
            for queue in topic.queues.values():
                queue.next, queue.begun = queue.end, 0


def _check_members(members: list[GroupMember], now_ms: int) -> None:
    for _topic, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, _body, _properties in members:
        check_host(born)
        try:
            _NUMBERS.pack(queue_id, flag, sys_flag, reconsume_times, born_ms, prepared, now_ms)
        except struct.error as error:
            raise ValueError(f"no record can hold this: {error}") from None

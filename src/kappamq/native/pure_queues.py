"""Topics, queues and the loops over log bytes, in Python: dispatch, scan, gather. The meaning of the same functions in kernel.c."""

from __future__ import annotations

import zlib
from mmap import mmap
from operator import mul

from kappamq.native.layout import (
    BATCH_NAME, BATCH_PROPERTY_BYTES, COLD, EMPTY, ENTRY, FOUND, GONE, HEAD, INDEX_PENDING, MAGIC_BLANK, MAGIC_V1, MAGIC_V2,
    NEED_ENTRIES, NO_MATCH, NO_MESSAGES, SCAN_BLANK, SCAN_DAMAGED, SCAN_EMPTY, SCAN_ENTRIES_MAX, SCAN_MORE, SYS_BORN_V6,
    SYS_STORE_V6, SYS_TRANSACTION, TAIL_CRC_BYTES, TAIL_CRC_NAME, TOO_LARGE, TOO_SMALL, TOPIC_FOLD,
)  # fmt: skip

Buffer = bytes | bytearray | memoryview | mmap

_POWERS = [pow(31, n, 1 << 32) for n in range(1024)]
_POWERS.reverse()
_ROLLBACK, _PREPARED = 0xC, 0x4
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"


def java_hash(data: bytes) -> int:
    """java.lang.String.hashCode of UTF-8 text, as signed 32 bits."""
    units = memoryview(data) if data.isascii() else memoryview(data.decode("utf-8", "replace").encode("utf-16-le")).cast("H")
    if len(units) > len(_POWERS):
        value = 0
        for unit in units:
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        value = sum(map(mul, units, _POWERS[len(_POWERS) - len(units) :])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def key_hash(data: bytes) -> int:
    value = abs(java_hash(data))
    return 0 if value == 1 << 31 else value


class Queue:
    __slots__ = ("end", "lent", "lent_first", "min", "next", "stored", "tail", "tail_first", "watched")

    def __init__(self) -> None:
        self.min = 0  # first offset that can be read
        self.end = 0  # one past the last visible entry
        self.next = 0  # the offset the next append gets; ahead of `end` while records wait for dispatch
        self.stored = 0  # entries below are in the queue's files
        self.tail = bytearray()  # entries [tail_first, end) in their disk form
        self.tail_first = 0
        self.lent = b""  # entries read back from disk for a reader further behind
        self.lent_first = 0
        self.watched = False  # somebody waits for the next entry


class Topic:
    __slots__ = ("flags", "name", "queues", "read_queues", "write_queues")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.flags = 0
        self.write_queues = 0
        self.read_queues = 0
        self.queues: dict[int, Queue] = {}

    def queue(self, queue_id: int) -> Queue:
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = Queue()
        return queue


class Fields:
    """One record's fields as far as dispatch needs them; filled by `parse`."""

    __slots__ = ("body_at", "body_bytes", "log_offset", "properties", "queue_id", "queue_offset", "size", "store_ms", "sys_flag", "topic")
    size: int
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    store_ms: int
    body_at: int
    body_bytes: int
    topic: bytes
    properties: bytes


def parse(buffer: Buffer, at: int, limit: int) -> Fields | int:
    """The record at `at`, or why there is none (SCAN_*). `limit` is one past the last byte that may be looked at."""
    if limit - at < 8:
        return SCAN_MORE
    size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
    magic = int.from_bytes(buffer[at + 4 : at + 8], "big", signed=True)
    if magic == MAGIC_BLANK and size >= 8:
        return SCAN_BLANK
    if size == 0 and magic == 0:
        return SCAN_EMPTY
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < 91:
        return SCAN_DAMAGED
    if at + size > limit:
        return SCAN_MORE
    sys_flag = int.from_bytes(buffer[at + 36 : at + 40], "big", signed=True)
    head = HEAD[20 if sys_flag & SYS_BORN_V6 else 8, 20 if sys_flag & SYS_STORE_V6 else 8]
    body_at = at + head.size
    end = at + size
    if body_at + 1 > end:
        return SCAN_DAMAGED
    fields = Fields()
    (
        fields.size, _magic, _crc, fields.queue_id, _flag, fields.queue_offset, fields.log_offset, fields.sys_flag, _born,
        _born_host, fields.store_ms, _store_host, _reconsume, _prepared, fields.body_bytes,
    ) = head.unpack_from(buffer, at)  # fmt: skip
    fields.body_at = body_at
    topic_at = body_at + fields.body_bytes
    if fields.body_bytes < 0 or fields.queue_id < 0 or fields.queue_offset < 0 or topic_at + 3 > end:
        return SCAN_DAMAGED
    if magic == MAGIC_V1:
        topic_end = topic_at + 1 + buffer[topic_at]
        fields.topic = bytes(buffer[topic_at + 1 : topic_end])
    else:
        topic_end = topic_at + 2 + int.from_bytes(buffer[topic_at : topic_at + 2], "big")
        fields.topic = bytes(buffer[topic_at + 2 : topic_end])
    if topic_end + 2 > end:
        return SCAN_DAMAGED
    properties_at = topic_end + 2
    if properties_at + int.from_bytes(buffer[topic_end:properties_at], "big") != end:
        return SCAN_DAMAGED
    fields.properties = bytes(buffer[properties_at:end])
    return fields


def batch_bytes(properties: bytes) -> int:
    """Log bytes of the batch that this record opens, 0 if it opens none."""
    if properties.startswith(BATCH_NAME):
        at = len(BATCH_NAME)
    else:
        at = properties.find(b"\x02" + BATCH_NAME) + 1 + len(BATCH_NAME)
        if at == len(BATCH_NAME):
            return 0
    digits = properties[at : at + 10]
    return int(digits) if len(digits) == 10 and digits.isdigit() else 0


def intact(buffer: Buffer, at: int, fields: Fields) -> bool:
    """Body CRC holds, and the tail CRC where there is one."""
    body = buffer[fields.body_at : fields.body_at + fields.body_bytes]
    if int.from_bytes(buffer[at + 8 : at + 12], "big") != zlib.crc32(body) & 0x7FFFFFFF:
        return False
    properties = fields.properties
    if len(properties) < TAIL_CRC_BYTES or not properties.startswith(TAIL_CRC_NAME, len(properties) - TAIL_CRC_BYTES):
        return True
    value = zlib.crc32(buffer[at : at + fields.size - TAIL_CRC_BYTES]) & 0x7FFFFFFF
    return properties[-11:-1] == (b"%010d" % value)[::-1]


def scan(buffer: Buffer, log_offset: int, check: bool) -> tuple[int, int, int, int]:
    """How far `buffer`, which lies at `log_offset`, holds good records: (bytes, why it stopped, records, last store ms).

    A batch counts only when all of it is there: nobody ever sees half of one.
    """
    at = good = records = whole_records = store_ms = whole_ms = batch_end = 0
    limit = len(buffer)
    why = SCAN_MORE
    while at < limit:
        fields = parse(buffer, at, limit)
        if isinstance(fields, int):
            why = fields
            break
        if fields.log_offset != log_offset + at or (check and not intact(buffer, at, fields)):
            why = SCAN_DAMAGED
            break
        if at >= batch_end:
            length = batch_bytes(fields.properties)
            batch_end = at + length if length else 0
        at += fields.size
        records += 1
        store_ms = fields.store_ms
        if at >= batch_end:
            good, whole_records, whole_ms = at, records, store_ms
    return good, why, whole_records, whole_ms


class Queues:
    """Topic and queue tables with the loops over them."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.topics: dict[bytes, Topic] = {}
        self.hot_from = 0  # log bytes from here on are in memory for sure
        self.log_min = 0  # first log byte that still exists
        self.tail_bytes_max = 16 << 20
        self._maps: dict[int, tuple[Buffer, int]] = {}
        self._dirty: dict[tuple[bytes, int], Queue] = {}
        self._tail_bytes = 0
        self._index = bytearray()
        self.index_enabled = True
        self._tag_codes: dict[bytes, int] = {}
        self.delays_ms: tuple[int, ...] = ()  # of the delay levels, level 1 first

    # -- tables ------------------------------------------------------------------------------------------------------------

    def topic(self, name: bytes) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
        return topic

    def set_topic(self, name: str, write_queues: int, read_queues: int, flags: int) -> None:
        topic = self.topic(name.encode())
        topic.write_queues, topic.read_queues, topic.flags = write_queues, read_queues, flags

    def set_queue(self, name: str, queue_id: int, min_offset: int, end: int) -> None:
        """What the files of this queue hold: entries [min_offset, end). Forgets what memory held beyond."""
        queue = self.topic(name.encode()).queue(queue_id)
        self._tail_bytes -= len(queue.tail)
        queue.tail.clear()
        queue.min, queue.end, queue.next, queue.stored, queue.tail_first = min_offset, end, end, end, end
        queue.lent, queue.lent_first = b"", 0
        self._dirty.pop((name.encode(), queue_id), None)

    def set_queue_min(self, name: str, queue_id: int, min_offset: int) -> None:
        self.topic(name.encode()).queue(queue_id).min = min_offset

    def queue_state(self, name: str, queue_id: int) -> tuple[int, int, int, int]:
        """(min, end, next, stored) of a queue; zeros if it has never been seen."""
        topic = self.topics.get(name.encode())
        queue = topic.queues.get(queue_id) if topic is not None else None
        return (queue.min, queue.end, queue.next, queue.stored) if queue is not None else (0, 0, 0, 0)

    def queue_ids(self, name: str) -> list[int]:
        topic = self.topics.get(name.encode())
        return sorted(topic.queues) if topic is not None else []

    def watch(self, name: str, queue_id: int, on: bool) -> None:
        self.topic(name.encode()).queue(queue_id).watched = on

    def lend_entries(self, name: str, queue_id: int, first: int, entries: bytes) -> None:
        queue = self.topic(name.encode()).queue(queue_id)
        queue.lent, queue.lent_first = entries, first

    def map_segment(self, start: int, buffer: Buffer | None) -> None:
        if buffer is None:
            self._maps.pop(start // self.segment_bytes, None)
        else:
            self._maps[start // self.segment_bytes] = (buffer, start)

    # -- dispatch ----------------------------------------------------------------------------------------------------------

    def dispatch(self, buffer: Buffer, log_offset: int) -> tuple[int, list[tuple[str, int]], list[tuple[str, int, int]]]:
        """Enter the records in `buffer` into their queues and the key index.

        Returns (bytes eaten, watched queues that grew, (topic, position, size) of records in fold topics). Stops at the
        first byte that is no whole record. Doing it twice does nothing the second time.
        """
        woken: list[tuple[str, int]] = []
        folds: list[tuple[str, int, int]] = []
        at, limit = 0, len(buffer)
        while at < limit:
            fields = parse(buffer, at, limit)
            if isinstance(fields, int):
                break
            topic = self.topic(fields.topic)
            transaction = fields.sys_flag & SYS_TRANSACTION
            if transaction != _PREPARED and transaction != _ROLLBACK:
                pairs = dict([p.split(b"\x01", 1) for p in fields.properties.split(b"\x02") if b"\x01" in p])
                if self._enter(topic, fields, log_offset + at, pairs):
                    woken.append((topic.name.decode(), fields.queue_id))
                if self.index_enabled:
                    self._enter_keys(topic.name, fields, log_offset + at, pairs)
            if topic.flags & TOPIC_FOLD:
                folds.append((topic.name.decode(), at, fields.size))
            at += fields.size
        return at, woken, folds

    def _enter(self, topic: Topic, fields: Fields, log_offset: int, pairs: dict[bytes, bytes]) -> bool:
        queue = topic.queue(fields.queue_id)
        offset = fields.queue_offset
        if offset < queue.end:
            return False  # entered before
        if offset > queue.end:
            # A store whose beginning is gone, or a foreign log: numbering jumps, what lies between was never here.
            self._tail_bytes -= len(queue.tail)
            queue.tail.clear()
            queue.tail_first = queue.stored = queue.min = offset
        tags = pairs.get(b"TAGS", b"")
        code = self._tag_codes.get(tags)
        if code is None:
            if len(self._tag_codes) > 10_000:
                self._tag_codes.clear()
            code = self._tag_codes[tags] = java_hash(tags)
        if topic.name == SCHEDULE_TOPIC and b"DELAY" in pairs:
            code = fields.store_ms + self._delay_ms(pairs[b"DELAY"])  # there the field holds the time it is due
        queue.tail += ENTRY.pack(log_offset, fields.size, code)
        self._tail_bytes += ENTRY.size
        queue.end = offset + 1
        if queue.next < queue.end:
            queue.next = queue.end
        self._dirty[topic.name, fields.queue_id] = queue
        if queue.watched:
            queue.watched = False
            return True
        return False

    def _delay_ms(self, text: bytes) -> int:
        if not (text.isdigit() and len(text) <= 9) or not self.delays_ms or int(text) == 0:
            return 1000
        return self.delays_ms[min(int(text), len(self.delays_ms)) - 1]

    def _enter_keys(self, topic: bytes, fields: Fields, log_offset: int, pairs: dict[bytes, bytes]) -> None:
        unique = pairs.get(b"UNIQ_KEY")
        if unique:
            self._index += INDEX_PENDING.pack(key_hash(topic + b"#" + unique), log_offset, fields.store_ms)
        keys = pairs.get(b"KEYS")
        if keys:
            for key in keys.split(b" "):
                if key:
                    self._index += INDEX_PENDING.pack(key_hash(topic + b"#" + key), log_offset, fields.store_ms)

    def take_entries(self, queues_max: int) -> list[tuple[str, int, int, bytes]]:
        """Entries not yet in files, (topic, queue id, first offset, bytes), of at most so many queues; they count as stored."""
        taken: list[tuple[str, int, int, bytes]] = []
        for key in list(self._dirty)[:queues_max]:
            queue = self._dirty.pop(key)
            data = bytes(queue.tail[(queue.stored - queue.tail_first) * ENTRY.size :])
            taken.append((key[0].decode(), key[1], queue.stored, data))
            queue.stored = queue.end
            if self._tail_bytes > self.tail_bytes_max:
                self._tail_bytes -= len(queue.tail)
                queue.tail = bytearray()
                queue.tail_first = queue.end
        return taken

    def dirty_queues(self) -> int:
        return len(self._dirty)

    def take_index(self) -> bytes:
        data = bytes(self._index)
        self._index.clear()
        return data

    # -- gather ------------------------------------------------------------------------------------------------------------

    def select(
        self, topic: Topic | None, queue_id: int, offset: int, count_max: int, bytes_max: int,
        codes: frozenset[int] | None, warm: bool,
    ) -> tuple[int, int, int, int, list[tuple[int, int]]]:  # fmt: skip
        """(verdict, next offset, min, end, [(log offset, size)]): what a pull would get."""
        queue = topic.queues.get(queue_id) if topic is not None else None
        if queue is None or queue.end == 0:
            return NO_MESSAGES, 0, 0, 0, []
        low, end = queue.min, queue.end
        if offset < low:
            return TOO_SMALL, low, low, end, []
        if offset == end:
            return EMPTY, offset, low, end, []
        if offset > end:
            return TOO_LARGE, end, low, end, []
        if offset >= queue.tail_first:
            entries, first = memoryview(queue.tail), queue.tail_first
        elif queue.lent_first <= offset < queue.lent_first + len(queue.lent) // ENTRY.size:
            entries, first = memoryview(queue.lent), queue.lent_first
        else:
            return NEED_ENTRIES, offset, low, end, []
        chosen: list[tuple[int, int]] = []
        total = 0
        at = (offset - first) * ENTRY.size
        stop = min(len(entries), at + max(SCAN_ENTRIES_MAX, count_max) * ENTRY.size)
        gone = False
        next_offset = offset
        for log_offset, size, code in ENTRY.iter_unpack(entries[at:stop]):
            if log_offset < self.log_min:
                gone = True  # the file behind it has been deleted, or it is filler
            elif codes is None or _int32(code) in codes:
                if chosen and (len(chosen) >= count_max or total + size > bytes_max):
                    break
                chosen.append((log_offset, size))
                total += size
            next_offset += 1
        if not chosen:
            return GONE if gone else NO_MATCH, next_offset, low, end, []
        if not warm and chosen[0][0] < self.hot_from:
            return COLD, next_offset, low, end, chosen
        return FOUND, next_offset, low, end, chosen

    def collect(self, chosen: list[tuple[int, int]]) -> bytes | None:
        """The records' bytes, one after the other; None if one of them is not mapped or does not lie where it should."""
        parts: list[bytes] = []
        for log_offset, size in chosen:
            found = self._maps.get(log_offset // self.segment_bytes)
            if found is None:
                return None
            buffer, start = found
            part = buffer[log_offset - start : log_offset - start + size]
            if size < 91 or len(part) != size or int.from_bytes(part[:4], "big") != size:
                return None
            parts.append(part)  # type: ignore[arg-type]
        return b"".join(parts)


def _int32(code: int) -> int:
    return ((code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)

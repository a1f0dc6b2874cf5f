"""Topics, queues and the loops over them, in Python. Defines the behaviour of tables.c, dispatch.c, queues.c and gather.c."""

from __future__ import annotations

from typing import Final, cast

from kappamq.native.layout import (
    BROKEN,
    COLD,
    EMPTY,
    ENTRY,
    FILLER_BYTES,
    FOUND,
    GAP_ENTRIES_MAX,
    GONE,
    INDEX_PENDING,
    LENT_BYTES_MAX,
    NEED_ENTRIES,
    NO_MATCH,
    NO_MESSAGES,
    QUEUE_OFFSET_MAX,
    SCAN_ENTRIES_MAX,
    SCHEDULE_TOPIC,
    SYS_TRANSACTION,
    TAIL_KEEP_BYTES,
    TOO_LARGE,
    TOO_SMALL,
    TOPIC_BYTES_LIMIT,
    WARM_BLOCK_BYTES,
    WARM_BLOCKS,
    QueueState,
)  # fmt: skip  # fmt: skip
from kappamq.native.pure_record import (
    Buffer,
    Fields,
    hash_on,
    index_hash,
    is_message,
    java_hash,
    parse,
    property_values,
    topic_field,
)

_PREPARED, _ROLLBACK = 0x4, 0xC
_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_INT64_MAX: Final = (1 << 63) - 1
_KEY_HEAD: Final = 24
"""The message ids that a producer creates within a minute begin with the same 24 characters: their hash is cached."""
_MEMO_MAX: Final = 1024
_pack_entry: Final = ENTRY.pack
_pack_pending: Final = INDEX_PENDING.pack


class Queue:
    __slots__ = (
        "begun", "dirty", "end", "id", "lent", "lent_first", "min", "next", "stored", "tail", "tail_first", "topic", "watched",
    )  # fmt: skip

    def __init__(self, topic: Topic, queue_id: int) -> None:
        self.topic = topic
        self.id = queue_id
        self.min = 0  # first offset that can be read
        self.end = 0  # one past the last visible entry
        self.next = 0  # the offset the next append gets; ahead of `end` while records wait for dispatch
        self.begun = 0  # 1 + the number at which received records begin it anew; 0: none waits for dispatch
        self.stored = 0  # entries below are in the queue's files
        self.tail = bytearray()  # entries [tail_first, end) in their disk form
        self.tail_first = 0
        self.lent = b""  # entries read back from disk for a reader further behind
        self.lent_first = 0
        self.watched = False  # a waiter wants the next entry
        self.dirty = False  # has entries that are not in a file


class Topic:
    __slots__ = ("field", "flags", "hash", "key_heads", "magic", "name", "queues", "read_queues", "write_queues")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.magic, self.field = topic_field(name)
        self.hash = hash_on(0, name + b"#")  # index keys of the topic begin with it
        self.key_heads: dict[bytes, int] = {}  # ... and with it the ids of one producer
        self.flags = 0
        self.write_queues = 0
        self.read_queues = 0
        self.queues: dict[int, Queue] = {}

    def queue(self, queue_id: int) -> Queue:
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = Queue(self, queue_id)
        return queue


class Queues:
    """Topic and queue tables with the loops over them."""

    def __init__(self, segment_bytes: int) -> None:
        if segment_bytes <= 0:
            raise ValueError(f"{segment_bytes=} must be positive")
        self.segment_bytes = segment_bytes
        self.topics: dict[bytes, Topic] = {}
        self.hot_from = 0  # log bytes from here on are certainly in memory
        self._warm: dict[int, int] = {}  # blocks of older log bytes that are in memory, by their remainder
        self.log_min = 0  # first log byte that still exists
        self.mins_raised = False  # no queue begins with entries of deleted log files
        self.tail_bytes_max = 4 << 20
        self.index_enabled = True
        self.delays_ms: tuple[int, ...] = ()  # of the delay levels, level 1 first
        self._maps: dict[int, Buffer] = {}
        self._dirty: dict[Queue, None] = {}  # in the order in which they got their first unstored entry
        self._settled: dict[Queue, None] = {}  # all entries stored, tail still in memory; longest settled first
        self._lent: dict[Queue, None] = {}  # oldest loan first
        self._tail_bytes = self._lent_bytes = 0
        self._index = bytearray()
        self._tag_codes: dict[bytes, int] = {}

    # -- tables -----------------------------------------------------------------------------------------------------

    def topic(self, name: bytes) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            if len(name) > TOPIC_BYTES_LIMIT or b"\0" in name:
                raise ValueError(f"no topic: {len(name)} bytes, of at most {TOPIC_BYTES_LIMIT} and none of them 0")
            topic = self.topics[name] = Topic(name)
        return topic

    def queue(self, name: str, queue_id: int) -> Queue:
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue id {queue_id} of topic {name} is no number of 31 bits")
        return self.topic(name.encode()).queue(queue_id)

    def set_topic(self, name: str, write_queues: int, read_queues: int, flags: int) -> None:
        topic = self.topic(name.encode())
        topic.write_queues, topic.read_queues, topic.flags = write_queues, read_queues, flags

    def forget_topic(self, name: str) -> bool:
        """Forget a topic that clients may not send to or pull from, and that has no entries, no records on their way to it, and no
        waiters. Returns whether it is unknown now; it may be created again, and its queues then begin at 0."""
        topic = self.topics.get(name.encode())
        if topic is None:
            return True
        if topic.flags or topic.write_queues or topic.read_queues:
            return False
        queues = topic.queues.values()
        if any(q.dirty or q.watched or q.begun or q.next != q.end or q.min < q.end for q in queues):
            return False
        for queue in queues:
            self._drop_tail(queue)
            self._drop_lent(queue)
            self._settled.pop(queue, None)
        del self.topics[topic.name]
        return True

    def set_queue(self, name: str, queue_id: int, min_offset: int, end: int) -> None:
        """The files of this queue have the entries [min_offset, end). Forgets entries in memory beyond them."""
        if not 0 <= min_offset <= end <= QUEUE_OFFSET_MAX // 2:
            raise ValueError(f"queue {name}/{queue_id} cannot hold the entries [{min_offset}, {end})")
        queue = self.queue(name, queue_id)
        self._drop_tail(queue)
        self._drop_lent(queue)
        queue.min, queue.end, queue.next, queue.stored, queue.tail_first = min_offset, end, end, end, end
        queue.begun, queue.dirty = 0, False
        self._dirty.pop(queue, None)
        self._settled.pop(queue, None)

    def set_queue_min(self, name: str, queue_id: int, min_offset: int) -> None:
        self.queue(name, queue_id).min = min_offset

    def queue_state(self, name: str, queue_id: int) -> QueueState:
        """The offsets of a queue; zeros if it is unknown."""
        topic = self.topics.get(name.encode())
        queue = topic.queues.get(queue_id) if topic is not None else None
        return (
            QueueState(queue.min, queue.end, queue.next, queue.stored) if queue is not None else QueueState(0, 0, 0, 0)
        )

    def queue_ids(self, name: str) -> list[int]:
        topic = self.topics.get(name.encode())
        return sorted(topic.queues) if topic is not None else []

    def watch(self, name: str, queue_id: int, on: bool) -> None:
        self.queue(name, queue_id).watched = on

    def lend_entries(self, name: str, queue_id: int, first: int, entries: bytes) -> None:
        """Entries [first, ...) of a queue from its files, for pulls of messages older than those in memory."""
        if len(entries) % ENTRY.size or not 0 <= first <= QUEUE_OFFSET_MAX:
            raise ValueError(f"{len(entries)} bytes from {first} on are no entries of queue {name}/{queue_id}")
        queue = self.queue(name, queue_id)
        self._drop_lent(queue)
        if entries:
            queue.lent, queue.lent_first = bytes(entries), first
            self._lent_bytes += len(entries)
            self._lent[queue] = None
            while self._lent_bytes > LENT_BYTES_MAX and len(self._lent) > 1:
                self._drop_lent(next(iter(self._lent)))

    def _drop_lent(self, queue: Queue) -> None:
        if queue.lent:
            self._lent_bytes -= len(queue.lent)
            queue.lent, queue.lent_first = b"", 0
            del self._lent[queue]

    def map_segment(self, start: int, buffer: Buffer | None) -> None:
        """Where the log file that begins at `start` can be read; None: no longer (call this before closing it)."""
        if start < 0 or start % self.segment_bytes:
            raise ValueError(f"no log file begins at {start}: they are {self.segment_bytes} bytes long")
        if buffer is None:
            self._maps.pop(start // self.segment_bytes, None)
        else:
            self._maps[start // self.segment_bytes] = buffer

    # -- dispatch ---------------------------------------------------------------------------------------------------

    def dispatch(self, buffer: Buffer, log_offset: int) -> tuple[int, list[tuple[str, int]]]:
        """Enter the records in `buffer` into their queues and the key index.

        Returns (bytes eaten, watched queues that grew). Stops at the first byte that is not a whole record. Repeating it has no
        effect (but for index entries)."""
        woken: list[tuple[str, int]] = []
        at, limit = 0, len(buffer)
        topics, tag_codes, index_enabled = self.topics, self._tag_codes, self.index_enabled
        while at < limit:
            fields = parse(buffer, at, limit)
            if type(fields) is int:
                break
            size, queue_id, offset, _claimed, sys_flag, store_ms, _body_at, _body_bytes, name, properties = cast(
                Fields, fields
            )
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = Topic(name)
            transaction = sys_flag & SYS_TRANSACTION
            if transaction != _ROLLBACK:
                if transaction != _PREPARED:
                    queue = topic.queues.get(queue_id) or topic.queue(queue_id)
                    if queue.begun == offset + 1:
                        self._begin_anew(queue, offset)
                    if offset >= queue.end:  # else it was entered before
                        if offset > queue.end:
                            self._bridge(queue, offset, log_offset + at)
                        tags = _value(properties, b"TAGS\x01")
                        code = tag_codes.get(tags)
                        if code is None:
                            code = self._tag_code(tags)
                        if name == _SCHEDULE_TOPIC:
                            code = self._due_ms(properties, store_ms, code)
                        queue.tail += _pack_entry(log_offset + at, size, code)
                        self._tail_bytes += 20
                        queue.end = offset = offset + 1
                        if queue.next < offset:
                            queue.next = offset
                        if not queue.dirty:
                            queue.dirty = True
                            self._dirty[queue] = None
                            self._settled.pop(queue, None)
                        if queue.watched:
                            queue.watched = False
                            woken.append((name.decode(), queue_id))
                if index_enabled:
                    self._enter_keys(topic, properties, log_offset + at, store_ms)
            at += size
        return at, woken

    def _bridge(self, queue: Queue, offset: int, log_offset: int) -> None:
        """The numbering of a queue jumps to `offset`."""
        gap = offset - queue.end
        if queue.min < queue.end and gap <= GAP_ENTRIES_MAX:
            # The log is damaged in between: earlier messages stay readable, filler keeps the numbering.
            queue.tail += ENTRY.pack(log_offset, FILLER_BYTES, 0) * gap
            self._tail_bytes += ENTRY.size * gap
        else:
            # A store without its beginning, or a foreign log: the messages in between were never here.
            self._drop_tail(queue)
            queue.tail_first = queue.stored = queue.min = offset

    def _begin_anew(self, queue: Queue, offset: int) -> None:
        """Another broker's log begins this empty queue at `offset`, which may be below its former offsets."""
        self._drop_tail(queue)
        self._drop_lent(queue)
        queue.tail_first = queue.stored = queue.min = queue.end = offset
        queue.begun = 0

    def _tag_code(self, tags: bytes) -> int:
        if len(self._tag_codes) >= _MEMO_MAX:
            self._tag_codes.clear()
        code = self._tag_codes[tags] = java_hash(tags)
        return code

    def _due_ms(self, properties: bytes, store_ms: int, code: int) -> int:
        """In the schedule topic the tag code of a delayed message is its delivery time."""
        text = _value(properties, b"DELAY\x01")
        if not text:
            return code
        level = int(text) if text.isdigit() and len(text) <= 9 else 0
        delay = self.delays_ms[min(level, len(self.delays_ms)) - 1] if self.delays_ms and level else 1000
        return min(store_ms + delay, _INT64_MAX)

    def _enter_keys(self, topic: Topic, properties: bytes, log_offset: int, store_ms: int) -> None:
        unique = _value(properties, b"UNIQ_KEY\x01")
        if unique:
            head = unique[:_KEY_HEAD]
            value = topic.key_heads.get(head)
            if value is not None:
                value = hash_on(value, unique[_KEY_HEAD:])
            else:
                value = self._first_key(topic, unique)
            self._index += _pack_pending(index_hash(value), log_offset, store_ms)
        keys = _value(properties, b"KEYS\x01")
        if keys:
            for key in keys.split(b" "):
                if key:
                    self._index += _pack_pending(index_hash(hash_on(topic.hash, key)), log_offset, store_ms)

    def _first_key(self, topic: Topic, unique: bytes) -> int:
        """Hash of the first key with this beginning, which is remembered for the next one."""
        head = unique[:_KEY_HEAD]
        if head.isascii():  # else a character may be split
            if len(topic.key_heads) >= _MEMO_MAX:
                topic.key_heads.clear()
            topic.key_heads[head] = hash_on(topic.hash, head)
        return hash_on(topic.hash, unique)

    def take_entries(self, queues_max: int) -> list[tuple[str, int, int, bytes]]:
        """Entries not yet in files, (topic, queue id, first offset, bytes), of at most that many queues; they count as stored.

        Call it only when those returned before are in their files: they may now be dropped from memory."""
        self._trim_tails()
        taken: list[tuple[str, int, int, bytes]] = []
        for queue in list(self._dirty)[: max(queues_max, 0)]:
            data = bytes(queue.tail[(queue.stored - queue.tail_first) * ENTRY.size :])
            taken.append((queue.topic.name.decode(), queue.id, queue.stored, data))
            queue.stored = queue.end
            queue.dirty = False
            del self._dirty[queue]
            self._settled[queue] = None
        return taken

    def _trim_tails(self) -> None:
        settled = self._settled
        while self._tail_bytes > self.tail_bytes_max and settled:
            queue = next(iter(settled))
            del settled[queue]
            excess = len(queue.tail) - TAIL_KEEP_BYTES
            if excess > 0:
                self._cut_tail(queue, excess)
                settled[queue] = None
            else:
                self._drop_tail(queue)
                queue.tail_first = queue.end
        # Under load no queue comes to rest: then drop stored entries of the busy ones, too.
        for queue in self._dirty:
            if self._tail_bytes <= self.tail_bytes_max:
                break
            stored = (queue.stored - queue.tail_first) * ENTRY.size
            excess = min(stored, len(queue.tail) - TAIL_KEEP_BYTES)
            if excess > 0:
                self._cut_tail(queue, excess)

    def _cut_tail(self, queue: Queue, excess: int) -> None:
        """Drop the first `excess` bytes of a tail."""
        del queue.tail[:excess]
        queue.tail_first += excess // ENTRY.size
        self._tail_bytes -= excess

    def tail_entries(self, name: str, queue_id: int, offset: int, count: int) -> bytes:
        """Entries [offset, offset + count) as far as they are in memory; b"" if the first is not."""
        topic = self.topics.get(name.encode())
        queue = topic.queues.get(queue_id) if topic is not None else None
        if queue is None or not queue.tail_first <= offset < queue.end or count <= 0:
            return b""
        at = (offset - queue.tail_first) * ENTRY.size
        return bytes(queue.tail[at : at + count * ENTRY.size])

    def _drop_tail(self, queue: Queue) -> None:
        self._tail_bytes -= len(queue.tail)
        queue.tail = bytearray()

    def dirty_queues(self) -> int:
        return len(self._dirty)

    def take_index(self) -> bytes:
        data = bytes(self._index)
        self._index.clear()
        return data

    # -- gather -----------------------------------------------------------------------------------------------------

    def select(
        self, topic: Topic | None, queue_id: int, offset: int, count_max: int, bytes_max: int,
        codes: frozenset[int] | None, warm: bool,
    ) -> tuple[int, int, int, int, list[tuple[int, int]]]:  # fmt: skip
        """(verdict, next offset, min, end, [(log offset, size)]): what a pull would return."""
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
        look = min(len(entries) // ENTRY.size - (offset - first), end - offset, max(SCAN_ENTRIES_MAX, count_max))
        at = (offset - first) * ENTRY.size
        gone, readable = False, warm
        next_offset = offset
        log_min = self.log_min
        for log_offset, size, code in ENTRY.iter_unpack(entries[at : at + look * ENTRY.size]):
            if size == FILLER_BYTES and not log_offset:
                # Filler without a log offset is only valid before a queue's first message; elsewhere it hides a message.
                if chosen:
                    break
                return BROKEN, next_offset, low, end, []
            if size == FILLER_BYTES or (log_offset < log_min and not self.mins_raised):
                gone = True  # the log file was deleted, or it is filler
            elif codes is None or ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000 in codes:
                if chosen and (len(chosen) >= count_max or total + size > bytes_max):
                    break
                # The first record decides whether the answer is COLD; a cold one later ends an answer from memory.
                here = warm or log_offset < log_min or self._is_resident(log_offset, size)
                if not chosen:
                    readable = here
                elif readable and not here:
                    break
                # A record that is not at its offset ends the answer, but the good ones before it are returned.
                if readable and (log_offset < log_min or not self._lies_there(log_offset, size, queue, next_offset)):
                    if chosen:
                        break
                    return BROKEN, next_offset, low, end, []
                chosen.append((log_offset, size))
                total += size
            next_offset += 1
        if not chosen:
            return GONE if gone else NO_MATCH, next_offset, low, end, []
        if not readable:
            return COLD, next_offset, low, end, chosen
        return FOUND, next_offset, low, end, chosen

    def mark_warm(self, block: int, is_warm: bool) -> None:
        """This block of the log has been read into memory, or may no longer be there."""
        if block < 0 or block > QUEUE_OFFSET_MAX:
            raise ValueError(f"there is no block {block}")
        if is_warm:
            self._warm[block % WARM_BLOCKS] = block
        elif self._warm.get(block % WARM_BLOCKS) == block:
            del self._warm[block % WARM_BLOCKS]

    def _is_resident(self, log_offset: int, size: int) -> bool:
        if log_offset >= self.hot_from:
            return True
        last = log_offset + size - 1
        return size > 0 and all(
            self._warm.get(block % WARM_BLOCKS) == block
            for block in (log_offset // WARM_BLOCK_BYTES, last // WARM_BLOCK_BYTES)
        )

    def _lies_there(self, log_offset: int, size: int, queue: Queue, number: int) -> bool:
        """Whether message `number` of a queue can be read at `log_offset`."""
        segment, at = divmod(log_offset, self.segment_bytes)
        buffer = self._maps.get(segment)
        if buffer is None or size < 91 or at + size > len(buffer):
            return False
        if int.from_bytes(buffer[at : at + 4], "big", signed=True) != size:
            return False
        is_lost = getattr(buffer, "is_lost", None)
        if is_lost is not None and is_lost(at, size):
            return False
        return is_message(memoryview(buffer)[at : at + size], log_offset, queue.topic.name, queue.id, number)

    def collect(self, chosen: list[tuple[int, int]]) -> bytes:
        """The bytes of the records, concatenated."""
        parts: list[bytes] = []
        for log_offset, size in chosen:
            number, at = divmod(log_offset, self.segment_bytes)
            parts.append(self._maps[number][at : at + size])  # type: ignore[arg-type]
        return b"".join(parts)


def _value(properties: bytes, name: bytes) -> bytes:
    """One property, b"" if it is missing; `name` includes its separator."""
    at = properties.rfind(name)
    if at < 0:
        return b""
    if at == 0 or properties[at - 1] == 2:
        at += len(name)
        end = properties.find(b"\x02", at)
        value = properties[at:end] if end >= 0 else properties[at:]
        if value:
            return value
    return property_values(properties).get(name[:-1], b"")  # the name in another name or value, or an empty half

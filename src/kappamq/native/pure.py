"""The burst kernel in Python: defines the behaviour of burst.c, is its oracle in tests, and runs where there is no compiler.

A `Kernel` contains everything that is done per message: the tables of topics, queues and subscriptions, the bytes appended since
the last write, and the loops over them. It does no I/O and knows no clock. The broker's loop calls

        burst()     with the bytes of one socket read: plain sends are appended, plain pulls answered;
        take()      once per turn of the loop: returns the bytes to write, in one piece, and their log offset;
        dispatch()  when records become visible: queues and key index grow, waiting pulls wake.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

from kappamq.native import pure_record
from kappamq.native.flusher import Flusher
from kappamq.native.layout import (
    BAD,
    COLD,
    DONE,
    FOUND,
    FULL,
    LEFT,
    PAUSE,
    PULL_COMMIT,
    PULL_SUSPEND,
    QUEUE_OFFSET_MAX,
    REPLIES_BYTES_MAX,
    SYS_PREPARED,
    TOPIC_PULL,
    TOPIC_SEND,
    BurstTuple,
    PullTuple,
    PullVerdict,
    SegmentFull,
)  # fmt: skip
from kappamq.native.pure_batches import (
    CallbackSink,
    SendEntry,
    batch_body,
    batch_checksum,
    column_of,
    entries_by_topic,
    filled_objects,
    front_entries,
    property_texts,
    quick_messages,
    settle_entries,
    unique_ids,
)
from kappamq.native.pure_columns import bodies_of, columns, index_plain, locate, property_rows
from kappamq.native.pure_index import index_apply, index_link
from kappamq.native.pure_queues import Queue, Topic
from kappamq.native.pure_record import Buffer, check_host, encode, plain_batch, scan, split_batch
from kappamq.native.pure_replies import Replies
from kappamq.native.pure_scan import (
    END_TRANSACTION,
    LITE_PULL,
    PULL,
    SEND_BATCH,
    Fixed,
    Header,
    plain_end,
    plain_fixed,
    plain_properties,
    plain_pull,
    plain_time,
    printable_key,
    read_binary,
    read_json,
    waiting_properties,
)  # fmt: skip
from kappamq.native.pure_waiting import Waiting

NAME: Final = "twin"

_FRAME: Final = struct.Struct(">iI")
_LANES_MAX: Final = 4096


class Kernel(Waiting):
    def __init__(
        self, *, segment_bytes: int, store_host: bytes, region: str, cluster: str, trace_on: bool, tail_crc: bool,
        message_bytes_max: int, frame_bytes_max: int, header_bytes_max: int, pending_bytes_max: int,
        transfer_bytes_max: int, transfer_count_max: int,
    ) -> None:  # fmt: skip
        super().__init__(segment_bytes, tail_crc, pending_bytes_max)
        self._region, self._trace = region, "true" if trace_on else "false"
        self.store_host = store_host  # also builds the replies that contain it
        self.message_bytes_max = message_bytes_max
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self.transfer_bytes_max = transfer_bytes_max
        self.transfer_count_max = transfer_count_max
        self.force_slow = False  # tests: every frame goes to Python
        self.fast_frames = self.left_frames = 0
        self.get_count = self.get_bytes = 0
        # broker id to suggest for pulls of messages below that log offset
        self.suggested = self.suggested_below = 0
        self._added = f"MSG_REGION\x01{region}\x02TRACE_ON\x01{self._trace}\x02CLUSTER\x01{cluster}\x02".encode()
        # (number, version, tag hashes, offset of the last pull by queue id)
        self._rows: dict[tuple[str, str, bool], tuple[int, int, frozenset[int] | None, dict[int, int]]] = {}
        # Cache of what the repeated fields of a send mean: see plain_fixed. Cleared when a topic changes.
        self._lanes: dict[tuple[int | str, ...], tuple[Queue, Fixed]] = {}

    @property
    def store_host(self) -> bytes:
        """Our address as in records and offset ids; settable, since a broker learns it after its store is open."""
        return self._store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        check_host(host)
        self._store_host = host
        self._replies = Replies(host, self._region, self._trace)

    # -- what Python tells the kernel -------------------------------------------------------------------------------

    def set_topic(self, name: str, write_queues: int, read_queues: int, flags: int) -> None:
        super().set_topic(name, write_queues, read_queues, flags)
        self._lanes.clear()

    def forget_topic(self, name: str) -> bool:
        self._lanes.clear()
        return super().forget_topic(name)

    def set_row(
        self, row: int, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None
    ) -> None:
        """Identify pulls of `group` on `topic` by `row`; `codes` are the tag hashes it wants, None for all.

        `version` is the newest subscription version we know; a pull with a newer one goes to Python. An `explicit`
        row is for pulls that carry their subscription ("*" only)."""
        self._rows[group, topic, explicit] = (row, version, codes, {})

    def drop_row(self, group: str, topic: str, explicit: bool) -> None:
        self._rows.pop((group, topic, explicit), None)

    def asked(self, group: str, topic: str, queue_id: int) -> int:
        """The offset of the last pull of a queue that the kernel parsed since its row was set; -1 if there was none."""
        rows = [self._rows.get((group, topic, explicit)) for explicit in (False, True)]
        return max((row[3].get(queue_id, -1) for row in rows if row is not None), default=-1)

    def open_segment(self, position: int, segment_end: int) -> None:
        """Append at `position` from now on, and nothing beyond `segment_end`."""
        assert not self._pending, "write what is pending first"
        if not 0 <= position <= segment_end < 1 << 62:
            raise ValueError(f"no log file holds the bytes [{position}, {segment_end})")
        self._written, self._segment_end = position, segment_end

    def take(self) -> tuple[int, bytes]:
        """(log offset, bytes) of everything appended since the last call."""
        start, data = self._written, bytes(self._pending)
        self._written += len(data)
        self._pending.clear()
        return start, data

    # -- a socket read ----------------------------------------------------------------------------------------------

    def burst(self, data: Buffer, position: int, born: bytes, now_ms: int) -> BurstTuple:
        """Process the frames of `data` from `position` on, in order, until one must be left to Python.

        Returns (consumed, verdict, acks, end, replies, pulls, commits, notes): `acks` answer sends and may be sent once the log is
        safe up to `end`; `replies` may be sent at once; `pulls` are parsed but need something (entries, warm pages,
        a message) first: (verdict, row, queue id, offset, count, sys flag, suspend ms, opaque, binary, payload), where
        payload is that of `pull`; `commits` are consumer offsets that came with pulls: (row, queue id, offset);
        `notes` tell Python about messages that wait: see pure_waiting.py."""
        check_host(born)
        acks: list[bytes] = []
        replies: list[bytes] = []
        pulls: list[PullTuple] = []
        commits: list[tuple[int, int, int]] = []
        if type(data) is not bytes:
            data = bytes(data)
        size = len(data)
        verdict = DONE
        reply_bytes = 0
        while size - position >= 8:
            total, mark = _FRAME.unpack_from(data, position)
            header_bytes = mark & 0xFFFFFF
            if (
                total < 4 or total > self.frame_bytes_max
                or mark >= 0x2000000 or header_bytes > total - 4 or header_bytes > self.header_bytes_max
            ):  # fmt: skip
                verdict = BAD
                break
            end = position + 4 + total
            if size < end:
                break
            if self.force_slow:
                verdict = LEFT
                break
            body_at = position + 8 + header_bytes
            binary = mark >= 0x1000000
            text = data[position + 8 : body_at]
            header = read_binary(text) if binary else read_json(text)
            if header is None or header.flag & ~2:
                verdict = LEFT
            elif header.code == PULL or header.code == LITE_PULL:
                before = len(replies)
                verdict = self._plain_pull(header, binary, body_at == end, replies, pulls, commits)
                if len(replies) > before:
                    reply_bytes += len(replies[-1])
            elif header.code == END_TRANSACTION:
                verdict = self._plain_end(header, binary, body_at == end, now_ms, acks)
            else:
                verdict = self._plain_send(header, binary, data[body_at:end], born, now_ms, acks)
            if verdict:
                break
            self.fast_frames += 1
            position = end
            if reply_bytes >= REPLIES_BYTES_MAX:
                verdict = PAUSE
                break
        else:
            # Refuse an impossible length as soon as it is known.
            if size - position >= 4:
                total = int.from_bytes(data[position : position + 4], "big", signed=True)
                if total < 4 or total > self.frame_bytes_max:
                    verdict = BAD
        if verdict == LEFT:
            self.left_frames += 1
        end_offset = self.append_offset
        return position, verdict, b"".join(acks), end_offset, b"".join(replies), pulls, commits, self._take_notes()

    # -- sends ------------------------------------------------------------------------------------------------------

    def _plain_send(
        self, header: Header[Any], binary: bool, body: bytes, born: bytes, now_ms: int, acks: list[bytes]
    ) -> int:  # fmt: skip
        if not self.accepting:
            return LEFT
        code, ext = header.code, header.ext
        born_ms = plain_time(ext.g)
        text = ext.i
        unique_key = plain_properties(text)
        wish = None
        if unique_key is None and code != SEND_BATCH:
            wish = waiting_properties(text)
            unique_key = None if wish is None else wish.unique_key
        if born_ms is None or unique_key is None or not (code == SEND_BATCH or printable_key(unique_key)):
            return LEFT
        is_half = wish is not None and wish.name == "TRAN_MSG"
        key = (code, header.version, ext.b, ext.d, ext.e, ext.f, ext.h, ext.j, ext.k, ext.l, ext.m)
        lane = self._lanes.get(key)
        if lane is None:
            fixed = plain_fixed(code, header.version, ext)
            if fixed is None or (fixed.sys_flag & SYS_PREPARED and not is_half):
                return LEFT
            topic = self.topics.get(fixed.topic.encode())
            if topic is None or not topic.flags & TOPIC_SEND or fixed.queue_id >= topic.write_queues:
                return LEFT
            if len(self._lanes) >= _LANES_MAX:
                self._lanes.clear()
            lane = topic.queue(fixed.queue_id), fixed
            self._lanes[key] = lane
        queue, fixed = lane
        _topic, _queue_id, sys_flag, flag, reconsume_times = fixed
        if not 0 < len(body) <= self.message_bytes_max:
            return LEFT
        if sys_flag & SYS_PREPARED and not is_half:
            return LEFT
        if wish is not None:

            def answer(offsets: list[int], queue_id: int, offset: int, unique_key: str, recall_handle: str) -> None:
                if not header.flag & 2:
                    acks.append(
                        self._replies.sent(header.opaque, binary, offsets, queue_id, offset, unique_key, recall_handle)
                    )

            return self._waiting_send(wish, queue, fixed, born_ms, text, body, born, now_ms, answer)
        offset = queue.next
        if code == SEND_BATCH:
            members, inherited = split_batch(body, True), pure_record.batch_properties(text)
            if members is None or inherited is None:
                return LEFT
            if len(body) + len(members) * sum(len(pair) for _name, pair in inherited) > self.message_bytes_max:
                return LEFT
            members = pure_record.complete(members, inherited, self._added)
            offsets = self._append_members(queue, sys_flag, born_ms, born, reconsume_times, members, now_ms)
            if not offsets:
                return LEFT if offsets is None else FULL
            unique_key = ""  # the members have their own
        else:
            topic = queue.topic
            properties = (text if text[-1] == "\x02" else text + "\x02").encode() + self._added
            log_offset = self._written + len(self._pending)
            record = encode(
                topic.magic, topic.field, queue.id, flag, sys_flag, born_ms, born, reconsume_times, 0, body, properties, now_ms,
                offset, log_offset, self._store_host, self.tail_crc,
            )  # fmt: skip
            if record is None or offset > QUEUE_OFFSET_MAX:
                return LEFT
            if not self._room(len(record)):
                return FULL
            self._pending += record
            queue.next = offset + 1
            self.put_count += 1
            self.put_bytes += len(record)
            offsets = [log_offset]
        if not header.flag & 2:
            acks.append(self._replies.sent(header.opaque, binary, offsets, queue.id, offset, unique_key))
        return DONE

    # -- ends of transactions ---------------------------------------------------------------------------------------

    def _plain_end(self, header: Header[Any], binary: bool, bodiless: bool, now_ms: int, acks: list[bytes]) -> int:
        end = plain_end(header)
        if end is None or not bodiless:
            return LEFT
        verdict = self._end(end, now_ms)
        if verdict == DONE and not header.flag & 2:
            acks.append(self._replies.ended(header.opaque, binary))
        return verdict

    # -- pulls ------------------------------------------------------------------------------------------------------

    def _plain_pull(
        self, header: Header[Any], binary: bool, bodiless: bool, replies: list[bytes], pulls: list[PullTuple],
        commits: list[tuple[int, int, int]],
    ) -> int:  # fmt: skip
        pull = plain_pull(header)
        if pull is None or not bodiless:
            return LEFT
        known = self._rows.get((pull.group, pull.topic, pull.explicit))
        topic = self.topics.get(pull.topic.encode())
        if known is None or topic is None or not topic.flags & TOPIC_PULL or pull.queue_id >= topic.read_queues:
            return LEFT
        row, version, codes, asked = known
        if not pull.explicit and pull.version > version:
            return LEFT
        if pull.sys_flag & PULL_COMMIT and pull.sys_flag & PULL_SUSPEND:
            commits.append((row, pull.queue_id, pull.commit_offset))
        count = min(pull.count_max, self.transfer_count_max)
        verdict, payload = self._pull(topic, pull.queue_id, pull.offset, count, codes, (header.opaque, binary), False)
        asked[pull.queue_id] = pull.offset
        if verdict == FOUND:
            replies.append(payload)
        else:
            pulls.append(
                (
                    verdict,
                    row,
                    pull.queue_id,
                    pull.offset,
                    count,
                    pull.sys_flag,
                    pull.suspend_ms,
                    header.opaque,
                    binary,
                    payload,
                )
            )
        return DONE

    def pull(
        self, topic: str, queue_id: int, offset: int, count_max: int, codes: frozenset[int] | None, opaque: int, binary: bool,
        warm: bool,
    ) -> PullVerdict:  # fmt: skip
        """Try a pull.

        With `warm` the caller guarantees that the records are in memory; COLD then means that they are not at their offsets."""
        found = self.topics.get(topic.encode())
        return PullVerdict(*self._pull(found, queue_id, offset, count_max, codes, (opaque, binary), warm))

    def fetch(self, topic: str, queue_id: int, offset: int, count_max: int, warm: bool) -> PullVerdict:
        """As `pull`, but FOUND returns only the records. The caller counts those that it passes on."""
        return PullVerdict(*self._pull(self.topics.get(topic.encode()), queue_id, offset, count_max, None, None, warm))

    def _pull(
        self, topic: Topic | None, queue_id: int, offset: int, count_max: int, codes: frozenset[int] | None,
        asker: tuple[int, bool] | None, warm: bool,
    ) -> tuple[int, Any]:  # fmt: skip
        verdict, next_offset, low, end, chosen = self.select(
            topic, queue_id, offset, count_max, self.transfer_bytes_max, codes, warm
        )
        if verdict == COLD:
            return COLD, (chosen[0][0], chosen[-1][0] + chosen[-1][1])
        if verdict != FOUND:
            return verdict, (next_offset, low, end)
        body = self.collect(chosen)
        if asker is None:
            return FOUND, body
        self.get_count += len(chosen)
        self.get_bytes += len(body)
        suggested = self.suggested if sum(chosen[-1]) <= self.suggested_below else 0
        return FOUND, self._replies.pulled(*asker, next_offset, low, end, body, suggested)


__all__ = [
    "NAME",
    "CallbackSink",
    "Flusher",
    "Kernel",
    "SegmentFull",
    "SendEntry",
    "batch_body",
    "batch_checksum",
    "bodies_of",
    "column_of",
    "columns",
    "crc32",
    "entries_by_topic",
    "filled_objects",
    "front_entries",
    "index_apply",
    "index_link",
    "index_plain",
    "locate",
    "plain_batch",
    "property_rows",
    "property_texts",
    "quick_messages",
    "scan",
    "settle_entries",
    "split_batch",
    "unique_ids",
]  # fmt: skip

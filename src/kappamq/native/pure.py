"""The burst kernel in Python: the meaning of kernel.c, its oracle in tests, and what runs where no compiler is at hand.

A `Kernel` owns what one message costs: the tables of topics, queues and subscriptions, the bytes appended since the last
write, and the loops over them. It does no I/O and knows no clock. The broker's loop calls

    burst()     with what one socket read brought: plain sends are appended, plain pulls answered;
    take()      once per turn of the loop: the bytes to write, in one piece, at their log offset;
    dispatch()  when they may be seen: queues and key index grow, waiting pulls wake.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from kappamq.native.layout import (
    BAD, BATCH_NAME, BATCH_PROPERTY_BYTES, BLANK_BYTES, COLD, DONE, FOUND, FULL, HEAD, LEFT, MAGIC_V1, MAGIC_V2, PROPERTIES_BYTES_MAX,
    PULL_COMMIT, PULL_SUSPEND, SYS_BORN_V6, SYS_STORE_V6, TAIL_CRC_BYTES, TAIL_CRC_NAME, TOPIC_BYTES_MAX, TOPIC_PULL, TOPIC_SEND,
)  # fmt: skip
from kappamq.native.pure_queues import Buffer, Queues, Topic, scan
from kappamq.native.pure_scan import PULL, SEND_BATCH, LITE_PULL, Head, Pull, Send, plain_properties, plain_pull, plain_send, read_binary, read_json

NAME = "twin"
VERSION = 479
LANGUAGE = 3

_MEMBER = struct.Struct(">iiiii")
_BINARY_HEAD = struct.Struct(">hBhii")

PullTuple = tuple[int, int, int, int, int, int, int, int, bool, Any]
BurstTuple = tuple[int, int, bytes, int, bytes, list[PullTuple], list[tuple[int, int, int]]]


class SegmentFull(Exception):
    """The log file has no room for the record: write what is pending, open the next file, try again."""


class Kernel(Queues):
    def __init__(
        self, *, segment_bytes: int, store_host: bytes, region: str, cluster: str, trace_on: bool, tail_crc: bool,
        message_bytes_max: int, frame_bytes_max: int, header_bytes_max: int, pending_bytes_max: int,
        transfer_bytes_max: int, transfer_count_max: int,
    ) -> None:  # fmt: skip
        super().__init__(segment_bytes)
        self.store_host = store_host
        self.tail_crc = tail_crc
        self.message_bytes_max = message_bytes_max
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self.pending_bytes_max = pending_bytes_max
        self.transfer_bytes_max = transfer_bytes_max
        self.transfer_count_max = transfer_count_max
        self.accepting = False  # plain sends go to Python while the store cannot take them
        self.force_slow = False  # tests: every frame goes to Python
        self.fast_frames = self.left_frames = 0
        self.put_count = self.put_bytes = self.get_count = self.get_bytes = 0
        trace = "true" if trace_on else "false"
        self._added = f"MSG_REGION\x01{region}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{cluster}\x02".encode()
        self._region, self._trace = region, trace
        self._rows: dict[tuple[str, str, bool], tuple[int, int, frozenset[int] | None]] = {}
        self._pending = bytearray()
        self._written = 0  # log offset of the first pending byte
        self._segment_end = 0

    # -- what Python tells the kernel --------------------------------------------------------------------------------------

    def set_row(self, row: int, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None) -> None:
        """Pulls of `group` on `topic` are known as `row`; `codes` are the tag hashes it wants, None for all.

        `version` is the newest subscription version we know; a pull that knows a newer one goes to Python. An `explicit`
        row serves pulls that bring their subscription along ("*" only)."""
        self._rows[group, topic, explicit] = (row, version, codes)

    def drop_row(self, group: str, topic: str, explicit: bool) -> None:
        self._rows.pop((group, topic, explicit), None)

    def open_segment(self, position: int, segment_end: int) -> None:
        """Appends go to `position` from now on, none beyond `segment_end`."""
        assert not self._pending, "write what is pending first"
        self._written, self._segment_end = position, segment_end

    @property
    def append_offset(self) -> int:
        """Where the next record goes."""
        return self._written + len(self._pending)

    def take(self) -> tuple[int, bytes]:
        """(log offset, bytes) of everything appended since the last call."""
        start, data = self._written, bytes(self._pending)
        self._written += len(data)
        self._pending.clear()
        return start, data

    # -- a socket read -----------------------------------------------------------------------------------------------------

    def burst(self, data: Buffer, position: int, born: bytes, now_ms: int) -> BurstTuple:
        """Deal with the frames of `data` from `position` on, in order, until one is Python's.

        Returns (consumed, verdict, acks, end, replies, pulls, commits): `acks` answer sends and may leave when the log is
        safe up to `end`; `replies` may leave at once; `pulls` are understood but need something (entries, warm pages,
        a message) first: (verdict, row, queue id, offset, count, sys flag, suspend ms, opaque, binary, span); `commits`
        are consumer offsets that came with pulls: (row, queue id, offset)."""
        acks: list[bytes] = []
        replies: list[bytes] = []
        pulls: list[PullTuple] = []
        commits: list[tuple[int, int, int]] = []
        size = len(data)
        verdict = DONE
        while size - position >= 4:
            total = int.from_bytes(data[position : position + 4], "big", signed=True)
            if total < 4 or total > self.frame_bytes_max:
                verdict = BAD
                break
            if size - position < 8:
                break
            form = data[position + 4]
            header_bytes = int.from_bytes(data[position + 5 : position + 8], "big")
            if form > 1 or header_bytes > total - 4 or header_bytes > self.header_bytes_max:
                verdict = BAD
                break
            end = position + 4 + total
            if size < end:
                break
            header_end = position + 8 + header_bytes
            verdict = self._frame(data, position + 8, header_end, end, form == 1, born, now_ms, acks, replies, pulls, commits)
            if verdict != DONE:
                break
            self.fast_frames += 1
            position = end
        if verdict == LEFT:
            self.left_frames += 1
        return position, verdict, b"".join(acks), self.append_offset, b"".join(replies), pulls, commits

    def _frame(
        self, data: Buffer, header_at: int, body_at: int, end: int, binary: bool, born: bytes, now_ms: int,
        acks: list[bytes], replies: list[bytes], pulls: list[PullTuple], commits: list[tuple[int, int, int]],
    ) -> int:  # fmt: skip
        if self.force_slow:
            return LEFT
        header = bytes(data[header_at:body_at])
        head = read_binary(header) if binary else read_json(header)
        if head is None or head.flag & ~2:
            return LEFT
        if head.code == PULL or head.code == LITE_PULL:
            return self._plain_pull(head, binary, body_at == end, replies, pulls, commits)
        send = plain_send(head)
        if send is None or not self.accepting:
            return LEFT
        topic = self.topics.get(send.topic.encode())
        if topic is None or not topic.flags & TOPIC_SEND or send.queue_id >= topic.write_queues:
            return LEFT
        if not 0 < end - body_at <= self.message_bytes_max:
            return LEFT
        body = bytes(data[body_at:end])
        if head.code == SEND_BATCH:
            return self._plain_batch(head, send, topic, body, born, now_ms, binary, acks)
        properties = send.properties.encode()
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += self._added
        log_offset = self.append_offset
        offset = topic.queue(send.queue_id).next
        stored = self._append(
            topic, send.queue_id, send.flag, send.sys_flag, send.born_ms, born, send.reconsume_times, 0, body, properties, now_ms
        )
        if stored is None:
            return LEFT
        if stored < 0:
            return FULL
        if not head.flag & 2:
            acks.append(self._send_reply(head.opaque, binary, self._offset_id(log_offset), send.queue_id, offset, send.unique_key))
        return DONE

    def _append(
        self, topic: Topic, queue_id: int, flag: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        prepared: int, body: bytes, properties: bytes, now_ms: int,
    ) -> int | None:  # fmt: skip
        """Bytes appended; negative if there is no room for them here; None if no record can hold the properties."""
        queue = topic.queue(queue_id)
        record = self._encode(
            topic.name, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body, properties, now_ms,
            queue.next, self.append_offset,
        )  # fmt: skip
        if record is None:
            return None
        if not self._room(len(record)):
            return -len(record)
        self._pending += record
        queue.next += 1
        self.put_count += 1
        self.put_bytes += len(record)
        return len(record)

    def _room(self, size: int) -> bool:
        if self._pending and len(self._pending) + size > self.pending_bytes_max:
            return False
        return self.append_offset + size + BLANK_BYTES <= self._segment_end

    def _encode(
        self, topic: bytes, queue_id: int, flag: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        prepared: int, body: bytes, properties: bytes, now_ms: int, queue_offset: int, log_offset: int,
    ) -> bytes | None:  # fmt: skip
        store_host = self.store_host
        sys_flag &= ~(SYS_BORN_V6 | SYS_STORE_V6)
        sys_flag |= (SYS_BORN_V6 if len(born) == 20 else 0) | (SYS_STORE_V6 if len(store_host) == 20 else 0)
        tail = TAIL_CRC_BYTES if self.tail_crc else 0
        if tail and properties and properties[-1] != 2:
            properties += b"\x02"
        properties_bytes = len(properties) + tail
        if properties_bytes > PROPERTIES_BYTES_MAX:
            return None
        head = HEAD[len(born), len(store_host)]
        long_topic = len(topic) > TOPIC_BYTES_MAX
        size = head.size + len(body) + (2 if long_topic else 1) + len(topic) + 2 + properties_bytes
        record = b"".join(
            (
                head.pack(
                    size, MAGIC_V2 if long_topic else MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset,
                    log_offset, sys_flag, born_ms, born, now_ms, store_host, reconsume_times, prepared, len(body),
                ),
                body, len(topic).to_bytes(2 if long_topic else 1, "big"), topic, properties_bytes.to_bytes(2, "big"), properties,
            )
        )  # fmt: skip
        if tail:
            record += TAIL_CRC_NAME + (b"%010d" % (zlib.crc32(record) & 0x7FFFFFFF))[::-1] + b"\x02"
        return record

    def _offset_id(self, log_offset: int) -> str:
        return (self.store_host + log_offset.to_bytes(8, "big")).hex().upper()

    # -- batches -----------------------------------------------------------------------------------------------------------

    def _plain_batch(
        self, head: Head, send: Send, topic: Topic, body: bytes, born: bytes, now_ms: int, binary: bool, acks: list[bytes]
    ) -> int:
        members = split_batch(body, plain=True)
        if members is None:
            return LEFT
        first = topic.queue(send.queue_id).next
        offsets = self._append_members(
            topic, send.queue_id, send.sys_flag, send.born_ms, born, send.reconsume_times, members, now_ms
        )
        if offsets is None:
            return LEFT
        if not offsets:
            return FULL
        if not head.flag & 2:
            ids = ",".join([self._offset_id(log_offset) for log_offset in offsets])
            acks.append(self._send_reply(head.opaque, binary, ids, send.queue_id, first, ""))
        return DONE

    def _append_members(
        self, topic: Topic, queue_id: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        members: list[tuple[int, bytes, bytes]], now_ms: int,
    ) -> list[int] | None:  # fmt: skip
        """Log offsets of the members, all of them or none: [] if there is no room here, None if no record can hold one."""
        queue = topic.queue(queue_id)
        several = len(members) > 1
        tail = TAIL_CRC_BYTES if self.tail_crc else 0
        fixed = HEAD[len(born), len(self.store_host)].size + len(topic.name) + (5 if len(topic.name) <= TOPIC_BYTES_MAX else 6) - 2
        total = 0
        for number, (_flag, body, properties) in enumerate(members):
            length = len(properties) + (1 if properties and properties[-1] != 2 else 0) + tail
            length += BATCH_PROPERTY_BYTES if several and number == 0 else 0
            if length > PROPERTIES_BYTES_MAX:
                return None
            total += fixed + len(body) + length
        if not self._room(total):
            return []
        offsets: list[int] = []
        for number, (flag, body, properties) in enumerate(members):
            if properties and properties[-1] != 2:
                properties += b"\x02"
            if several and number == 0:
                properties += BATCH_NAME + b"%010d\x02" % total
            offsets.append(self.append_offset)
            record = self._encode(
                topic.name, queue_id, flag, sys_flag, born_ms, born, reconsume_times, 0, body, properties, now_ms,
                queue.next, self.append_offset,
            )  # fmt: skip
            assert record is not None
            self._pending += record
            queue.next += 1
        self.put_count += len(members)
        self.put_bytes += total
        return offsets

    # -- the slow path ends here, too --------------------------------------------------------------------------------------

    def append(
        self, topic: str, queue_id: int, flag: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        prepared: int, body: bytes, properties: bytes, now_ms: int,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Append one record as given: (log offset, queue offset, size). Raises SegmentFull, or ValueError if it cannot be."""
        found = self.topic(topic.encode())
        log_offset, queue_offset = self.append_offset, found.queue(queue_id).next
        size = self._append(found, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body, properties, now_ms)
        if size is None:
            raise ValueError(f"properties are longer than {PROPERTIES_BYTES_MAX} bytes")
        if size < 0:
            raise SegmentFull(-size)
        return log_offset, queue_offset, size

    def append_batch(
        self, topic: str, queue_id: int, sys_flag: int, born_ms: int, born: bytes, reconsume_times: int,
        members: list[tuple[int, bytes, bytes]], now_ms: int,
    ) -> tuple[list[int], int]:  # fmt: skip
        """Append (flag, body, properties) records, consecutively, all or none: (their log offsets, first queue offset)."""
        found = self.topic(topic.encode())
        first = found.queue(queue_id).next
        offsets = self._append_members(found, queue_id, sys_flag, born_ms, born, reconsume_times, members, now_ms)
        if offsets is None:
            raise ValueError(f"properties of a member are longer than {PROPERTIES_BYTES_MAX} bytes")
        if not offsets:
            raise SegmentFull(len(members))
        return offsets, first

    # -- pulls -------------------------------------------------------------------------------------------------------------

    def _plain_pull(
        self, head: Head, binary: bool, bodiless: bool, replies: list[bytes], pulls: list[PullTuple], commits: list[tuple[int, int, int]]
    ) -> int:
        pull = plain_pull(head)
        if pull is None or not bodiless:
            return LEFT
        known = self._rows.get((pull.group, pull.topic, pull.explicit))
        topic = self.topics.get(pull.topic.encode())
        if known is None or topic is None or not topic.flags & TOPIC_PULL or pull.queue_id >= topic.read_queues:
            return LEFT
        row, version, codes = known
        if not pull.explicit and pull.version > version:
            return LEFT
        if pull.sys_flag & PULL_COMMIT and pull.sys_flag & PULL_SUSPEND:
            commits.append((row, pull.queue_id, pull.commit_offset))
        count = min(pull.count_max, self.transfer_count_max)
        verdict, payload = self._pull(topic, pull.queue_id, pull.offset, count, codes, head.opaque, binary, False)
        if verdict == FOUND:
            replies.append(payload)
        else:
            pulls.append(
                (verdict, row, pull.queue_id, pull.offset, count, pull.sys_flag, pull.suspend_ms, head.opaque, binary, payload)
            )
        return DONE

    def pull(
        self, topic: str, queue_id: int, offset: int, count_max: int, codes: frozenset[int] | None, opaque: int, binary: bool, warm: bool
    ) -> tuple[int, Any]:
        """Try a pull: (FOUND, the whole reply), (COLD, (first log byte, one past the last)) or (why not, (next, min, end)).

        With `warm` the caller vouches that the records are in memory."""
        return self._pull(self.topics.get(topic.encode()), queue_id, offset, count_max, codes, opaque, binary, warm)

    def _pull(
        self, topic: Topic | None, queue_id: int, offset: int, count_max: int, codes: frozenset[int] | None, opaque: int, binary: bool, warm: bool
    ) -> tuple[int, Any]:
        verdict, next_offset, low, end, chosen = self.select(
            topic, queue_id, offset, count_max, self.transfer_bytes_max, codes, warm
        )
        if verdict == COLD:
            return COLD, (chosen[0][0], chosen[-1][0] + chosen[-1][1])
        if verdict != FOUND:
            return verdict, (next_offset, low, end)
        body = self.collect(chosen)
        if body is None:
            return COLD, (chosen[0][0], chosen[-1][0] + chosen[-1][1])
        self.get_count += len(chosen)
        self.get_bytes += len(body)
        return FOUND, self._pull_reply(opaque, binary, next_offset, low, end, body)

    # -- replies -----------------------------------------------------------------------------------------------------------

    def _send_reply(self, opaque: int, binary: bool, ids: str, queue_id: int, offset: int, unique_key: str) -> bytes:
        if binary:
            ext = [("msgId", ids), ("queueId", str(queue_id)), ("queueOffset", str(offset))]
            if unique_key:
                ext.append(("transactionId", unique_key))
            ext += (("MSG_REGION", self._region), ("TRACE_ON", self._trace))
            return _binary_reply(opaque, b"", ext, b"")
        transaction = f'"transactionId":"{unique_key}",' if unique_key else ""
        return _json_reply(
            f'{{"code":0,"extFields":{{"msgId":"{ids}","queueId":"{queue_id}","queueOffset":"{offset}",{transaction}'
            f'"MSG_REGION":"{self._region}","TRACE_ON":"{self._trace}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}',
            b"",
        )

    def _pull_reply(self, opaque: int, binary: bool, next_offset: int, low: int, end: int, body: bytes) -> bytes:
        if binary:
            ext = [
                ("suggestWhichBrokerId", "0"), ("nextBeginOffset", str(next_offset)), ("minOffset", str(low)), ("maxOffset", str(end)),
            ]  # fmt: skip
            return _binary_reply(opaque, b"FOUND", ext, body)
        return _json_reply(
            f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"0","nextBeginOffset":"{next_offset}","minOffset":"{low}",'
            f'"maxOffset":"{end}"}},"flag":1,"language":"PYTHON","opaque":{opaque},"remark":"FOUND",'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}',
            body,
        )


def split_batch(body: bytes, plain: bool) -> list[tuple[int, bytes, bytes]] | None:
    """(flag, body, properties) of each member of a batch; None unless every length fits (and, if `plain`, no member is special)."""
    members: list[tuple[int, bytes, bytes]] = []
    at, limit = 0, len(body)
    while at < limit:
        if limit - at < 22:
            return None
        size, _magic, _crc, flag, body_bytes = _MEMBER.unpack_from(body, at)
        properties_at = at + 20 + body_bytes + 2
        if body_bytes < 1 or properties_at > limit:
            return None
        end = properties_at + int.from_bytes(body[properties_at - 2 : properties_at], "big")
        if end != at + size or end > limit or end - properties_at > PROPERTIES_BYTES_MAX:
            return None
        properties = body[properties_at:end]
        if plain:
            try:
                if plain_properties(properties.decode()) is None:
                    return None
            except UnicodeDecodeError:
                return None
        members.append((flag, body[at + 20 : at + 20 + body_bytes], properties))
        at = end
    return members or None


def _json_reply(header: str, body: bytes) -> bytes:
    text = header.encode()
    return (4 + len(text) + len(body)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text + body


def _binary_reply(opaque: int, remark: bytes, ext: list[tuple[str, str]], body: bytes) -> bytes:
    fields = b"".join(
        [
            len(name).to_bytes(2, "big") + name.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
            for name, value in ext
        ]
    )
    header = b"".join(
        (_BINARY_HEAD.pack(0, LANGUAGE, VERSION, opaque, 1), len(remark).to_bytes(4, "big"), remark, len(fields).to_bytes(4, "big"), fields)
    )
    return (4 + len(header) + len(body)).to_bytes(4, "big") + (1 << 24 | len(header)).to_bytes(4, "big") + header + body


__all__ = ["NAME", "BurstTuple", "Kernel", "Pull", "SegmentFull", "scan", "split_batch"]

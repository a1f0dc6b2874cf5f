# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""The compiled kernel: a Python wrapper of kernel.h. Same names, tuples and exceptions as pure.py, which documents them.

Nothing here releases the GIL inside a kernel: only one thread at a time may use it.
"""

import json
import mmap
import os
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from kappamq.native.layout import PROPERTIES_BYTES_MAX as _PROPERTIES_BYTES_MAX
from kappamq.native.layout import TOPIC_BYTES_LIMIT as _TOPIC_BYTES_LIMIT
from kappamq.native.layout import (
    BadRow, HalfEnded, HalfOpened, LevelParked, Misnumbered, PullVerdict, QueueState, SegmentFull,
)

NAME = "native"

cdef crc_t _crc
cdef crc_t _crc_portable
crc_init(&_crc, False)
crc_init(&_crc_portable, True)

cdef int64_t _INT64_MAX = (1 << 63) - 1
cdef int64_t _INT64_MIN = -_INT64_MAX - 1


# -- conversions ------------------------------------------------------------------------------------------------------

cdef inline span_t text_span(str text) except *:
    cdef Py_ssize_t size
    cdef const char *at = PyUnicode_AsUTF8AndSize(text, &size)
    return span_t(<const uint8_t *>at, <size_t>size)

cdef inline span_t bytes_span(bytes data):
    return span_t(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>len(data))

cdef inline span_t host_span(bytes host) except *:
    if len(host) != 8 and len(host) != 20:
        raise ValueError(f"an address is 8 or 20 bytes (ip and port), not {len(host)}")
    return bytes_span(host)

cdef inline bytes as_bytes(data):
    return <bytes>data if type(data) is bytes else bytes(data)

cdef inline bytes new_bytes(const uint8_t *at, size_t size):
    return PyBytes_FromStringAndSize(<const char *>at, <Py_ssize_t>size) if size else b""

cdef inline str topic_name(const topic_t *found):
    return PyUnicode_DecodeUTF8(<const char *>found.name, <Py_ssize_t>found.name_size, NULL)

cdef int64_t number(value, int64_t low, int64_t high) except? -1:
    """An int that fits into a record; otherwise ValueError."""
    if not low <= value <= high:
        raise ValueError(f"no record can hold this: {value} is not within {low} and {high}")
    return value

cdef inline int32_t int32(value) except? -1:
    return <int32_t>number(value, -(1 << 31), (1 << 31) - 1)

cdef inline int64_t int64(value) except? -1:
    return number(value, _INT64_MIN, _INT64_MAX)

cdef inline int64_t clipped(value):
    """An int of any size, for comparisons only."""
    return _INT64_MAX if value > _INT64_MAX else _INT64_MIN if value < _INT64_MIN else <int64_t>value

cdef inline int check(int result) except -1:
    if result == NO_MEMORY:
        raise MemoryError("the kernel")
    return 0


cdef class _View:
    """Another object's buffer, held for as long as this object lives."""
    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, data, bint writable=False):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef class _Codes:
    """Tag hashes in ascending order, as the kernel expects them."""
    cdef codes_t codes
    cdef int32_t *memory

    def __cinit__(self, wanted):
        self.codes.all = wanted is None
        if wanted is None:
            return
        values = sorted([code for code in wanted if -(1 << 31) <= code < 1 << 31])
        self.memory = <int32_t *>malloc((len(values) or 1) * sizeof(int32_t))
        if self.memory == NULL:
            raise MemoryError("the kernel")
        for place in range(len(values)):
            self.memory[place] = values[place]
        self.codes.at = self.memory
        self.codes.count = len(values)

    def __dealloc__(self):
        free(self.memory)


# -- mapped files -----------------------------------------------------------------------------------------------------

SURVIVES_FAILED_READS = True


cdef class MappedFile:
    """See mapping.py, which defines its behaviour, and mapping.c, which survives failed reads."""
    cdef mapping_t *m
    cdef Py_ssize_t size
    cdef int exports

    def __cinit__(self, int fd, Py_ssize_t size):
        if size <= 0 or os.fstat(fd).st_size < size:
            raise ValueError(f"a file of {os.fstat(fd).st_size} bytes cannot be mapped with {size}")
        self.size = size
        self.m = mapping_open(fd, <size_t>size)
        if self.m == NULL:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.m != NULL:
            mapping_close(self.m)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.m == NULL:
            raise ValueError("the mapping is closed")
        PyBuffer_FillInfo(buffer, self, <void *>mapping_data(self.m), self.size, True, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.exports -= 1

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        return bytes(memoryview(self)[place]) if isinstance(place, slice) else memoryview(self)[place]

    def close(self):
        if self.exports:
            raise BufferError("somebody still reads the mapping")
        if self.m != NULL:
            mapping_close(self.m)
            self.m = NULL

    def enter(self, Py_ssize_t at, Py_ssize_t size):
        if at < 0 or size < 0 or at > self.size - size:
            raise ValueError(f"[{at}, {at + size}) is not within the mapping")
        if self.m == NULL or not size:
            return
        cdef const uint8_t *data = mapping_data(self.m)
        with nogil:
            mapping_enter(data, <size_t>at, <size_t>size)

    @property
    def lost_count(self):
        return mapping_lost_count(self.m) if self.m != NULL else 0

    def lost(self):
        cdef size_t start, stop = 0
        found = []
        while self.m != NULL and mapping_next_lost(self.m, stop, &start, &stop):
            found.append((start, stop))
            if stop >= <size_t>self.size:
                break
        return found

    def is_lost(self, Py_ssize_t at, Py_ssize_t size):
        if self.m == NULL or at < 0 or size < 0 or at > self.size - size:
            raise ValueError(f"[{at}, {at + size}) is not within the mapping")
        return bool(mapping_is_lost(self.m, at, size))

    def restore(self, Py_ssize_t start, Py_ssize_t stop, int fd):
        if not any(low <= start < stop <= high for low, high in self.lost()) or start % mmap.PAGESIZE or (
            stop % mmap.PAGESIZE and stop != self.size
        ):
            raise ValueError(f"[{start}, {stop}) is no range of lost pages")
        if mapping_restore(self.m, start, stop, fd):
            raise OSError(errno, os.strerror(errno))


# -- the kernel -------------------------------------------------------------------------------------------------------

# The buffer of the last written bytes: reused once it has no readers, and not returned to the system.
cdef bytes_t _spare
memset(&_spare, 0, sizeof(_spare))
cdef enum:
    _HANDED_BYTES = 64 << 10  # fewer are copied
    _SPARE_BYTES_MAX = 4 << 20


cdef class _Taken:
    """Appended bytes, in the buffer that a kernel has filled."""
    cdef bytes_t buffer

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.buffer.data, <Py_ssize_t>self.buffer.size, True, flags)

    def __dealloc__(self):
        global _spare
        if _spare.data == NULL and self.buffer.room <= _SPARE_BYTES_MAX:
            _spare = self.buffer
        else:
            free(self.buffer.data)


cdef class Kernel:
    cdef kernel_t *k
    cdef dict _maps
    cdef str _region
    cdef bint _trace_on

    def __cinit__(
        self, *, segment_bytes, bytes store_host not None, str region not None, str cluster not None, bint trace_on, bint tail_crc,
        message_bytes_max, frame_bytes_max, header_bytes_max, pending_bytes_max, transfer_bytes_max, transfer_count_max,
    ):
        cdef bytes added, quoted, plain
        if segment_bytes <= 0:
            raise ValueError(f"segment_bytes={segment_bytes} must be positive")
        self._maps = {}
        self.k = kernel_new()
        if self.k == NULL:
            raise MemoryError("the kernel")
        self.k.segment_bytes = segment_bytes
        self.k.tail_crc = tail_crc
        self.k.message_bytes_max = message_bytes_max
        self.k.frame_bytes_max = frame_bytes_max
        self.k.header_bytes_max = header_bytes_max
        self.k.pending_bytes_max = pending_bytes_max
        self.k.transfer_bytes_max = transfer_bytes_max
        self.k.transfer_count_max = transfer_count_max
        self.store_host = store_host
        trace = "true" if trace_on else "false"
        added = f"MSG_REGION\x01{region}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{cluster}\x02".encode()
        quoted = json.dumps(region, ensure_ascii=False).encode()
        plain = region.encode()
        check(kernel_identity(self.k, bytes_span(added), bytes_span(quoted), bytes_span(plain), trace_on))

    def __dealloc__(self):
        kernel_free(self.k)

    # -- settings and counters ----------------------------------------------------------------------------------------

    @property
    def store_host(self):
        return new_bytes(self.k.store_host, self.k.store_host_size)

    @store_host.setter
    def store_host(self, bytes host not None):
        kernel_set_host(self.k, host_span(host))

    @property
    def delays_ms(self):
        return tuple([self.k.delays_ms[place] for place in range(self.k.delay_count)])

    @delays_ms.setter
    def delays_ms(self, delays):
        cdef size_t count = len(delays)
        cdef int64_t *values = <int64_t *>malloc((count or 1) * sizeof(int64_t))
        cdef int result
        if values == NULL:
            raise MemoryError("the kernel")
        try:
            for place, delay in enumerate(delays):
                values[place] = delay
            result = kernel_delays(self.k, values, count)
        finally:
            free(values)
        check(result)

    @property
    def segment_bytes(self):
        return self.k.segment_bytes

    @property
    def append_offset(self):
        return self.k.written + <int64_t>self.k.pending.size

    @property
    def message_bytes_max(self):
        return self.k.message_bytes_max

    @message_bytes_max.setter
    def message_bytes_max(self, int64_t value):
        self.k.message_bytes_max = value

    @property
    def frame_bytes_max(self):
        return self.k.frame_bytes_max

    @frame_bytes_max.setter
    def frame_bytes_max(self, int64_t value):
        self.k.frame_bytes_max = value

    @property
    def header_bytes_max(self):
        return self.k.header_bytes_max

    @header_bytes_max.setter
    def header_bytes_max(self, int64_t value):
        self.k.header_bytes_max = value

    @property
    def pending_bytes_max(self):
        return self.k.pending_bytes_max

    @pending_bytes_max.setter
    def pending_bytes_max(self, int64_t value):
        self.k.pending_bytes_max = value

    @property
    def transfer_bytes_max(self):
        return self.k.transfer_bytes_max

    @transfer_bytes_max.setter
    def transfer_bytes_max(self, int64_t value):
        self.k.transfer_bytes_max = value

    @property
    def transfer_count_max(self):
        return self.k.transfer_count_max

    @transfer_count_max.setter
    def transfer_count_max(self, int64_t value):
        self.k.transfer_count_max = value

    @property
    def tail_bytes_max(self):
        return self.k.tail_bytes_max

    @tail_bytes_max.setter
    def tail_bytes_max(self, int64_t value):
        self.k.tail_bytes_max = value

    def mark_warm(self, block, bint is_warm):
        cdef int64_t number = int64(block)
        if number < 0 or number > QUEUE_OFFSET_MAX:
            raise ValueError(f"there is no block {block}")
        cdef int64_t *slot = &self.k.warm[number % WARM_BLOCKS]
        if is_warm:
            slot[0] = number + 1
        elif slot[0] == number + 1:
            slot[0] = 0

    @property
    def hot_from(self):
        return self.k.hot_from

    @hot_from.setter
    def hot_from(self, int64_t value):
        self.k.hot_from = value

    @property
    def suggested(self):
        return self.k.suggested

    @suggested.setter
    def suggested(self, int64_t value):
        self.k.suggested = value

    @property
    def suggested_below(self):
        return self.k.suggested_below

    @suggested_below.setter
    def suggested_below(self, int64_t value):
        self.k.suggested_below = value

    @property
    def log_min(self):
        return self.k.log_min

    @log_min.setter
    def log_min(self, int64_t value):
        self.k.log_min = value

    @property
    def mins_raised(self):
        return bool(self.k.mins_raised)

    @mins_raised.setter
    def mins_raised(self, bint value):
        self.k.mins_raised = value

    @property
    def tail_crc(self):
        return bool(self.k.tail_crc)

    @tail_crc.setter
    def tail_crc(self, bint value):
        self.k.tail_crc = value

    @property
    def accepting(self):
        return bool(self.k.accepting)

    @accepting.setter
    def accepting(self, bint value):
        self.k.accepting = value

    @property
    def force_slow(self):
        return bool(self.k.force_slow)

    @force_slow.setter
    def force_slow(self, bint value):
        self.k.force_slow = value

    @property
    def index_enabled(self):
        return bool(self.k.index_enabled)

    @index_enabled.setter
    def index_enabled(self, bint value):
        self.k.index_enabled = value

    @property
    def fast_frames(self):
        return self.k.fast_frames

    @fast_frames.setter
    def fast_frames(self, uint64_t value):
        self.k.fast_frames = value

    @property
    def left_frames(self):
        return self.k.left_frames

    @left_frames.setter
    def left_frames(self, uint64_t value):
        self.k.left_frames = value

    @property
    def put_count(self):
        return self.k.put_count

    @put_count.setter
    def put_count(self, int64_t value):
        self.k.put_count = value

    @property
    def put_bytes(self):
        return self.k.put_bytes

    @put_bytes.setter
    def put_bytes(self, int64_t value):
        self.k.put_bytes = value

    @property
    def get_count(self):
        return self.k.get_count

    @get_count.setter
    def get_count(self, int64_t value):
        self.k.get_count = value

    @property
    def get_bytes(self):
        return self.k.get_bytes

    @get_bytes.setter
    def get_bytes(self, int64_t value):
        self.k.get_bytes = value

    # -- tables -------------------------------------------------------------------------------------------------------

    cdef topic_t *_topic(self, str name) except NULL:
        cdef span_t text = text_span(name)
        if text.size > <size_t>_TOPIC_BYTES_LIMIT or memchr(text.at, 0, text.size) != NULL:
            raise ValueError(f"no topic: {text.size} bytes, of at most {_TOPIC_BYTES_LIMIT} and none of them 0")
        cdef topic_t *found = kernel_topic(self.k, text)
        if found == NULL:
            raise MemoryError("the kernel")
        return found

    cdef queue_t *_queue(self, str name, queue_id) except NULL:
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue id {queue_id} of topic {name} is no number of 31 bits")
        cdef queue_t *found = topic_queue(self._topic(name), queue_id)
        if found == NULL:
            raise MemoryError("the kernel")
        return found

    cdef queue_t *_find_queue(self, str name, queue_id) except? NULL:
        cdef topic_t *found = kernel_find_topic(self.k, text_span(name))
        if found == NULL or not 0 <= queue_id < 1 << 31:
            return NULL
        return topic_find_queue(found, queue_id)

    def set_topic(self, str name not None, int64_t write_queues, int64_t read_queues, int32_t flags):
        cdef topic_t *found = self._topic(name)
        found.write_queues = write_queues
        found.read_queues = read_queues
        found.flags = flags

    def forget_topic(self, str name not None):
        return bool(kernel_forget_topic(self.k, text_span(name)))

    def set_queue(self, str name not None, queue_id, min_offset, end):
        if not 0 <= min_offset <= end <= QUEUE_OFFSET_MAX // 2:
            raise ValueError(f"queue {name}/{queue_id} cannot hold the entries [{min_offset}, {end})")
        kernel_set_queue(self.k, self._queue(name, queue_id), min_offset, end)

    def set_queue_min(self, str name not None, queue_id, int64_t min_offset):
        self._queue(name, queue_id).min = min_offset

    def queue_state(self, str name not None, queue_id):
        cdef queue_t *found = self._find_queue(name, queue_id)
        if found == NULL:
            return QueueState(0, 0, 0, 0)
        return QueueState(found.min, found.end, found.next, found.stored)

    def queue_ids(self, str name not None):
        cdef topic_t *found = kernel_find_topic(self.k, text_span(name))
        cdef size_t place
        ids = []
        if found != NULL:
            for place in range(found.queue_room):
                if found.queues[place] != NULL:
                    ids.append(found.queues[place].id)
            ids.sort()
        return ids

    def watch(self, str name not None, queue_id, bint on):
        self._queue(name, queue_id).watched = on

    def lend_entries(self, str name not None, queue_id, first, entries):
        cdef bytes data = as_bytes(entries)
        if len(data) % ENTRY_BYTES or not 0 <= first <= QUEUE_OFFSET_MAX:
            raise ValueError(f"{len(data)} bytes from {first} on are no entries of queue {name}/{queue_id}")
        check(kernel_lend(self.k, self._queue(name, queue_id), first, bytes_span(data)))

    def tail_entries(self, str name not None, queue_id, offset, count):
        cdef queue_t *found = self._find_queue(name, queue_id)
        if found == NULL:
            return b""
        cdef span_t entries = kernel_tail_entries(found, clipped(offset), clipped(count))
        return new_bytes(entries.at, entries.size)

    def set_row(self, int64_t row, str group not None, str topic not None, bint explicit, int64_t version, codes):
        cdef _Codes wanted = _Codes(codes)
        check(kernel_set_row(self.k, text_span(group), text_span(topic), explicit, row, version, wanted.codes.at,
                             wanted.codes.count, wanted.codes.all))

    def drop_row(self, str group not None, str topic not None, bint explicit):
        kernel_drop_row(self.k, text_span(group), text_span(topic), explicit)

    def asked(self, str group not None, str topic not None, queue_id):
        if not -(1 << 31) <= queue_id < 1 << 31:
            return -1
        return kernel_asked(self.k, text_span(group), text_span(topic), queue_id)

    def map_segment(self, int64_t start, buffer):
        if start < 0 or start % self.k.segment_bytes:
            raise ValueError(f"no log file begins at {start}: they are {self.k.segment_bytes} bytes long")
        cdef int64_t place = start // self.k.segment_bytes
        cdef _View view
        cdef const mapping_t *mapping = NULL
        if buffer is None:
            kernel_map(self.k, place, span_t(NULL, 0), NULL)
            self._maps.pop(place, None)
        else:
            view = _View(buffer)
            if isinstance(buffer, MappedFile):
                mapping = (<MappedFile>buffer).m
            check(kernel_map(self.k, place, span_t(<const uint8_t *>view.buffer.buf, <size_t>view.buffer.len), mapping))
            self._maps[place] = view

    # -- appending ----------------------------------------------------------------------------------------------------

    def open_segment(self, position, segment_end):
        assert self.k.pending.size == 0, "write what is pending first"
        if not 0 <= position <= segment_end < LOG_OFFSET_MAX:
            raise ValueError(f"no log file holds the bytes [{position}, {segment_end})")
        self.k.written = position
        self.k.segment_end = segment_end

    def take(self):
        global _spare
        cdef _Taken taken
        start = self.k.written
        if self.k.pending.size < _HANDED_BYTES:
            result = start, new_bytes(self.k.pending.data, self.k.pending.size)
            kernel_taken(self.k)
            return result
        taken = _Taken.__new__(_Taken)
        taken.buffer = self.k.pending
        self.k.written += <int64_t>taken.buffer.size
        self.k.pending = _spare
        self.k.pending.size = 0
        memset(&_spare, 0, sizeof(_spare))
        return start, memoryview(taken)

    def append(
        self, str topic not None, queue_id, flag, sys_flag, born_ms, bytes born not None, reconsume_times, prepared, body, properties,
        now_ms,
    ):
        cdef message_t made
        cdef bytes body_bytes = as_bytes(body), properties_bytes = as_bytes(properties)
        memset(&made, 0, sizeof(made))
        made.born = host_span(born)
        cdef queue_t *found = self._queue(topic, queue_id)
        made.flag = int32(flag)
        made.sys_flag = int32(sys_flag)
        made.born_ms = int64(born_ms)
        made.reconsume_times = int32(reconsume_times)
        made.prepared = int64(prepared)
        made.body = bytes_span(body_bytes)
        made.properties = bytes_span(properties_bytes)
        cdef int64_t now = int64(now_ms), size = 0
        cdef bint counted = (made.sys_flag & SYS_TRANSACTION) in (0, 8)
        cdef int64_t log_offset = self.k.written + <int64_t>self.k.pending.size, queue_offset = found.next if counted else 0
        cdef int verdict = kernel_append(self.k, found, &made, now, counted, &size)
        check(verdict)
        if verdict == LEFT:
            raise ValueError(f"properties are longer than {_PROPERTIES_BYTES_MAX} bytes, or the queue is full: {found.next}")
        if verdict == FULL:
            raise SegmentFull(size)
        return log_offset, queue_offset, size

    def append_group(self, list members not None, now_ms):
        cdef size_t count = len(members), place
        cdef int64_t now = int64(now_ms), total = 0
        cdef int verdict
        if not count:
            raise ValueError("a group has at least one member")
        held = [
            member if type(member[8]) is bytes and type(member[9]) is bytes
            else (*member[:8], as_bytes(member[8]), as_bytes(member[9]))
            for member in members
        ]
        cdef placed_t *array = <placed_t *>malloc(count * sizeof(placed_t))
        try:
            if array == NULL:
                raise MemoryError("the kernel")
            memset(array, 0, count * sizeof(placed_t))
            for place in range(count):
                _topic, queue_id, flag, sys_flag, born_ms, born, reconsume_times, prepared, body, properties = held[place]
                array[place].message.born = host_span(born)
                int32(queue_id)
                array[place].message.flag = int32(flag)
                array[place].message.sys_flag = int32(sys_flag)
                array[place].message.born_ms = int64(born_ms)
                array[place].message.reconsume_times = int32(reconsume_times)
                array[place].message.prepared = int64(prepared)
                array[place].message.body = bytes_span(body)
                array[place].message.properties = bytes_span(properties)
            for place in range(count):  # queues are created only once all members are valid
                member = held[place]
                if place and member[0] is held[place - 1][0] and member[1] is held[place - 1][1]:
                    array[place].queue = array[place - 1].queue
                else:
                    array[place].queue = self._queue(member[0], member[1])
            verdict = kernel_append_group(self.k, array, count, now)
            check(verdict)
            if verdict == LEFT:
                raise ValueError(f"properties of a member are longer than {_PROPERTIES_BYTES_MAX} bytes, or a queue is full")
            if verdict == FULL:
                for place in range(count):
                    total += array[place].size
                raise SegmentFull(total)
            return [(array[place].log_offset, array[place].queue_offset, array[place].size) for place in range(count)]
        finally:
            free(array)

    def append_batch(self, tuple note not None, str topic not None, queue_id, born_ms, born, prepared, body, now_ms):
        cdef placed_t first
        cdef message_t common
        cdef int64_t now = int64(now_ms), end = 0
        memset(&first, 0, sizeof(placed_t))
        memset(&common, 0, sizeof(message_t))
        note_topic, note_queue, flag, sys_flag, note_born_ms, note_born, reconsume_times, note_prepared, note_body, note_text = note
        cdef bytes note_bytes = as_bytes(note_body), note_properties = as_bytes(note_text), data = as_bytes(body)
        first.message.born = host_span(note_born)
        first.message.flag = int32(flag)
        first.message.sys_flag = int32(sys_flag)
        first.message.born_ms = int64(note_born_ms)
        first.message.reconsume_times = int32(reconsume_times)
        first.message.prepared = int64(note_prepared)
        first.message.body = bytes_span(note_bytes)
        first.message.properties = bytes_span(note_properties)
        common.born = host_span(born)
        common.born_ms = int64(born_ms)
        common.prepared = int64(prepared)
        int32(note_queue)
        int32(queue_id)
        if not data:
            raise ValueError("a batch has at least one member")
        first.queue = self._queue(note_topic, note_queue)
        cdef queue_t *queue = self._queue(topic, queue_id)
        cdef int verdict = kernel_append_batch(self.k, &first, queue, &common, bytes_span(data), now, &end)
        check(verdict)
        if verdict == LEFT:
            return None
        if verdict == FULL:
            raise SegmentFull(first.size)
        return end

    # -- a socket read ------------------------------------------------------------------------------------------------

    def burst(self, data, Py_ssize_t position, bytes born not None, int64_t now_ms):
        cdef Py_buffer view
        cdef burst_t result
        cdef span_t born_span = host_span(born)
        cdef bytes replies = b""
        cdef kernel_t *k = self.k
        cdef int failed
        if position < 0:
            raise ValueError(f"position={position} must not be negative")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        failed = kernel_burst(k, <const uint8_t *>view.buf, <size_t>view.len, <size_t>position, born_span, now_ms, &result)
        PyBuffer_Release(&view)
        check(failed)
        if k.replies.total:
            replies = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>k.replies.total)
            gather_copy(&k.replies, <uint8_t *>PyBytes_AS_STRING(replies))
        return (
            result.consumed, result.verdict, new_bytes(k.acks.data, k.acks.size), k.written + <int64_t>k.pending.size, replies,
            pull_list(k) if k.pull_count else [], commit_list(k) if k.commit_count else [],
            note_list(&k.waiting) if k.waiting.note_count or k.waiting.parked else [],
        )

    def let_wait(self, bint halves, timer_ms_max, levels, str broker not None):
        if not 0 <= levels < 64 or not 0 <= timer_ms_max <= QUEUE_OFFSET_MAX:
            raise ValueError(f"there cannot be {levels} delay levels, and timers up to {timer_ms_max} ms")
        check(waiting_allow(&self.k.waiting, halves, timer_ms_max, levels, text_span(broker)))

    def forget_half(self, int64_t log_offset):
        halves_remove(&self.k.waiting, log_offset)

    def pull(self, str topic not None, queue_id, offset, count_max, codes, int32_t opaque, bint binary, bint warm):
        cdef asker_t asker
        asker.opaque, asker.binary = opaque, binary
        return self._pull(topic, queue_id, offset, count_max, codes, &asker, warm)

    def fetch(self, str topic not None, queue_id, offset, count_max, bint warm):
        return self._pull(topic, queue_id, offset, count_max, None, NULL, warm)

    cdef _pull(self, str topic, queue_id, offset, count_max, codes, const asker_t *asker, bint warm):
        cdef _Codes wanted = _Codes(codes)
        cdef int64_t payload[3]
        cdef bytes reply
        cdef topic_t *found = kernel_find_topic(self.k, text_span(topic))
        if not 0 <= queue_id < 1 << 31:
            found = NULL
            queue_id = 0
        gather_clear(&self.k.replies)
        cdef int verdict = kernel_pull(self.k, found, queue_id, clipped(offset), clipped(count_max), wanted.codes, asker, warm,
                                       &self.k.replies, payload)
        check(verdict)
        if verdict == FOUND:
            reply = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>self.k.replies.total)
            gather_copy(&self.k.replies, <uint8_t *>PyBytes_AS_STRING(reply))
            return PullVerdict(FOUND, reply)
        return PullVerdict(verdict, payload_tuple(verdict, payload))

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def dispatch(self, buffer, int64_t log_offset):
        cdef _View view = _View(buffer)
        cdef size_t eaten, place
        cdef kernel_t *k = self.k
        check(kernel_dispatch(k, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len, log_offset, &eaten))
        woken = []
        for place in range(k.woken_count):
            woken.append((topic_name(k.woken[place].topic), k.woken[place].queue_id))
        return eaten, woken

    def number(self, buffer):
        cdef _View view = _View(buffer)
        cdef size_t at
        cdef misnumbered_t wrong
        cdef int result = kernel_number(self.k, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len, &at, &wrong)
        check(result)
        if result == MISNUMBERED:
            topic = PyUnicode_DecodeUTF8(<const char *>wrong.topic.at, <Py_ssize_t>wrong.topic.size, NULL)
            return at, Misnumbered(at, topic, wrong.queue_id, wrong.number, wrong.expected)
        return at, None

    def rewind(self):
        assert self.k.pending.size == 0, "write what is pending first"
        kernel_rewind(self.k)

    def take_entries(self, queues_max):
        cdef int64_t left = clipped(queues_max)
        cdef queue_t *found
        cdef span_t entries
        taken = []
        kernel_trim_tails(self.k)
        while left > 0:
            found = kernel_dirty_queue(self.k)
            if found == NULL:
                break
            entries = queue_unstored(found)
            taken.append((topic_name(found.topic), found.id, found.stored, new_bytes(entries.at, entries.size)))
            kernel_stored(self.k, found)
            left -= 1
        return taken

    def dirty_queues(self):
        return self.k.dirty_count

    def take_index(self):
        result = new_bytes(self.k.index.data, self.k.index.size)
        self.k.index.size = 0
        return result


cdef tuple payload_tuple(int verdict, const int64_t *payload):
    if verdict == COLD:
        return payload[0], payload[1]
    return payload[0], payload[1], payload[2]


cdef list pull_list(kernel_t *k):
    cdef pull_t *p
    cdef size_t place
    pulls = []
    for place in range(k.pull_count):
        p = &k.pulls[place]
        pulls.append((p.verdict, p.row, p.queue_id, p.offset, p.count, p.sys_flag, p.suspend_ms, p.opaque, bool(p.binary),
                      payload_tuple(p.verdict, p.payload)))
    return pulls


cdef list commit_list(kernel_t *k):
    cdef size_t place
    commits = []
    for place in range(k.commit_count):
        commits.append((k.commits[place].row, k.commits[place].queue_id, k.commits[place].offset))
    return commits

cdef list note_list(const waiting_t *waiting):
    cdef const note_t *note
    cdef size_t place
    cdef int level
    notes = []
    for place in range(waiting.note_count):
        note = &waiting.notes[place]
        if note.kind == NOTE_OPENED:
            group = PyUnicode_DecodeUTF8(<const char *>waiting.groups.data + note.group_at, <Py_ssize_t>note.group_size, NULL)
            notes.append(HalfOpened(note.log_offset, note.queue_offset, note.number, group, topic_name(note.topic)))
        else:
            notes.append(HalfEnded(note.log_offset, note.number, note.queue_offset, note.end))
    for level in range(64):
        if waiting.parked >> level & 1:
            notes.append(LevelParked(level))
        elif not waiting.parked >> level:
            break
    return notes


# -- functions over bytes ---------------------------------------------------------------------------------------------

def scan(buffer, int64_t log_offset, bint check):
    cdef _View view = _View(buffer)
    cdef scanned_t result
    with nogil:  # uses only the bytes, which are held
        log_scan(&_crc, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len, log_offset, check, &result)
    return result.bytes, result.why, result.records, result.store_ms


def split_batch(body, bint plain):
    cdef bytes data = as_bytes(body)
    cdef span_t whole = bytes_span(data), ignored
    cdef size_t at = 0
    cdef member_t found
    members = []
    while at < whole.size:
        if not batch_next(whole, &at, &found):
            return None
        if plain and not (utf8_valid(found.properties.at, found.properties.size)
                          and plain_properties(found.properties, whole.at + whole.size, &ignored)):
            return None
        members.append((found.flag, new_bytes(found.body.at, found.body.size), new_bytes(found.properties.at, found.properties.size)))
    return members if members and (not plain or len(members) <= BATCH_MEMBERS_MAX) else None


def plain_batch(body):
    cdef bytes data = as_bytes(body)
    cdef span_t whole = bytes_span(data), ignored
    cdef size_t at = 0, count = 0, longest = 0
    cdef member_t found
    while at < whole.size:
        if not (batch_next(whole, &at, &found) and utf8_valid(found.properties.at, found.properties.size)
                and plain_properties(found.properties, whole.at + whole.size, &ignored)):
            return None
        count += 1
        longest = max(longest, found.properties.size)
    return (count, longest) if 0 < count <= <size_t>BATCH_MEMBERS_MAX else None


# -- columns ----------------------------------------------------------------------------------------------------------

def locate(buffer, int64_t log_offset, bint check, count_max):
    cdef _View view = _View(buffer)
    cdef located_t result
    cdef size_t room = min(max(count_max, 0), view.buffer.len // RECORD_BYTES_MIN + 1)
    cdef place_t *places = <place_t *>malloc((room or 1) * PLACE_BYTES)  # unused pages are never touched
    if places == NULL:
        raise MemoryError("the places of records")
    try:
        with nogil:  # uses only the bytes, which are held
            records_locate(&_crc, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len, log_offset, check, places, room, &result)
        return (PyByteArray_FromStringAndSize(<char *>places, <Py_ssize_t>(result.count * PLACE_BYTES)), result.count, result.bytes,
                result.why)
    finally:
        free(places)


def bodies_of(bytes data not None, bytes places not None, Py_ssize_t first, Py_ssize_t end):
    cdef const place_t *all = <const place_t *>PyBytes_AS_STRING(places)
    cdef const int64_t *place
    cdef list made = []
    cdef Py_ssize_t n
    if not 0 <= first <= end <= len(places) // <Py_ssize_t>PLACE_BYTES:
        raise IndexError("no such places")
    for n in range(first, end):
        place = <const int64_t *>&all[n]
        if place[8] < 0 or place[9] < 0 or place[8] > len(data) or place[9] > len(data) - place[8]:
            raise ValueError("a place lies outside of its bytes")
        made.append(PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + place[8], <Py_ssize_t>place[9]))
    return made


def index_plain(buffer, int64_t offset, int64_t next_offset):
    cdef _View view = _View(buffer)
    cdef located_t result
    cdef size_t room = view.buffer.len // RECORD_BYTES_MIN + 1
    cdef place_t *places = <place_t *>malloc(room * PLACE_BYTES)  # unused pages are never touched
    cdef c_bool plain
    if places == NULL:
        raise MemoryError("the places of records")
    try:
        with nogil:  # uses only the bytes, which are held
            records_locate(&_crc, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len, -1, True, places, room, &result)
            plain = result.bytes == <size_t>view.buffer.len and records_plain(places, result.count, offset, next_offset)
        return new_bytes(<const uint8_t *>places, result.count * PLACE_BYTES) if plain else None
    finally:
        free(places)


def property_rows(bytes records not None, tuple names not None):
    cdef span_t wanted[VALUES_MAX]
    cdef valued_t found
    cdef size_t count = <size_t>len(names), place, at = 0, size = <size_t>len(records)
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef tuple values
    cdef list rows = []
    if count > VALUES_MAX:
        raise ValueError(f"{count} properties are asked for, {VALUES_MAX} at most")
    for place in range(count):
        wanted[place] = bytes_span(names[place])
    while at < size and record_values(data + at, size - at, wanted, count, &found) == SCAN_RECORD:
        if count:
            values = PyTuple_New(<Py_ssize_t>count)
            for place in range(count):
                value = None
                if found.values[place].size:
                    value = PyUnicode_DecodeUTF8(<const char *>found.values[place].at, <Py_ssize_t>found.values[place].size, "replace")
                Py_INCREF(value)
                PyTuple_SET_ITEM(values, <Py_ssize_t>place, value)
        else:
            values = (new_bytes(found.properties.at, found.properties.size),)
        rows.append((found.queue_offset, at, at + found.size, values))
        at += found.size
    return rows, at


cdef int check_column(int64_t result) except -1:
    if result == NO_MEMORY:
        raise MemoryError("a column")
    if result == BAD_PLACE:
        raise ValueError("a place does not lie within the data")
    if result == COLUMN_TOO_LARGE:
        raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
    return 0


cdef tuple span_column(const sources_t *sources, const place_t *places, size_t count, bint topics):
    cdef int64_t size
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>((count + 1) * sizeof(int32_t)))
    cdef bytes data
    cdef int32_t *offsets_at = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef uint8_t *data_at
    cdef int result
    size = column_measure(sources, places, count, topics)
    if size < 0:
        check_column(size)
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    data_at = <uint8_t *>PyBytes_AS_STRING(data)
    with nogil:
        result = column_write(sources, places, count, topics, offsets_at, data_at)
    check_column(result)
    return None, offsets, data


cdef tuple text_column(const texts_t *texts):
    return (new_bytes(texts.valid.data, texts.valid.size) if texts.nulls else None, new_bytes(texts.offsets.data, texts.offsets.size),
            new_bytes(texts.data.data, texts.data.size))


def columns(data, extra, places, int wanted):
    cdef _View first = _View(data), second = _View(extra), table = _View(places)
    cdef sources_t sources
    cdef property_columns_t found
    cdef const place_t *at = <const place_t *>table.buffer.buf
    cdef size_t count = table.buffer.len // PLACE_BYTES
    cdef int result
    if table.buffer.len % PLACE_BYTES:
        raise ValueError(f"{table.buffer.len} bytes are no places: each takes {PLACE_BYTES}")
    sources.data = span_t(<const uint8_t *>first.buffer.buf, <size_t>first.buffer.len)
    sources.extra = span_t(<const uint8_t *>second.buffer.buf, <size_t>second.buffer.len)
    made = {}
    if wanted & COLUMN_TOPIC:
        made[COLUMN_TOPIC] = span_column(&sources, at, count, True)
    if wanted & COLUMN_BODY:
        made[COLUMN_BODY] = span_column(&sources, at, count, False)
    if wanted & (COLUMN_ID | COLUMN_KEYS | COLUMN_TAGS | COLUMN_PROPERTIES):
        memset(&found, 0, sizeof(found))
        try:
            with nogil:
                result = columns_from_properties(&sources, at, count, wanted, &found)
            check_column(result)
            if wanted & COLUMN_ID:
                made[COLUMN_ID] = text_column(&found.ids)
            if wanted & COLUMN_KEYS:
                made[COLUMN_KEYS] = text_column(&found.keys)
            if wanted & COLUMN_TAGS:
                made[COLUMN_TAGS] = text_column(&found.tags)
            if wanted & COLUMN_PROPERTIES:
                made[COLUMN_PROPERTIES] = (
                    new_bytes(found.maps.offsets.data, found.maps.offsets.size), *text_column(&found.maps.names)[1:],
                    *text_column(&found.maps.values)[1:],
                )
        finally:
            columns_free(&found)
    return made


# -- batches of columns -----------------------------------------------------------------------------------------------

cdef class _Column:
    """A text or binary column in Arrow's layout, its buffers held for as long as this object lives."""
    cdef column_t column
    cdef Py_ssize_t rows
    cdef list _held

    def __cinit__(self, given, count=None):
        cdef _View view
        valid, offsets, data = given
        self._held = []
        view = _View(offsets)
        self._held.append(view)
        self.column.offsets = <const int32_t *>view.buffer.buf
        self.rows = view.buffer.len // <Py_ssize_t>sizeof(int32_t) - 1
        view = _View(data)
        self._held.append(view)
        self.column.data = span_t(<const uint8_t *>view.buffer.buf, <size_t>view.buffer.len)
        self.column.valid = span_t(NULL, 0)
        wanted = self.rows if count is None else count
        if valid is not None:
            view = _View(valid)
            self._held.append(view)
            self.column.valid = span_t(<const uint8_t *>view.buffer.buf, <size_t>view.buffer.len)
        if self.rows < 0 or self.rows < wanted or (valid is not None and self.column.valid.size * 8 < wanted):
            raise ValueError(f"a column of {wanted} rows has {self.rows + 1} offsets or too few validity bits")


cdef int check_row(int64_t result, size_t row) except -1:
    if result == ROW_TOO_LONG:
        raise BadRow(row, f"its properties take more than {_PROPERTIES_BYTES_MAX} bytes")
    if result == ROW_SEPARATOR:
        raise BadRow(row, "a property holds a separator (0x01 or 0x02)")
    if result == ROW_EMPTY:
        raise BadRow(row, "a property has an empty name or value, which RocketMQ would drop")
    return check_column(result)


def column_of(values):
    cdef list given = values if type(values) is list else list(values)
    cdef Py_ssize_t count = len(given), n, size = 0
    cdef int64_t end = 0
    cdef const char *text = NULL
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * <Py_ssize_t>sizeof(int32_t)), data
    cdef int32_t *ends = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef char *at
    ends[0] = 0
    for n in range(count):
        value = given[n]
        if isinstance(value, bytes):
            size = len(<bytes>value)
        else:
            text = PyUnicode_AsUTF8AndSize(value, &size)
        end += size
        if end > 0x7FFFFFFF:
            raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
        ends[n + 1] = <int32_t>end
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>end)
    at = PyBytes_AS_STRING(data)
    # No Python code runs between the two loops: the values are the ones that were measured.
    for n in range(count):
        value = given[n]
        size = ends[n + 1] - ends[n]
        if isinstance(value, bytes):
            memcpy(at + ends[n], PyBytes_AS_STRING(value), <size_t>size)
        else:
            text = PyUnicode_AsUTF8AndSize(value, &size)
            memcpy(at + ends[n], text, <size_t>size)
    return None, offsets, data


def property_texts(count, named, mapped, left_out):
    cdef text_job_t job
    cdef bytes_t offsets, data
    cdef size_t row = 0
    cdef Py_ssize_t place
    cdef int result
    cdef _Column column, names = None, values = None
    cdef _View map_offsets = None, map_valid = None
    cdef list columns = [_Column(given, count) for _, given in named]
    cdef list texts = [as_bytes(name) for name, _ in named], skipped = [as_bytes(name) for name in left_out]
    cdef named_column_t *named_at = <named_column_t *>malloc((len(columns) or 1) * sizeof(named_column_t))
    cdef span_t *skipped_at = <span_t *>malloc((len(skipped) or 1) * sizeof(span_t))
    memset(&job, 0, sizeof(job))
    memset(&offsets, 0, sizeof(offsets))
    memset(&data, 0, sizeof(data))
    try:
        if named_at == NULL or skipped_at == NULL:
            raise MemoryError("properties")
        for place in range(len(columns)):
            column = columns[place]
            named_at[place].name = bytes_span(texts[place])
            named_at[place].column = column.column
        for place in range(len(skipped)):
            skipped_at[place] = bytes_span(skipped[place])
        job.named, job.named_count, job.count = named_at, len(columns), count
        job.left_out, job.left_out_count = skipped_at, len(skipped)
        if mapped is not None:
            valid, starts, given_names, given_values = mapped
            map_offsets, names = _View(starts), _Column(given_names)
            values = _Column(given_values, names.rows)
            if map_offsets.buffer.len // <Py_ssize_t>sizeof(int32_t) < count + 1 or (valid is not None and len(valid) * 8 < count):
                raise ValueError(f"a column of {count} rows has {map_offsets.buffer.len // 4} offsets or too few validity bits")
            if valid is not None:
                map_valid = _View(valid)
                job.map_valid = span_t(<const uint8_t *>map_valid.buffer.buf, <size_t>map_valid.buffer.len)
            job.map_offsets = <const int32_t *>map_offsets.buffer.buf
            job.map_names, job.map_values, job.map_count = names.column, values.column, names.rows
        with nogil:
            result = texts_build(&job, &offsets, &data, &row)
        if result:
            check_row(result, row)
        return None, new_bytes(offsets.data, offsets.size), new_bytes(data.data, data.size)
    finally:
        free(named_at)
        free(skipped_at)
        free(offsets.data)
        free(data.data)


def batch_body(bodies, texts, rows, size_t first, size_t bytes_max, size_t count_max, bytes id_prefix not None, uint64_t first_id):
    cdef _Column body_column = _Column(bodies), text_column = _Column(texts, body_column.rows)
    cdef _View wanted = _View(rows)
    cdef batch_job_t job
    cdef bytes_t made
    cdef int64_t taken
    cdef size_t failed = 0
    if len(id_prefix) != 0 and len(id_prefix) != 10:
        raise ValueError(f"a prefix of ids has 10 bytes, or none; got {len(id_prefix)}")
    memset(&made, 0, sizeof(made))
    job.bodies, job.texts, job.count = body_column.column, text_column.column, body_column.rows
    job.rows, job.row_count = <const int32_t *>wanted.buffer.buf, wanted.buffer.len // <Py_ssize_t>sizeof(int32_t)
    job.bytes_max, job.count_max, job.id_prefix, job.first_id = bytes_max, count_max, bytes_span(id_prefix), first_id
    try:
        with nogil:
            taken = batch_build(&job, first, &made, &failed)
        if taken < 0:
            check_row(taken, failed)
        return new_bytes(made.data, made.size), taken
    finally:
        free(made.data)


def batch_checksum(body):
    cdef bytes data = as_bytes(body)
    cdef span_t whole = bytes_span(data)
    cdef int64_t total
    with nogil:
        total = batch_sum(&_crc, whole)
    if total < 0:
        raise ValueError("the lengths of a batch do not fit")
    return total


# -- the key index ----------------------------------------------------------------------------------------------------

def index_apply(slots, pending, position, count, capacity, int64_t begin_ms):
    cdef _View table = _View(slots, True)
    cdef bytes data = as_bytes(pending)
    cdef span_t source = bytes_span(data)
    cdef indexed_t result
    cdef bytes entries
    cdef int64_t entry_count
    if not table.buffer.len or table.buffer.len % 4 or source.size % INDEX_PENDING_BYTES:
        raise ValueError(f"{table.buffer.len} bytes of slots or {source.size} bytes of pending entries cannot be")
    if (not 0 <= position <= len(data) or position % INDEX_PENDING_BYTES or not 1 <= count < 1 << 31 or capacity >= 1 << 31):
        raise ValueError(f"position={position} count={count} capacity={capacity}: out of range")
    entry_count = min((len(data) - position) // INDEX_PENDING_BYTES, max(capacity - count, 0))
    entries = PyBytes_FromStringAndSize(NULL, entry_count * INDEX_ENTRY_BYTES)
    c_index_apply(<uint8_t *>table.buffer.buf, <size_t>table.buffer.len // 4, source, position, count, clipped(capacity), begin_ms,
                  <uint8_t *>PyBytes_AS_STRING(entries), &result)
    return entries, result.position, result.count, result.fresh


def index_link(slots, entries, number, int64_t last):
    cdef _View table = _View(slots, True)
    cdef bytes data = as_bytes(entries)
    cdef span_t source = bytes_span(data)
    cdef linked_t result
    cdef int32_t first
    if not table.buffer.len or table.buffer.len % 4 or source.size % INDEX_ENTRY_BYTES:
        raise ValueError(f"{table.buffer.len} bytes of slots or {source.size} bytes of entries cannot be")
    if not 1 <= number < (1 << 31) - len(data) // INDEX_ENTRY_BYTES:
        raise ValueError(f"number={number}: out of range")
    first = number
    with nogil:  # uses only the slots and the entries, which are held
        c_index_link(<uint8_t *>table.buffer.buf, <size_t>table.buffer.len // 4, source, first, last, &result)
    return result.number, result.last, result.fresh


def crc32(data, bint portable=False):
    """zlib's CRC-32, by either implementation: for tests and benchmarks."""
    cdef _View view = _View(data)
    return crc32_of(&_crc_portable if portable else &_crc, <const uint8_t *>view.buffer.buf, <size_t>view.buffer.len)


def java_hash(data):
    """java.lang.String.hashCode of UTF-8 text, as signed 32 bits."""
    cdef bytes text = as_bytes(data)
    return <int32_t>hash_on(0, <const uint8_t *>PyBytes_AS_STRING(text), <size_t>len(text))


# -- group commit -----------------------------------------------------------------------------------------------------

include "sends.pxi"


cdef class Flusher:
    cdef flusher_t *f
    cdef int64_t _durable
    cdef int _error

    def __cinit__(self):
        self.f = flusher_new()
        if self.f == NULL:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.f != NULL:
            with nogil:
                flusher_stop(self.f)
            flusher_free(self.f)

    def fileno(self):
        return flusher_descriptor(self.f) if self.f != NULL else -1

    def request(self, int fd, int64_t offset):
        if self.f == NULL:
            raise ValueError("the flusher is closed")
        if flusher_request(self.f, fd, offset):
            raise MemoryError("the flusher")

    def take(self):
        if self.f != NULL:
            flusher_take(self.f, &self._durable, &self._error)
        return self._durable, self._error

    def cut(self, int64_t offset):
        cdef flusher_t *f = self.f
        if f != NULL:
            with nogil:
                flusher_cut(f, offset)

    def close(self):
        cdef flusher_t *closing = self.f
        if closing == NULL:
            return
        self.f = NULL
        with nogil:
            flusher_stop(closing)
        flusher_take(closing, &self._durable, &self._error)
        flusher_free(closing)

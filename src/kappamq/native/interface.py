"""The interface of a kernel: the compiled one and its twin both implement it.

The *kernel* is what happens once per message: parsing a burst of frames, appending records, answering plain pulls, entering records
into queues. `_kernel` is compiled from C; `pure` is its *twin* in Python: it defines the behaviour, serves as the oracle in tests, and
is used where there is no compiler.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from kappamq.native.layout import (
    BurstTuple,
    Column,
    MapColumn,
    MapInput,
    Misnumbered,
    PropertyRow,
    PullVerdict,
    QueueState,
)
from kappamq.native.pure_batches import CallbackSink as Called
from kappamq.native.pure_batches import SendEntry as Entry
from kappamq.native.pure_record import Buffer, GroupMember, Member


@runtime_checkable
class Flusher(Protocol):
    """Group commit: makes files durable in the background, with one sync for all requests that arrived during the last one. flusher.py
    defines its behaviour; flusher.c does it in a thread that needs no GIL."""

    def request(self, fd: int, offset: int, /) -> None:
        """Make everything written to `fd` so far durable, then report `offset`. Keep `fd` open until it is reported."""

    def take(self) -> tuple[int, int]:
        """(newest durable offset, 0); once a sync has failed, (the newest offset before that, its errno) for ever."""

    def cut(self, offset: int, /) -> None:
        """The log is about to be cut to `offset`: earlier requests make nothing behind it durable. Waits for the running sync."""

    def fileno(self) -> int:
        """A descriptor for an event loop: readable when there is something to `take()`; -1 once closed."""

    def close(self) -> None:
        """Finish all requests and stop. `take()` still returns the result. Closing twice has no effect."""


class Kernel(Protocol):
    # -- limits and switches -----------------------------------------------------------------------------------------------

    store_host: bytes
    delays_ms: tuple[int, ...]
    message_bytes_max: int
    frame_bytes_max: int
    header_bytes_max: int
    pending_bytes_max: int
    transfer_bytes_max: int
    transfer_count_max: int
    tail_bytes_max: int
    tail_crc: bool
    accepting: bool
    force_slow: bool
    index_enabled: bool

    @property
    def segment_bytes(self) -> int: ...

    # -- counters ----------------------------------------------------------------------------------------------------------

    fast_frames: int
    left_frames: int
    put_count: int
    put_bytes: int
    get_count: int
    get_bytes: int

    # -- topics and queues -------------------------------------------------------------------------------------------------

    def set_topic(self, name: str, write_queues: int, read_queues: int, flags: int) -> None: ...

    def forget_topic(self, name: str) -> bool: ...

    def set_queue(self, name: str, queue_id: int, min_offset: int, end: int) -> None: ...

    def set_queue_min(self, name: str, queue_id: int, min_offset: int) -> None: ...

    def queue_state(self, name: str, queue_id: int) -> QueueState: ...

    def queue_ids(self, name: str) -> list[int]: ...

    def watch(self, name: str, queue_id: int, on: bool) -> None: ...

    def lend_entries(self, name: str, queue_id: int, first: int, entries: bytes) -> None: ...

    def tail_entries(self, name: str, queue_id: int, offset: int, count: int) -> bytes: ...

    # -- subscriptions whose pulls the kernel may answer alone -------------------------------------------------------------

    def set_row(
        self, row: int, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None
    ) -> None: ...

    def drop_row(self, group: str, topic: str, explicit: bool) -> None: ...

    def asked(self, group: str, topic: str, queue_id: int) -> int: ...

    # -- the log -----------------------------------------------------------------------------------------------------------

    hot_from: int
    suggested: int
    """Id of the broker of the group to suggest for pulls below the log offset `suggested_below`; 0 is suggested for the others."""
    suggested_below: int
    log_min: int
    mins_raised: bool

    @property
    def append_offset(self) -> int: ...

    def map_segment(self, start: int, buffer: Any) -> None:
        """Read the records of the file that begins at `start` from this buffer, of any type; None: the file is gone."""

    def open_segment(self, position: int, segment_end: int) -> None: ...

    def mark_warm(self, block: int, is_warm: bool) -> None: ...

    def take(self) -> tuple[int, bytes | memoryview]:
        """Offset and bytes of what was appended; the caller must write them now."""
        ...

    # -- messages that wait ------------------------------------------------------------------------------------------------

    def let_wait(self, halves: bool, timer_ms_max: int, levels: int, broker: str) -> None: ...

    def forget_half(self, log_offset: int) -> None: ...

    # -- what happens per message ------------------------------------------------------------------------------------------

    def burst(self, data: Buffer, position: int, born: bytes, now_ms: int) -> BurstTuple: ...

    def append(
        self,
        topic: str,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born: bytes,
        reconsume_times: int,
        prepared: int,
        body: bytes,
        properties: bytes,
        now_ms: int,
    ) -> tuple[int, int, int]: ...

    def append_group(self, members: list[GroupMember], now_ms: int) -> list[tuple[int, int, int]]: ...

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

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        codes: frozenset[int] | None,
        opaque: int,
        binary: bool,
        warm: bool,
    ) -> PullVerdict: ...

    def fetch(self, topic: str, queue_id: int, offset: int, count_max: int, warm: bool) -> PullVerdict: ...

    def dispatch(self, buffer: Buffer, log_offset: int) -> tuple[int, list[tuple[str, int]]]: ...

    # -- bytes of another broker's log -------------------------------------------------------------------------------------

    def number(self, buffer: Buffer) -> tuple[int, Misnumbered | None]:
        """Raise the next offsets of queues by whole records that were not appended here and are not dispatched yet. Returns how many bytes
        were processed, and the first record that is not the next message of its queue; if there is one, the call changes nothing."""

    def rewind(self) -> None:
        """The log was cut: the next message of a queue is the one behind its last dispatched one. Then call `number` with the remaining
        records that are not dispatched."""

    # -- what goes to the files derived from the log -----------------------------------------------------------------------

    def take_entries(self, queues_max: int) -> list[tuple[str, int, int, bytes]]: ...

    def dirty_queues(self) -> int: ...

    def take_index(self) -> bytes: ...


MakesKernel = Callable[..., Kernel]
MakesFlusher = Callable[[], Flusher]


Located = tuple[bytearray, int, int, int]
"""Places of records (layout.PLACE), how many, bytes read, and why it stopped."""
Locate = Callable[[Buffer, int, bool, int], Located]
Columns = Callable[[Buffer, Buffer, Buffer, int], dict[int, Column | MapColumn]]


class ColumnsModule(Protocol):
    """Turns stored records into columns: a kernel, or numpy on Spark executors without one."""

    @property
    def locate(self) -> Locate: ...

    @property
    def columns(self) -> Columns: ...


class KernelModule(Protocol):
    """A module with a kernel, and the stateless loops over record bytes. The twin documents each function."""

    NAME: str
    Kernel: MakesKernel
    Flusher: MakesFlusher
    SegmentFull: type[Exception]
    # pure_index
    index_apply: Callable[[bytearray | memoryview, bytes, int, int, int, int], tuple[bytes, int, int, int]]
    index_link: Callable[[bytearray | memoryview, bytes, int, int], tuple[int, int, int]]
    # pure_record
    scan: Callable[[Buffer, int, bool], tuple[int, int, int, int]]
    crc32: Callable[[Buffer], int]
    split_batch: Callable[[bytes, bool], list[Member] | None]
    plain_batch: Callable[[bytes], tuple[int, int] | None]
    # pure_batches
    batch_body: Callable[[Column, Column, Buffer | array[int], int, int, int, bytes, int], tuple[bytes, int]]
    batch_checksum: Callable[[bytes], int]
    column_of: Callable[[Sequence[str | bytes]], Column]
    property_texts: Callable[[int, Sequence[tuple[bytes, Column]], MapInput | None, Iterable[bytes]], Column]
    # pure_columns
    locate: Locate
    bodies_of: Callable[[bytes, bytes, int, int], list[bytes]]
    index_plain: Callable[[Buffer, int, int], bytes | None]
    columns: Columns
    property_rows: Callable[[bytes, tuple[bytes, ...]], tuple[list[PropertyRow], int]]
    CallbackSink: type[Called]
    SendEntry: type[Entry]
    quick_messages: Callable[[type[Any], tuple[str, ...]], None]
    entries_by_topic: Callable[[list[Entry]], tuple[list[tuple[str, list[Entry]]], float]]
    front_entries: Callable[[deque[Entry], int, int], tuple[list[Entry], list[Entry], int]]
    settle_entries: Callable[[list[Entry], list[Any], set[Entry]], None]
    unique_ids: Callable[[str, int, int], list[str]]
    filled_objects: Callable[..., list[Any]]

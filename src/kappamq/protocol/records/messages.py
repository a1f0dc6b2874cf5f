"""The messages of one answer, lying in its bytes: no field is decoded before somebody asks for it.

`messages_in_place` checks and indexes all records of an answer in one native pass (columns.c, whose meaning is pure_columns.py). What it
does not take (damaged records, compressed bodies, batches within a record) is read record by record, by those who know what
to do about it. A `MessageBlock` is a part of the messages of an answer; consumers hold and hand out blocks, and make the objects that
applications see when these are taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast, overload

from kappamq.message import LAZY_SLOTS, MessageQueue, ReceivedMessage, stored_message
from kappamq.native.layout import COLUMN_TAGS, PLACE, PLACE_BYTES, Column
from kappamq.protocol.records import properties
from kappamq.protocol.records.tags import Subscription, keys_of
from kappamq.protocol.records.view import RecordView, address_text

try:
    from kappamq.native._kernel import bodies_of as _bodies_of
    from kappamq.native._kernel import columns as _columns
    from kappamq.native._kernel import filled_objects as _filled_objects
    from kappamq.native._kernel import index_plain as _index_plain
except ImportError:
    from kappamq.native.pure_batches import filled_objects as _filled_objects
    from kappamq.native.pure_columns import bodies_of as _bodies_of
    from kappamq.native.pure_columns import columns as _columns
    from kappamq.native.pure_columns import index_plain as _index_plain

_LONGS: Final = PLACE_BYTES // 8
_QUEUE_OFFSET, _BODY_BYTES = 3, 9  # which of the numbers of a place (see layout.PLACE)
_BODY_SPAN: Final = struct.Struct("=qq")
_BODY_SPAN_AT: Final = 8 * 8
_OFFSET_TYPE: Final = "i"
_FEW: Final = 8
SMALL_BYTES: Final = 1024
"""Bodies of messages that are no larger, in the middle, are copied for all that are handed out: nearly everybody reads them, and a
copy costs less than noticing that it is needed."""
_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_MULTI_DISPATCH: Final = properties.MULTI_DISPATCH.encode()


class StoredMessages:
    """Where the messages of an answer lie, and what their fields are. Never changes, so any thread may read."""

    __slots__ = ("_broker", "_data", "_names", "_places", "_queue", "_retried")

    def __init__(self, data: bytes, places: bytes, broker: str, *, original_topics: bool) -> None:
        self._data = data
        self._places = places
        self._broker = broker
        # A redelivered message is shown with the topic it was first sent to; most answers have none, and are not asked twice.
        self._retried = original_topics and _RETRY_TOPIC in data
        # What was decoded last: whoever asks for one of the properties, or for the queue, often asks for another one at once.
        self._names: tuple[int, dict[str, str]] = (-1, {})
        self._queue: tuple[bytes, int, MessageQueue] | None = None

    @property
    def pinned_bytes(self) -> int:
        return len(self._data) + len(self._places)

    @property
    def count(self) -> int:
        return len(self._places) // PLACE_BYTES

    def field(self, number: int, name: str) -> Any:
        if name == "body":
            at, size = _BODY_SPAN.unpack_from(self._places, number * PLACE_BYTES + _BODY_SPAN_AT)
            return self._data[at : at + size]
        return _READ[name](self, number, RecordView(self._data, PLACE.unpack_from(self._places, number * PLACE_BYTES)))

    def objects(self, first: int, end: int) -> list[ReceivedMessage]:
        """The messages [first, end), each made anew."""
        numbers, count = list(range(first, end)), end - first
        number, body, stored = LAZY_SLOTS
        if len(self._data) > self.count * SMALL_BYTES:
            return _filled_objects(ReceivedMessage, (number, stored), (numbers,), (self,), count)
        bodies = _bodies_of(self._data, self._places, first, end)
        return _filled_objects(ReceivedMessage, (number, body, stored), (numbers, bodies), (self,), count)

    def numbers(self, which: int, first: int, end: int) -> Sequence[int]:
        """One number of each place."""
        found = memoryview(self._places).cast("q")[first * _LONGS + which : end * _LONGS : _LONGS]
        return found if end - first > _FEW else found.tolist()  # a view of a few numbers takes more memory than they do

    def names(self, number: int, view: RecordView) -> dict[str, str]:
        """The properties that an application may see."""
        known, names = self._names
        if known != number:
            names = view.property_map()
            for private in properties.PRIVATE.intersection(names):
                del names[private]
            self._names = number, names
        return names

    def topic(self, number: int, view: RecordView) -> str:
        first_topic = self.names(number, view).get(properties.RETRY_TOPIC) if self._retried else None
        return first_topic or view.topic

    def queue(self, view: RecordView) -> MessageQueue:
        topic, queue_id = view.topic_bytes, view.queue_id
        last = self._queue
        if last is None or last[0] != topic or last[1] != queue_id:
            last = self._queue = topic, queue_id, MessageQueue(view.topic, self._broker, queue_id)
        return last[2]

    def only(self, numbers: Sequence[int]) -> StoredMessages:
        """The same without the other messages."""
        places = b"".join(self._places[n * PLACE_BYTES : (n + 1) * PLACE_BYTES] for n in numbers)
        return StoredMessages(self._data, places, self._broker, original_topics=self._retried)

    def matching(self, tags: Subscription) -> StoredMessages:
        """Only the messages that a subscription wants."""
        if tags.everything:
            return self
        _valid, offsets, text = cast(Column, _columns(self._data, b"", self._places, COLUMN_TAGS)[COLUMN_TAGS])
        wanted = {tag.encode("utf-8", "surrogatepass") for tag in tags.tags}
        ends = memoryview(offsets).cast(_OFFSET_TYPE).tolist()
        chosen = [n for n in range(self.count) if text[ends[n] : ends[n + 1]] in wanted]
        return self if len(chosen) == self.count else self.only(chosen)


_READ: Final[dict[str, Callable[[StoredMessages, int, RecordView], Any]]] = {
    "topic": lambda stored, number, view: stored.topic(number, view),
    "queue": lambda stored, number, view: stored.queue(view),
    "queue_offset": lambda stored, number, view: view.queue_offset,
    "log_offset": lambda stored, number, view: view.log_offset,
    "message_id": lambda stored, number, view: stored.names(number, view).get(properties.UNIQUE_KEY) or view.offset_id,
    "offset_id": lambda stored, number, view: view.offset_id,
    "tags": lambda stored, number, view: stored.names(number, view).get(properties.TAGS, ""),
    "keys": lambda stored, number, view: tuple(keys_of(stored.names(number, view).get(properties.KEYS))),
    "properties": lambda stored, number, view: dict(stored.names(number, view)),  # the application may change its own
    "born_ms": lambda stored, number, view: view.born_ms,
    "stored_ms": lambda stored, number, view: view.stored_ms,
    "born_host": lambda stored, number, view: address_text(view.born),
    "store_host": lambda stored, number, view: address_text(view.store),
    "reconsume_times": lambda stored, number, view: view.reconsume_times,
    "sys_flag": lambda stored, number, view: view.sys_flag,
    "flag": lambda stored, number, view: view.flag,
    "body_crc": lambda stored, number, view: view.body_crc,
    "prepared_offset": lambda stored, number, view: view.prepared_offset,
    "stored_bytes": lambda stored, number, view: view.size,
}


class MessageBlock(Sequence[ReceivedMessage]):
    """Some messages of an answer, in a row. Its objects are made anew each time one is asked for; a slice is a block."""

    __slots__ = ("_end", "_first", "_stored")

    def __init__(self, stored: StoredMessages, first: int, end: int) -> None:
        self._stored = stored
        self._first = first
        self._end = end

    def __len__(self) -> int:
        return self._end - self._first

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._stored.objects(self._first, self._end))

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> MessageBlock: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | MessageBlock:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a block of messages has no slices with steps")
            return MessageBlock(self._stored, self._first + first, self._first + max(first, end))
        number = self._end + index if index < 0 else self._first + index
        if not self._first <= number < self._end:
            raise IndexError("no such message in this block")
        return stored_message(self._stored, number)

    @property
    def offsets(self) -> Sequence[int]:
        """The queue offsets, ascending."""
        return self._stored.numbers(_QUEUE_OFFSET, self._first, self._end)

    @property
    def body_sizes(self) -> Sequence[int]:
        return self._stored.numbers(_BODY_BYTES, self._first, self._end)


def messages_in_place(
    data: bytes, broker: str, offset: int, next_offset: int, *, original_topics: bool = False
) -> StoredMessages | None:
    """The messages of a pull's answer that covers the queue offsets [offset, next_offset), if all records can be used as they lie there.

    None: something has to be looked at record by record. `original_topics`: show redelivered messages with their first topic.
    """
    if _MULTI_DISPATCH in data:
        return None  # records of other queues, whose offsets are not those of this one
    places = _index_plain(data, offset, next_offset)
    return None if places is None else StoredMessages(data, places, broker, original_topics=original_topics)

"""Plain values that every package may import: what a user sends and receives.

Nothing here knows the wire format. Properties reserved by RocketMQ (KEYS, TAGS, DELAY, WAIT ...) are fields of their
own and never in `properties` of a `Message`; the protocol layer translates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message to send. `body` may be any buffer, and `keys` a str or any iterable of them.

    >>> Message("orders", b"42 cups", tags="paid", keys=("order-7", "customer-3"))  # doctest: +ELLIPSIS
    Message(topic='orders', body=b'42 cups', ...
    """

    topic: str
    body: bytes
    tags: str = ""  # one tag; consumers can filter by it without the broker reading the message
    keys: tuple[str, ...] = ()  # indexed for queries (`kappamq query key`); a key must not contain blanks
    properties: Mapping[str, str] = field(default_factory=dict)  # the application's own; values must not be empty
    flag: int = 0  # 32 bits for the application
    delay_level: int = 0  # 1..18, a delay level of the broker; 0 delivers at once
    wait_stored: bool = True  # False: answered without waiting for flush or replication
    sharding_key: str = ""  # messages with the same key go to the same queue, in order
    transaction_id: str = ""
    delay: float | timedelta | None = None  # seconds until delivery, to the millisecond
    deliver_at: int | datetime | None = None  # delivery time: a datetime, or milliseconds since 1970

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        tags: str = "",
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        flag: int = 0,
        delay_level: int = 0,
        wait_stored: bool = True,
        sharding_key: str = "",
        transaction_id: str = "",
        delay: float | timedelta | None = None,
        deliver_at: int | datetime | None = None,
    ) -> None:
        # What a dataclass would generate takes four times as long, and a program makes many of these.
        _set_topic(self, topic)
        _set_body(self, body)
        _set_tags(self, tags)
        _set_keys(self, keys)
        _set_properties(self, {} if properties is _NO_PROPERTIES else properties)
        _set_flag(self, flag)
        _set_delay_level(self, delay_level)
        _set_wait_stored(self, wait_stored)
        _set_sharding_key(self, sharding_key)
        _set_transaction_id(self, transaction_id)
        _set_delay(self, delay)
        _set_deliver_at(self, deliver_at)
        if not (
            type(topic) is str
            and topic
            and type(body) is bytes
            and type(tags) is str
            and (not tags or (tags.isalnum() and tags != "*"))
            and type(keys) is tuple
            and not keys
            and properties is _NO_PROPERTIES
        ):
            self._check_what_is_said()
        if not (
            type(flag) is int
            and not flag
            and type(delay_level) is int
            and not delay_level
            and wait_stored is True
            and type(sharding_key) is str
            and type(transaction_id) is str
            and delay is None
            and deliver_at is None
        ):
            self._check_how_it_is_sent()

    def _check_what_is_said(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise TypeError(f"the topic of a message must be a non-empty str; got {self.topic!r}")
        if isinstance(self.body, str):
            raise TypeError("a message body must be bytes; encode the text first, for example body.encode()")
        if not isinstance(self.body, bytes):
            try:
                object.__setattr__(self, "body", bytes(memoryview(self.body)))
            except TypeError:
                raise TypeError(
                    "a message body must be bytes (or a bytearray or memoryview): encode other values first, for example "
                    f"json.dumps(body).encode(); got {self.body!r}"
                ) from None
        if not isinstance(self.tags, str):
            raise TypeError(f"tags must be a str with one tag; got {self.tags!r}")
        if self.tags != self.tags.strip() or "||" in self.tags or self.tags == "*":
            raise ValueError(f"a tag must not be *, contain || or have leading or trailing blanks; got {self.tags!r}")
        # A single str is the usual mistake: ("order-7") is not a tuple, and iterating it would give seven keys.
        keys: Iterable[str] = self.keys.split() if isinstance(self.keys, str) else self.keys
        if isinstance(keys, bytes) or not isinstance(keys, Iterable):
            raise TypeError(f'keys must be strings, such as ("order-7", "customer-3"); got {self.keys!r}')
        object.__setattr__(self, "keys", tuple(keys))
        for key in self.keys:
            if not isinstance(key, str) or not key or key != "".join(key.split()):
                raise ValueError(f"a key must not contain blanks, because blanks separate keys; got {key!r}")
        if not isinstance(self.properties, Mapping):
            raise TypeError(
                f'properties must be a mapping of strings, such as {{"cups": "42"}}; got {self.properties!r}'
            )
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"names and values of properties must be strings; got {name!r}: {value!r}")

    def _check_how_it_is_sent(self) -> None:
        if isinstance(self.flag, bool) or not isinstance(self.flag, int):
            raise TypeError(f"flag must be a signed 32-bit integer; got {self.flag!r}")
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise ValueError(f"flag must be a signed 32-bit integer; got {self.flag}")
        if not isinstance(self.wait_stored, bool):
            raise TypeError(f"wait_stored must be True or False; got {self.wait_stored!r}")
        for field_name, text in (("sharding_key", self.sharding_key), ("transaction_id", self.transaction_id)):
            if not isinstance(text, str):
                raise TypeError(f"{field_name} must be a str; got {text!r}")
        if isinstance(self.delay_level, bool) or not isinstance(self.delay_level, int):
            raise TypeError(
                f"delay_level must be 0 (none) or one of the broker's levels, from 1; got {self.delay_level!r}"
            )
        if self.delay_level < 0:
            raise ValueError(
                f"delay_level must be 0 (none) or one of the broker's levels, from 1; got {self.delay_level}"
            )
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise ValueError("delay_level, delay and deliver_at exclude each other: set one of them")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int | float | timedelta | None):
            raise TypeError(f"delay must be a number of seconds, or a timedelta; got {self.delay!r}")
        if isinstance(self.delay, float) and not math.isfinite(self.delay):
            raise ValueError(f"delay must be a number of seconds; got {self.delay!r}")
        if self.delay_ms is not None and self.delay_ms < 0:
            raise ValueError(f"delay must not be negative; got {self.delay!r}")
        if isinstance(self.deliver_at, bool) or not isinstance(self.deliver_at, int | datetime | None):
            raise TypeError(
                f"deliver_at must be a datetime, or milliseconds since 1970 as int; got {self.deliver_at!r}"
            )

    @property
    def delay_ms(self) -> int | None:
        """`delay` in milliseconds, rounded up: never early."""
        if self.delay is None:
            return None
        seconds = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
        return math.ceil(round(seconds * 1000, 6))

    @property
    def deliver_at_ms(self) -> int | None:
        """`deliver_at` in milliseconds since 1970, rounded up."""
        if isinstance(self.deliver_at, datetime):
            return math.ceil(round(self.deliver_at.timestamp() * 1000, 3))
        return self.deliver_at


# A frozen object is filled through the descriptors of its slots: they are quicker than object.__setattr__.
_set_topic, _set_body, _set_tags, _set_keys, _set_properties, _set_flag = (
    getattr(Message, name).__set__ for name in ("topic", "body", "tags", "keys", "properties", "flag")
)
_set_delay_level, _set_wait_stored, _set_sharding_key, _set_transaction_id, _set_delay, _set_deliver_at = (
    getattr(Message, name).__set__
    for name in ("delay_level", "wait_stored", "sharding_key", "transaction_id", "delay", "deliver_at")
)


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker: the unit of ordering and of assignment to consumers."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}/{self.queue_id}"


class StoredFields(Protocol):
    """The bytes in which messages lie, and where: what a lazy message reads its fields from."""

    @property
    def pinned_bytes(self) -> int: ...

    def field(self, number: int, name: str) -> Any:
        """The value of one field of the message with this number."""


class _Lazy:
    """The fields of a message, each read from the stored bytes when it is first asked for."""

    __slots__ = ("_number", "_stored")

    _number: int
    _stored: StoredFields | None

    if not TYPE_CHECKING:  # a type checker shall know the fields only

        def __getattr__(self, name: str) -> Any:
            # Called only where a slot is empty: fields of a message that was built by its constructor are never looked for here.
            if name in _FIELDS:
                stored = self._stored
                if stored is None:  # another thread detached the message a moment ago
                    return object.__getattribute__(self, name)
                value = stored.field(self._number, name)
                _SETTERS[name](self, value)
                return value
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(_Lazy):
    """One message as returned to a consumer, a query or a reader of the store; the body is decompressed.

    A consumer's message lies in the bytes of the answer that brought it, together with its neighbours, until it is detached."""

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    log_offset: int  # where the record starts in the broker's commit log
    message_id: str  # assigned by the producer (UNIQ_KEY), else the offset id
    offset_id: str  # contains the broker's address and the log offset, so `query id` needs no index
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)  # all of them, including the reserved ones
    born_ms: int = 0
    stored_ms: int = 0
    born_host: str = ""  # "ip:port"
    store_host: str = ""
    reconsume_times: int = 0
    sys_flag: int = 0
    flag: int = 0
    body_crc: int = 0
    prepared_offset: int = 0  # log offset of the half message a committed transaction came from
    stored_bytes: int = 0  # size of the whole record in the log

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 show as replacement characters."""
        return self.body.decode("utf-8", "replace")

    @property
    def pinned_bytes(self) -> int:
        """How much memory this message keeps together with its neighbours of the same answer, at most; 0 once it is detached.

        Who keeps a few messages of many for long should `detach` them."""
        stored = getattr(self, "_stored", None)
        return 0 if stored is None else stored.pinned_bytes

    def detach(self) -> Self:
        """Read all fields, so that the message keeps only its own memory. Returns the message itself."""
        if getattr(self, "_stored", None) is not None:
            for name in _FIELDS:
                getattr(self, name)
            _SETTERS["_stored"](self, None)
        return self


_FIELDS: Final = frozenset(one.name for one in fields(ReceivedMessage))
_SETTERS: Final[dict[str, Callable[[object, object], None]]] = {
    name: getattr(ReceivedMessage, name).__set__ for name in (*_FIELDS, "_number", "_stored")
}
_set_number: Final = _SETTERS["_number"]
_set_stored: Final = _SETTERS["_stored"]


def stored_message(stored: StoredFields, number: int, **known: object) -> ReceivedMessage:
    """Return the message with this number among the stored ones; `known`: fields that are not read from there."""
    message = object.__new__(ReceivedMessage)
    _set_stored(message, stored)
    _set_number(message, number)
    for name, value in known.items():
        _SETTERS[name](message, value)
    return message


LAZY_SLOTS: Final = (vars(_Lazy)["_number"], vars(ReceivedMessage)["body"], vars(_Lazy)["_stored"])
"""What has to be filled in a message that lies in stored bytes: its number, what lies there, and perhaps its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeliver:
    """A listener returns this if it did not process its message, which is then redelivered later; so does raising an error.

    `RETRY` is the default form. Broadcast messages are not redelivered.
    """

    level: int = 0  # delay level; 0: from the third level on, one more each time; -1: dead-letter queue
    # ordered consumption: how long the queue is blocked; None: as configured (`suspend_ms`)
    pause_ms: int | None = None
    done: int = 0  # for a list of messages: this many from its beginning were processed

    def __post_init__(self) -> None:
        for name in ("level", "done", "pause_ms"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int if name != "pause_ms" else int | None):
                raise TypeError(f"{name} must be an int; got {value!r}")
        if self.level < -1:
            raise ValueError(
                f"level must be -1 (dead-letter queue), 0 (the broker decides) or a delay level; got {self.level}"
            )
        if self.done < 0 or (self.pause_ms is not None and self.pause_ms < 0):
            raise ValueError(f"done and pause_ms must not be negative; got {self}")


RETRY: Final = Redeliver()
"""Return this from a listener to get the message again later."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter on message properties, for `subscribe`; created by `sql("price > 100 AND country = 'PE'")`."""

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise TypeError(f'an SQL filter must be a str such as "price > 100"; got {self.expression!r}')


def sql(expression: str) -> SqlFilter:
    """Filter messages by their properties instead of by tags."""
    return SqlFilter(expression)


class SendStatus(enum.StrEnum):
    """All of these mean *stored by the broker*; the last three that a stronger guarantee was not met in time."""

    OK = "ok"
    FLUSH_TIMEOUT = "flush timeout"
    SLAVE_TIMEOUT = "slave timeout"
    SLAVE_NOT_AVAILABLE = "slave not available"


@dataclass(frozen=True, slots=True, init=False)
class SendResult:
    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_id: str = ""
    transaction_id: str = ""
    region: str = ""
    trace_on: bool = True  # the broker allows tracing
    recall_handle: str = ""  # cancels a message before its delivery time

    def __init__(
        self,
        *,
        status: SendStatus,
        message_id: str,
        queue: MessageQueue,
        queue_offset: int,
        offset_id: str = "",
        transaction_id: str = "",
        region: str = "",
        trace_on: bool = True,
        recall_handle: str = "",
    ) -> None:
        _set_status(self, status)
        _set_message_id(self, message_id)
        _set_queue(self, queue)
        _set_queue_offset(self, queue_offset)
        _set_offset_id(self, offset_id)
        _set_transaction(self, transaction_id)
        _set_region(self, region)
        _set_trace_on(self, trace_on)
        _set_recall_handle(self, recall_handle)

    @property
    def ok(self) -> bool:
        return self.status is SendStatus.OK


_set_status, _set_message_id, _set_queue, _set_queue_offset, _set_offset_id = (
    getattr(SendResult, name).__set__ for name in ("status", "message_id", "queue", "queue_offset", "offset_id")
)
_set_transaction, _set_region, _set_trace_on, _set_recall_handle = (
    getattr(SendResult, name).__set__ for name in ("transaction_id", "region", "trace_on", "recall_handle")
)


class Decision(enum.StrEnum):
    """The decision about a transactional message."""

    COMMIT = "commit"  # deliver it to consumers
    ROLLBACK = "rollback"  # never deliver it
    UNKNOWN = "unknown"  # not decided yet, or unknown here: the broker checks again later


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedMessage:
    """A message whose bytes differ from what was stored. It is skipped; its neighbours are not."""

    queue: MessageQueue
    queue_offset: int  # as inferred from its neighbours
    log_offset: int | None  # None: unknown
    reason: str
    fingerprint: int = 0  # of its bytes: identifies the same message when pulled again


class PullStatus(enum.StrEnum):
    FOUND = "found"
    NO_NEW = "no new message"
    NO_MATCH = "no matching message"  # the messages found do not match the subscription; continue at next_offset
    OFFSET_ILLEGAL = "offset illegal"  # outside the queue; continue at next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBytes:
    """A pull's answer, undecoded: `data` holds stored records back to back, unchecked. `kappamq.native` converts them to columns."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytes = b""
    suggested_broker_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[ReceivedMessage, ...] = ()
    suggested_broker_id: int = 0
    damaged: tuple[DamagedMessage, ...] = ()  # skipped, not among the messages
    missing: int = 0  # offsets of an unfiltered pull without a message: the broker could not read them, or has none

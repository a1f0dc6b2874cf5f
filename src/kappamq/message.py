"""Plain values that everyone may import: what a user sends, and what comes back.

Nothing here knows the wire. Property names that RocketMQ reserves (KEYS, TAGS, DELAY, WAIT ...) appear as fields of
their own and never in `properties` of a `Message`; the protocol layer translates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send.

    >>> Message("orders", b"42 cups", tags="paid", keys=("order-7", "customer-3"))  # doctest: +ELLIPSIS
    Message(topic='orders', body=b'42 cups', ...
    """

    topic: str
    body: bytes
    tags: str = ""  # one tag; consumers select by it without the broker reading the body
    keys: tuple[str, ...] = ()  # searchable afterwards (`kappamq query key`); no blanks inside a key
    properties: Mapping[str, str] = field(default_factory=dict)  # the application's own; none may be empty
    flag: int = 0  # 32 bits that nobody but the application looks at
    delay_level: int = 0  # 1..18 of the broker's levels; 0 delivers at once
    wait_stored: bool = True  # False: answered without waiting for flush or copies
    sharding_key: str = ""  # messages of one key keep their order when sent with the hash selection
    transaction_id: str = ""
    delay: float | timedelta | None = None  # seconds until it is delivered, to the millisecond
    deliver_at: int | datetime | None = None  # when it is delivered: a datetime, or milliseconds since 1970

    if TYPE_CHECKING:  # more is accepted than is kept: any buffer is a body, a text or a list are keys

        def __init__(
            self,
            topic: str,
            body: bytes | bytearray | memoryview,
            tags: str = "",
            keys: str | Iterable[str] = (),
            properties: Mapping[str, str] = ...,
            flag: int = 0,
            delay_level: int = 0,
            wait_stored: bool = True,
            sharding_key: str = "",
            transaction_id: str = "",
            delay: float | timedelta | None = None,
            deliver_at: int | datetime | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise TypeError(f"a message needs a topic, a text that is not empty; got {self.topic!r}")
        if isinstance(self.body, str):
            raise TypeError("a message body is bytes; encode the text first, for example body.encode()")
        if not isinstance(self.body, bytes):
            try:
                object.__setattr__(self, "body", bytes(memoryview(self.body)))
            except TypeError:
                raise TypeError(
                    "a message body is bytes (or a bytearray or memoryview): encode other things first, for example "
                    f"json.dumps(body).encode(); got {self.body!r}"
                ) from None
        if not isinstance(self.tags, str):
            raise TypeError(f"tags is one text, and a message has one tag; got {self.tags!r}")
        if self.tags != self.tags.strip() or "||" in self.tags or self.tags == "*":
            raise ValueError(f"no subscription can name this tag: no blanks around it, no ||, not *; got {self.tags!r}")
        # A lone text is the usual slip: ("order-7") is not a tuple, and iterating it would make seven keys.
        keys: Iterable[str] = self.keys.split() if isinstance(self.keys, str) else self.keys
        if isinstance(keys, bytes) or not isinstance(keys, Iterable):
            raise TypeError(f'keys are texts, such as ("order-7", "customer-3"); got {self.keys!r}')
        object.__setattr__(self, "keys", tuple(keys))
        for key in self.keys:
            if not isinstance(key, str) or not key or key != "".join(key.split()):
                raise ValueError(f"a key is a text without blanks, because blanks separate keys; got {key!r}")
        if not isinstance(self.properties, Mapping):
            raise TypeError(f'properties are a mapping of texts, such as {{"cups": "42"}}; got {self.properties!r}')
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"names and values of properties are texts; got {name!r}: {value!r}")
        if isinstance(self.flag, bool) or not isinstance(self.flag, int):
            raise TypeError(f"flag is a signed 32 bit number; got {self.flag!r}")
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise ValueError(f"flag is a signed 32 bit number; got {self.flag}")
        if not isinstance(self.wait_stored, bool):
            raise TypeError(f"wait_stored is True or False; got {self.wait_stored!r}")
        for field_name, text in (("sharding_key", self.sharding_key), ("transaction_id", self.transaction_id)):
            if not isinstance(text, str):
                raise TypeError(f"{field_name} is a text; got {text!r}")
        if isinstance(self.delay_level, bool) or not isinstance(self.delay_level, int):
            raise TypeError(
                f"delay_level is 0 (none) or one of the broker's levels from 1 on; got {self.delay_level!r}"
            )
        if self.delay_level < 0:
            raise ValueError(f"delay_level is 0 (none) or one of the broker's levels from 1 on; got {self.delay_level}")
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise ValueError("a message is delivered later by delay_level, by delay or by deliver_at: give one of them")
        if isinstance(self.delay, bool) or not isinstance(self.delay, int | float | timedelta | None):
            raise TypeError(f"delay is a number of seconds, or a timedelta; got {self.delay!r}")
        if isinstance(self.delay, float) and not math.isfinite(self.delay):
            raise ValueError(f"delay is a number of seconds; got {self.delay!r}")
        if self.delay_ms is not None and self.delay_ms < 0:
            raise ValueError(f"delay is a number of seconds, or a timedelta, that is not negative; got {self.delay!r}")
        if isinstance(self.deliver_at, bool) or not isinstance(self.deliver_at, int | datetime | None):
            raise TypeError(f"deliver_at is a datetime, or milliseconds since 1970 as int; got {self.deliver_at!r}")

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


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker: the unit of order and of balancing."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}/{self.queue_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """One message as a consumer, a query or a reader of the store sees it; the body is decompressed."""

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    log_offset: int  # where the record starts in the broker's commit log
    message_id: str  # given by the producer (UNIQ_KEY), else the offset id
    offset_id: str  # names the broker's address and the log offset: what `query id` finds without an index
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)  # all of them, the reserved ones too
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeliver:
    """What a listener returns when its message is not done: it comes again later. Raising anything says the same.

    `RETRY` is the plain form. Broadcast messages do not come again.
    """

    level: int = 0  # delay level of the broker; 0: from the third level on, one more each time; -1: to the dead letters
    pause_ms: int | None = None  # ordered consumption: how long the queue waits; None: as configured (`suspend_ms`)
    done: int = 0  # of a list of messages: so many from its beginning are done

    def __post_init__(self) -> None:
        for name in ("level", "done", "pause_ms"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int if name != "pause_ms" else int | None):
                raise TypeError(f"{name} is a whole number; got {value!r}")
        if self.level < -1:
            raise ValueError(f"level is -1 (dead letters), 0 (the broker decides) or a delay level; got {self.level}")
        if self.done < 0 or (self.pause_ms is not None and self.pause_ms < 0):
            raise ValueError(f"done and pause_ms are not negative; got {self}")


RETRY: Final = Redeliver()
"""Return this from a listener to get the message again later."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter on message properties, for `subscribe`; made by `sql("price > 100 AND country = 'PE'")`."""

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise TypeError(f'an SQL filter is a text such as "price > 100"; got {self.expression!r}')


def sql(expression: str) -> SqlFilter:
    """Select messages by their properties instead of by tags."""
    return SqlFilter(expression)


class SendStatus(enum.StrEnum):
    """All of these mean *stored by the broker*; the last three that a promise beyond it was not kept in time."""

    OK = "ok"
    FLUSH_TIMEOUT = "flush timeout"
    SLAVE_TIMEOUT = "slave timeout"
    SLAVE_NOT_AVAILABLE = "slave not available"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_id: str = ""
    transaction_id: str = ""
    region: str = ""
    trace_on: bool = True  # the broker allows traces
    recall_handle: str = ""  # to take back a message that waits for its time

    @property
    def ok(self) -> bool:
        return self.status is SendStatus.OK


class Decision(enum.StrEnum):
    """What is to become of a transactional message."""

    COMMIT = "commit"  # consumers get it
    ROLLBACK = "rollback"  # nobody ever gets it
    UNKNOWN = "unknown"  # not decided yet, or not known here: the broker asks again later


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedMessage:
    """A message that a broker sent but whose bytes are not what was stored. It is skipped; its neighbours are not."""

    queue: MessageQueue
    queue_offset: int  # as far as that can be told from its neighbours
    log_offset: int | None  # None: not even that can be believed
    reason: str
    fingerprint: int = 0  # of its bytes: the same message, pulled again, has the same one


class PullStatus(enum.StrEnum):
    FOUND = "found"
    NO_NEW = "no new message"
    NO_MATCH = "no matching message"  # some were looked at, none fits the subscription; go on at next_offset
    OFFSET_ILLEGAL = "offset illegal"  # outside the queue; go on at next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBytes:
    """A pull's answer as it came: `data` holds stored records back to back, unchecked. `kappamq.native` makes columns of them."""

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
    damaged: tuple[DamagedMessage, ...] = ()  # skipped: not among the messages
    missing: int = (
        0  # offsets without a message, though all were asked for: the broker could not read them, or has none
    )

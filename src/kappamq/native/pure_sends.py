"""What a producer does once per message, beside encoding it: the meaning of sends.pxi."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

MEMBER_BYTES: Final = 128
"""What a message without properties takes in a batch beside its body, at most."""


RETRY_PREFIX: Final = "%RETRY%"


class SendEntry:
    """One message between `send` and its result. Until it is settled it counts against `limits`."""

    __slots__ = (
        *("accepted", "born_ms", "deadline", "joins", "key", "limits", "message", "queue"),
        *("sent", "settled", "sink", "size", "weight"),
    )

    def __init__(
        self,
        message: Any,
        sink: Any,
        limits: Any,
        key: Any,
        queue: Any,
        accepted: float,
        deadline: float,
        born_ms: int,
    ) -> None:
        self.message = message
        self.sink = sink  # has done(), set_result() and set_exception(), as a future
        self.limits = limits
        self.key = key
        self.queue = queue
        self.accepted = accepted  # liveness time, as is `deadline`
        self.deadline = deadline
        self.born_ms = born_ms
        self.size = len(message.body)
        self.sent = False  # a request with it may have left
        self.settled = False
        # It may leave in a batch with others of its queue without anybody noticing, as far as its fields tell.
        self.joins = not (
            message.flag
            or message.delay_level
            or message.delay is not None
            or message.deliver_at is not None
            or message.transaction_id
            or message.topic.startswith(RETRY_PREFIX)
        )
        # An upper estimate of the bytes it takes in a batch. 0: not known yet, for it has more than a body.
        has_more = message.tags or message.keys or message.properties or message.sharding_key
        self.weight = 0 if has_more else self.size + MEMBER_BYTES

    @property
    def limit(self) -> float:
        """How many seconds the message was given."""
        return self.deadline - self.accepted


def front_entries(
    waiting: deque[SendEntry], bytes_max: int, count_max: int
) -> tuple[list[SendEntry], list[SendEntry], int]:
    """Take what may leave in one request: the messages at the front that can share a batch, or one that cannot.

    Returns them, those nobody waits for any more, and the weight of all that were taken."""
    entries: list[SendEntry] = []
    gone: list[SendEntry] = []
    weight = dropped = 0
    while waiting:
        entry = waiting[0]
        if entry.settled or entry.sink.done():
            waiting.popleft()
            dropped += entry.weight
            gone.append(entry)
            continue
        if entries and (
            not (entry.joins and entries[0].joins)
            or weight + entry.weight > bytes_max
            or len(entries) >= count_max
            or entry.message.wait_stored != entries[0].message.wait_stored
        ):
            break
        waiting.popleft()
        weight += entry.weight
        entries.append(entry)
    return entries, gone, weight + dropped


def settle_entries(
    entries: list[SendEntry], results: list[Any], still_open: set[SendEntry]
) -> list[tuple[Any, int, int]]:
    """Tell each message that is not settled its result. Returns what is to be given back: limits, bytes, messages."""
    told: list[tuple[Any, int, int]] = []
    limits, size, count = None, 0, 0
    if len(entries) != len(results):
        raise ValueError(f"{len(entries)} messages have {len(results)} results")
    for entry, result in zip(entries, results, strict=True):
        if entry.settled:
            continue
        entry.settled = True
        still_open.discard(entry)
        if entry.limits is not limits:
            if count:
                told.append((limits, size, count))
            limits, size, count = entry.limits, 0, 0
        size += entry.size
        count += 1
        if not entry.sink.done():
            entry.sink.set_result(result)
    if count:
        told.append((limits, size, count))
    return told


def unique_ids(beginning: str, first: int, count: int) -> list[str]:
    """Ids that differ in their last four digits, which are those of a counter."""
    return [f"{beginning}{number & 0xFFFF:04X}" for number in range(first, first + count)]


def filled_objects(
    cls: type, setters: tuple[Any, ...], columns: tuple[list[Any], ...], shared: tuple[Any, ...], count: int
) -> list[Any]:
    """Make objects without calling their constructor. `setters`: the descriptors of slots; the first get a value of their own
    from `columns`, the others the `shared` ones."""
    if not isinstance(cls, type) or len(columns) + len(shared) != len(setters):
        raise ValueError("one setter for each column and each shared value")
    if not all(hasattr(type(setter), "__set__") for setter in setters):
        raise TypeError("a setter must be the descriptor of a slot")
    if any(len(column) < count for column in columns):
        raise ValueError("a column is too short")
    own = [(setter.__set__, column) for setter, column in zip(setters, columns, strict=False)]
    rest = [(setter.__set__, value) for setter, value in zip(setters[len(columns) :], shared, strict=True)]
    made = []
    for number in range(count):
        target: Any = object.__new__(cls)
        for set_value, column in own:
            set_value(target, column[number])
        for set_value, value in rest:
            set_value(target, value)
        made.append(target)
    return made

"""Which messages may share a batch, and splitting a long list of messages into batches that fit. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kappamq.client.core import arguments
from kappamq.errors import IllegalMessage
from kappamq.message import Message
from kappamq.protocol.names import RETRY_PREFIX, is_retry_topic
from kappamq.protocol.records import batch

_UNWRITTEN_BYTES = 160  # property names, message id and separators never take more than this


def cut(messages: Iterable[Message], bytes_max: int, count_max: int) -> Iterator[list[Message]]:
    """Yield lists of up to `count_max` messages that take up to `bytes_max` bytes together, in order.

    Reads only as many of `messages` as the next list needs, so they may be endless. For a message that cannot be batched,
    or not with its neighbours, raises IllegalMessage after yielding the messages before it.
    """
    arguments.number("count_max", count_max)
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise TypeError(f"messages must be an iterable of messages, such as a list; got {arguments.shown(messages)}")
    if count_max < 1:
        raise ValueError(f"{count_max=}: must be at least 1")
    part: list[Message] = []
    length = 0
    for message in messages:
        arguments.message(message)
        size = size_of(message)
        if part and (length + size > bytes_max or len(part) >= count_max):
            yield part
            part, length = [], 0
        try:
            check(message, part[0] if part else message)
            if size > bytes_max:
                raise IllegalMessage(
                    f"one message takes about {size} bytes, a batch holds {bytes_max}: send it by itself, or make "
                    "message_bytes_max larger here and maxMessageSize at the broker"
                )
        except IllegalMessage:
            if part:
                yield part  # these are valid; the next step raises for the invalid one
            raise
        part.append(message)
        length += size
    if part:
        yield part


def listed(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of one batch as a list. Raises TypeError if they are not iterable."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise TypeError(f"a batch must be a list of messages; got {arguments.shown(messages)}")
    found = list(messages)
    for message in found:
        arguments.message(message)
    return found


def check(message: Message, first: Message) -> None:
    """Raise IllegalMessage if `message` cannot be in a batch that begins with `first`."""
    if is_retry_topic(message.topic):
        raise IllegalMessage(f"a batch cannot go to the retry topic {message.topic}: send its messages one by one")
    if message.topic != first.topic:
        raise IllegalMessage(
            f"a batch has one topic, this one has {first.topic!r} and {message.topic!r}: send one batch for each"
        )
    if message.wait_stored != first.wait_stored:
        raise IllegalMessage("all messages of a batch must have the same wait_stored: the batch gets one answer")
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        raise IllegalMessage("a batch cannot be delayed: send delayed messages one by one")
    if message.transaction_id:
        raise IllegalMessage("a batch cannot be part of a transaction: send transactional messages one by one")


def may_join(message: Message) -> bool:
    """Return whether a message may leave in a batch with others of its queue without anybody noticing."""
    return not (
        message.flag
        or message.delay_level
        or message.delay is not None
        or message.deliver_at is not None
        or message.transaction_id
        or message.topic.startswith(RETRY_PREFIX)
    )


def size_of(message: Message) -> int:
    """Return an upper estimate of the bytes a message takes in a batch."""
    text = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in message.properties.items())
    text += sum(len(key.encode()) + 1 for key in message.keys) + len(message.tags.encode())
    return batch.MEMBER_BYTES + len(message.body) + text + len(message.sharding_key.encode()) + _UNWRITTEN_BYTES

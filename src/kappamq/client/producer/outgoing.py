"""Turns a Message into a send request: validates, assigns the id, compresses. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kappamq.client.core import arguments
from kappamq.client.producer import batching
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.client import SendMessageV2
from kappamq.protocol.names import check_topic, is_sendable
from kappamq.protocol.records import batch, compression, properties
from kappamq.protocol.records.compression import Compression
from kappamq.protocol.trace import MessageKind

_METHODS: Final = {"zlib": Compression.ZLIB, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}
SYS_PREPARED: Final = 0x4
"""System flag: a half message of a transaction."""
_LATE: Final = re.compile(
    "|".join(re.escape(name) + properties.NAME_END for name in sorted({properties.DELAY, *properties.TIMER_NAMES}))
)
_LEVEL_MAX: Final = {Compression.ZLIB: 9, Compression.LZ4: 12, Compression.ZSTD: 22}


@dataclass(slots=True)
class Outgoing:
    """One send request, complete but for its queue. Retries send the same one, so its id identifies duplicates.

    Never changed; not frozen, since that would take a microsecond per message."""

    code: RequestCode
    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    born_ms: int
    message_ids: tuple[str, ...]  # one per message in it
    kind: MessageKind = MessageKind.NORMAL  # the kind that traces report

    def header(self, group: str, queue_id: int, broker: str, config: ClientConfig) -> SendMessageV2:
        return SendMessageV2(
            producer_group=group,
            topic=self.topic,
            default_topic=config.default_topic,
            default_topic_queues=config.default_topic_queues,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=0,
            unit_mode=False,
            batch=self.code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=broker,
        )


def single(
    message: Message,
    message_id: str,
    born_ms: int,
    config: ClientConfig,
    *,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    sys_flag: int = 0,
    extra: Mapping[str, str] | None = None,
) -> Outgoing:
    """Prepare one message. Raises IllegalMessage or InvalidParameter, whose text says what to change.

    `sys_flag` and `extra`: flags and reserved properties set by the client itself, as for a request or a transaction.
    """
    arguments.message(message)
    check_sendable(message.topic)
    check_body(len(message.body), config.message_bytes_max, "message")
    body, kind = message.body, 0
    if len(body) >= config.compress_over_bytes:
        body, kind = packed(body, config)
    text = _properties(message, message_id, extra or {})
    return Outgoing(
        code,
        message.topic,
        body,
        text,
        sys_flag | kind,
        message.flag,
        born_ms,
        (message_id,),
        _kind(message, text, sys_flag),
    )


def together(messages: Sequence[Message], message_ids: Sequence[str], born_ms: int, config: ClientConfig) -> Outgoing:
    """Prepare a batch: it is stored as a whole or not at all, in one queue, contiguously."""
    first = messages[0]
    check_sendable(first.topic)
    for message in messages:
        batching.check(message, first)
        check_body(len(message.body), config.message_bytes_max, "message")
    body = batch.encode(
        batch.Member(message.body, _properties(message, message_id), message.flag)
        for message, message_id in zip(messages, message_ids, strict=True)
    )
    check_body(len(body), config.message_bytes_max, f"batch of {len(messages)} messages")
    # Unlike Java's clients, add no id for the batch: Apache's broker appends these properties to each member's own, where
    # they take precedence, and all members would be read back with the same id.
    own = {properties.WAIT: "true" if first.wait_stored else "false"}
    return Outgoing(
        RequestCode.SEND_BATCH_MESSAGE, first.topic, body, properties.encode(own), 0, 0, born_ms, tuple(message_ids)
    )


def member(message: Message, message_id: str, config: ClientConfig) -> batch.Member:
    """Prepare a message of a batch transaction, which may be delayed, unlike one of a batch."""
    check_sendable(message.topic)
    check_body(len(message.body), config.message_bytes_max, "message")
    if message.transaction_id:
        raise IllegalMessage("a message cannot be part of two transactions: send it by itself")
    return batch.Member(message.body, _properties(message, message_id), message.flag)


def encoded(topic: str, body: bytes, born_ms: int, config: ClientConfig) -> Outgoing:
    """Prepare a batch whose body is already encoded."""
    check_sendable(topic)
    check_body(len(body), config.message_bytes_max, "batch")
    text = properties.encode({properties.WAIT: "true"})
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, topic, body, text, 0, 0, born_ms, ("",))


def _kind(message: Message, text: str, sys_flag: int) -> MessageKind:
    if sys_flag & SYS_PREPARED:
        return MessageKind.HALF
    # Either a field of the message or the client itself may have set it.
    if _LATE.search(text):
        return MessageKind.DELAY
    return MessageKind.ORDER if message.sharding_key else MessageKind.NORMAL


def check_sendable(topic: str) -> None:
    check_topic(topic)
    if not is_sendable(topic):
        raise IllegalMessage(f"topic {topic!r} is reserved for the broker: choose another topic")


def check_body(length: int, limit: int, what: str) -> None:
    if length == 0:
        raise IllegalMessage(f"the {what} is empty: RocketMQ stores no message without a body")
    if length > limit:
        raise IllegalMessage(
            f"the {what} has {length} bytes, the limit is {limit}: split it, or raise message_bytes_max here and "
            "maxMessageSize at the broker"
        )


def check_property(name: str, value: str) -> None:
    """Refuse a property that RocketMQ would interpret as its own, or would lose."""
    if name in properties.RESERVED:
        raise IllegalMessage(
            f"the property name {name!r} is reserved by RocketMQ: use the corresponding field of Message"
        )
    if not isinstance(value, str) or not name.strip() or not value.strip():
        raise IllegalMessage(f"the name and value of a property must be non-blank strings; got {name!r}: {value!r}")


def packed(body: bytes, config: ClientConfig) -> tuple[bytes, int]:
    """Return the body compressed, with the flags that say so, or unchanged if compression does not help."""
    method = _METHODS[config.compress_kind]
    smaller = compression.compress(body, method, min(config.compress_level, _LEVEL_MAX[method]))
    if len(smaller) >= len(body):
        return body, 0  # it does not shrink, so spare the reader the work
    return smaller, compression.COMPRESSED | method.value


def _properties(message: Message, message_id: str, extra: Mapping[str, str] = MappingProxyType({})) -> str:
    named = {**extra, properties.UNIQUE_KEY: message_id, properties.WAIT: "true" if message.wait_stored else "false"}
    if message.tags:
        named[properties.TAGS] = message.tags
    if message.keys:
        named[properties.KEYS] = " ".join(message.keys)
    if message.delay_level:
        named[properties.DELAY] = str(message.delay_level)
    if message.delay_ms is not None:
        named[properties.TIMER_DELAY_MS] = str(message.delay_ms)
    if message.deliver_at_ms is not None:
        named[properties.TIMER_DELIVER_MS] = str(message.deliver_at_ms)
    if message.sharding_key:
        named[properties.SHARDING_KEY] = message.sharding_key
    for name, value in message.properties.items():
        check_property(name, value)
        named[name] = value
    text = properties.encode(named)
    length = len(text) if text.isascii() else len(text.encode())
    if length > properties.TEXT_BYTES_MAX:
        raise IllegalMessage(
            f"tags, keys and properties take {length} bytes, the limit is {properties.TEXT_BYTES_MAX}: move large "
            "values into the body"
        )
    return text

"""Many messages as the body of one batch request, by one call of the kernel. No I/O.

Messages that the kernel does not take go through the encoder of single messages, whose errors say what to change."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

from kappamq import native
from kappamq.client.producer.outgoing import Outgoing, check_body, check_property, member
from kappamq.config.client import ClientConfig
from kappamq.message import Message
from kappamq.native.layout import Column, MapInput
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.records import batch, properties

_NAMES: Final = tuple(
    name.encode() for name in (properties.UNIQUE_KEY, properties.TAGS, properties.KEYS, properties.SHARDING_KEY)
)
_BYTES_MAX: Final = 1 << 30  # the caller has cut the burst to size
_NOT_WAITED_FOR: Final = properties.encode({properties.WAIT: "false"})


class Encoder:
    """`kernel`: "native", "twin" or "auto", as for `native.load`."""

    def __init__(self, config: ClientConfig, kernel: str = "auto") -> None:
        self._config = config
        self._kernel = native.load(kernel)

    def check(self, message: Message) -> None:
        """Raise IllegalMessage for a message that no broker would accept. Bad strings are detected when they are encoded."""
        check_body(len(message.body), self._config.message_bytes_max, "message")
        for name, value in message.properties.items():
            check_property(name, value)

    def batch(self, messages: Sequence[Message], ids: Sequence[str], born_ms: int, *, bare: bool = False) -> Outgoing:
        """Prepare a batch. Raises the error of a bad message, without saying which one it is.

        `bare`: none of them has tags, keys or properties."""
        first = messages[0]
        # Members do not say WAIT, and a batch only if it differs from what brokers assume: they add the properties of the batch to
        # those of each member, and a consumer could tell.
        text = "" if first.wait_stored else _NOT_WAITED_FOR
        body = self.body(messages, ids, bare=bare)
        return Outgoing(RequestCode.SEND_BATCH_MESSAGE, first.topic, body, text, 0, 0, born_ms, tuple(ids))

    def body(self, messages: Sequence[Message], ids: Sequence[str], *, bare: bool = False) -> bytes:
        """Return the body of a batch request."""
        column, count = self._kernel.column_of, len(messages)
        named: list[tuple[bytes, Column]] = [(_NAMES[0], column(ids))]
        mapped = None if bare else self._named(messages, named)
        made: Column = self._kernel.property_texts(count, named, mapped, ())
        bodies: Column = column([message.body for message in messages])
        rows = array("i", range(count))
        body, _ = self._kernel.batch_body(bodies, made, rows, 0, _BYTES_MAX, count, b"", 0)
        return bytes(body)

    def _named(self, messages: Sequence[Message], named: list[tuple[bytes, Column]]) -> MapInput | None:
        """Add the columns of everything that messages have besides their bodies. Returns their properties, if any."""
        column = self._kernel.column_of
        texts = (
            [message.tags for message in messages],
            [" ".join(message.keys) if message.keys else "" for message in messages],
            [message.sharding_key for message in messages],
        )
        named += [(name, column(values)) for name, values in zip(_NAMES[1:], texts, strict=True) if any(values)]
        maps = [message.properties for message in messages]
        return self._mapped(maps) if any(maps) else None

    def _mapped(self, maps: Sequence[Any]) -> MapInput:
        ends = array("i", accumulate((len(pairs) for pairs in maps), initial=0))
        names = self._kernel.column_of(list(chain.from_iterable(maps)))
        values = self._kernel.column_of(list(chain.from_iterable(pairs.values() for pairs in maps)))
        return None, ends.tobytes(), names, values

    def wrong(self, message: Message, message_id: str) -> Exception | None:
        """Return the error that keeps a message from being encoded, if any."""
        try:
            batch.encode([member(message, message_id, self._config)])
        except Exception as error:
            return error
        return None

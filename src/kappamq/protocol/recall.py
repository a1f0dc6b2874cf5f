"""The handle that recalls a delayed message: URL-safe Base64 of `v1 topic broker time key`."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Self

from kappamq.errors import IllegalOperation

_VERSION: Final = "v1"
_CHARACTERS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class RecallHandle:
    topic: str
    broker: str
    due_ms: int
    key: str  # the message's unique id

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker} {self.due_ms} {self.key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> Self:
        """Decode a handle. Raises IllegalOperation if it is invalid."""
        try:
            if not handle or len(handle) > _CHARACTERS_MAX:
                raise ValueError("its length")
            raw = base64.b64decode(handle.encode() + b"=" * (-len(handle) % 4), altchars=b"-_", validate=True)
            version, topic, broker, due, key = raw.decode().split(" ")
            if version != _VERSION or not (due.isascii() and due.isdigit() and len(due) <= 18) or not key:
                raise ValueError("its fields")
            return cls(topic, broker, int(due), key)
        except (ValueError, binascii.Error):
            raise IllegalOperation(
                f"recall handle is invalid: {handle[:100]!r} was not returned by a send of a delayed message, or was changed since"
            ) from None


def delete_key(topic: str, key: str) -> str:
    """Return the value of TIMER_DEL_UNIQKEY, which names the message that must not be delivered."""
    return f"{topic}+{key}"

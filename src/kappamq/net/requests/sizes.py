"""Size limits of requests, header and body, and which bodies are decoded in the worker thread.

Every server has one table of these, by request code. It is checked before the body is decoded, so a refusal is cheap; its text
says how much is allowed and which setting changes that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kappamq.config.net import NetConfig
from kappamq.errors import InvalidParameter, ProtocolError
from kappamq.net.requests.loop_watch import name_of
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.frame import Frame

BESIDE_BYTES: Final = 4 << 10
"""Longer bodies are decoded in the worker thread: decoding may take a microsecond per byte."""
VALUE_BYTES: Final = 32
"""A body of the full size may have one JSON value per this many bytes: real ones have about twenty bytes per value."""


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """Names of the NetConfig fields that limit a request, and the type of its body if that is JSON.

    `answer_bytes`: the largest deferred answer, if it can be much larger than the request."""

    body: str = "request_bytes_max"
    header: str = "request_header_bytes_max"
    kind: type[Body] | None = None
    answer_bytes: int = 0


class RequestLimits:
    def __init__(self, table: Mapping[int, RequestLimit], config: NetConfig) -> None:
        self._table = table
        self._config = config
        self._usual = RequestLimit()
        self._bytes = {code: self._bytes_of(limit) for code, limit in table.items()}
        self._usual_bytes = self._bytes_of(self._usual)

    def _bytes_of(self, limit: RequestLimit) -> tuple[int, int]:
        """How many bytes the header and the body may have."""
        return getattr(self._config, limit.header), getattr(self._config, limit.body)

    def check(self, code: int, header_bytes: int, body_bytes: int) -> None:
        """Raise InvalidParameter if a request of this code is too large."""
        header_max, body_max = self._bytes.get(code, self._usual_bytes)
        if header_bytes <= header_max and body_bytes <= body_max:
            return
        limit = self._table.get(code, self._usual)
        part, size, setting = ("body", body_bytes, limit.body)
        if header_bytes > header_max:
            part, size, setting = ("header", header_bytes, limit.header)
        raise InvalidParameter(
            f"the {part} of a {name_of(code)} request has {size} bytes, the limit is {getattr(self._config, setting)}: "
            f"send less at once, or raise net.{setting}"
        )

    def answer_bytes(self, code: int) -> int:
        """Return what a connection is charged for a deferred answer of this code, beside the bytes of the request."""
        return self._table.get(code, self._usual).answer_bytes

    def is_for_beside(self, frame: Frame) -> bool:
        """Return whether the body must be decoded by `read` in the worker thread."""
        if len(frame.body) <= BESIDE_BYTES:
            return False
        limit = self._table.get(frame.code)
        return limit is not None and limit.kind is not None

    def read(self, frame: Frame) -> Any:
        """Decode the body of a request for which `is_for_beside` is true. Raises ProtocolError. Thread-safe."""
        kind = self._table[frame.code].kind
        assert kind is not None
        check_values(frame.body, getattr(self._config, self._table[frame.code].body) // VALUE_BYTES)
        return kind.decode(frame.body, loose_bytes_max=self._config.loose_json_bytes_max)


def check_values(data: bytes, allowed: int) -> None:
    """Refuse JSON with more values than `allowed`: memory and time grow with their number. Raises ProtocolError."""
    found = data.count(b",") + data.count(b"{") + data.count(b"[")
    if found > allowed:
        raise ProtocolError(f"the body has {found} JSON values, the limit is {allowed}: split it into several requests")

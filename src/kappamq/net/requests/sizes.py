"""How large each request may be, header and body, and which body is worth reading beside the loop.

Every server has one table of these, by request code. It is looked at before the body is read: a refusal costs nothing but its
answer, which says how much is allowed and which setting changes that.
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
"""A longer body is read beside the loop: reading may take a microsecond for each byte."""
VALUE_BYTES: Final = 32
"""A body of the full size may have one JSON value for every so many bytes: honest ones have about twenty."""


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """Names of the NetConfig fields that limit a request, and what its body is, where that is JSON.

    `answer_bytes`: how large an answer that comes later may be, where it is much larger than its request."""

    body: str = "request_bytes_max"
    header: str = "request_header_bytes_max"
    kind: type[Body] | None = None
    answer_bytes: int = 0


class RequestLimits:
    def __init__(self, table: Mapping[int, RequestLimit], config: NetConfig) -> None:
        self._table = table
        self._config = config
        self._usual = RequestLimit()

    def check(self, code: int, header_bytes: int, body_bytes: int) -> None:
        """Raises InvalidParameter if a request of this code must not be so large."""
        limit = self._table.get(code, self._usual)
        for part, size, setting in (("header", header_bytes, limit.header), ("body", body_bytes, limit.body)):
            allowed = getattr(self._config, setting)
            if size > allowed:
                raise InvalidParameter(
                    f"the {part} of a {name_of(code)} request may have {allowed} bytes, not {size}: send less at once, "
                    f"or raise net.{setting}"
                )

    def answer_bytes(self, code: int) -> int:
        """What a connection is charged for an answer of this code that is to come, beside the bytes of the request."""
        return self._table.get(code, self._usual).answer_bytes

    def is_for_beside(self, frame: Frame) -> bool:
        """Whether the body has to be read by `read`, beside the loop."""
        if len(frame.body) <= BESIDE_BYTES:
            return False
        limit = self._table.get(frame.code)
        return limit is not None and limit.kind is not None

    def read(self, frame: Frame) -> Any:
        """The body of a request for which `is_for_beside` says yes. Raises ProtocolError. Any thread may call it."""
        kind = self._table[frame.code].kind
        assert kind is not None
        check_values(frame.body, getattr(self._config, self._table[frame.code].body) // VALUE_BYTES)
        return kind.decode(frame.body, loose_bytes_max=self._config.loose_json_bytes_max)


def check_values(data: bytes, allowed: int) -> None:
    """Refuse JSON of more values than `allowed`: memory and time go by their number. Raises ProtocolError."""
    found = data.count(b",") + data.count(b"{") + data.count(b"[")
    if found > allowed:
        raise ProtocolError(
            f"the body has {found} JSON values, {allowed} at most: send less at once, in several requests"
        )

"""Answers of handlers that have to wait until what they speak of is stored."""

from __future__ import annotations

from typing import Any

from kappamq.broker.requests.request import Request
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.protocol.frame import Frame


def answer_when_stored(
    writer: LogWriter, request: Request[Any], response: Frame, end: int, *, flushed: bool = True
) -> None:
    """Send a response when the log is answerable up to `end` (with flushed=False: as soon as it is written)."""
    writer.set_turn()
    if not request.is_oneway:
        writer.park(request.connection, response.encode(), end, 4 + len(request.body), flushed=flushed)

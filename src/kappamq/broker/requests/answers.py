"""Answers of handlers that have to wait until what they speak of is stored."""

from __future__ import annotations

from kappamq.broker.sending.log_writer import LogWriter
from kappamq.net.serving.connection import Connection
from kappamq.protocol.frame import Frame


def answer_when_stored(
    writer: LogWriter, connection: Connection, request: Frame, response: Frame, end: int, *, flushed: bool = True
) -> None:
    """Send a response when the log is answerable up to `end` (with flushed=False: as soon as it is written)."""
    writer.set_turn()
    if not request.is_oneway:
        writer.park(connection, response.encode(), end, 4 + len(request.body), flushed=flushed)

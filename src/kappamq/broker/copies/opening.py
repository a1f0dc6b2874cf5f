"""The first eight bytes of a connection to the port for copies show the peer's protocol; its handler then takes over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from kappamq.broker.copies.apache.link import ApacheLink
from kappamq.broker.copies.link import Link
from kappamq.broker.copies.log_sender import GREETING_S, LogSender, Master, peer_of
from kappamq.replication.frames import OPENING, VERSION, Kind, text_frame

log = logging.getLogger(__name__)


class NoRoom(asyncio.Protocol):
    """For a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class Opening(asyncio.Protocol):
    def __init__(
        self, master: Master, speaks: Callable[[Opening, LogSender], None], lost: Callable[[Opening | LogSender], None]
    ) -> None:
        """`speaks` is called with the connection that has taken over, `lost` when the connection is gone."""
        self._master = master
        self._speaks = speaks
        self._lost = lost
        self._opening = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(GREETING_S, self._too_late)

    def _too_late(self) -> None:
        if self._transport is not None:
            log.info("copies: %s did not complete its greeting within %g s", peer_of(self._transport), GREETING_S)
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._opening += data
        transport = self._transport
        if len(self._opening) < OPENING.size or transport is None:
            return
        (number,) = OPENING.unpack_from(self._opening)
        link: LogSender
        if number >= 0:
            link, rest = ApacheLink(self._master, self._lost), self._opening
        elif -number == VERSION:
            transport.write(OPENING.pack(-VERSION))
            link, rest = Link(self._master, self._lost), self._opening[OPENING.size :]
        else:
            why = f"it speaks version {-number} of the protocol for copies, this broker version {VERSION}: run the same release on both"
            log.warning("copies: refused %s as a slave: %s", peer_of(transport), why)
            refusal = text_frame(Kind.REFUSED, {"why": why}, self._master.kernel_module.crc32)
            transport.write(OPENING.pack(-VERSION) + refusal)
            transport.close()
            return
        self._forget_deadline()
        self._transport = None
        self._speaks(self, link)
        transport.set_protocol(link)
        link.connection_made(transport)
        if rest:
            link.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._forget_deadline()
        self._transport = None
        self._lost(self)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

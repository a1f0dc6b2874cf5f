"""A slave's requests to an Apache master besides the log: its identity, and its tables, which such a master does not record in its log.

The tables are requested every few seconds, and adopted once our log has reached the place where the master's ended *after* it had
answered: a delivery that a table counts is then in our log, too. The opposite, messages delivered twice after a failure of the
master, happens with RocketMQ's own slaves as well.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from kappamq.broker.copies.apache.adopting import ASKED, Adopting
from kappamq.broker.copies.apache.stream import ClassicStream
from kappamq.broker.copies.incoming import NotKnown
from kappamq.errors import KappaError
from kappamq.net.channel import Channel
from kappamq.protocol import address
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.headers.header import Header
from kappamq.replication.greeting import Refusal

log = logging.getLogger(__name__)

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 3.0
_OURS: Final = "kappamqKernel"  # in the runtime information of our brokers only


class Start(NamedTuple):
    offset: int
    behind: int


class ApacheMaster:
    def __init__(
        self, adopting: Adopting, clients_address: Callable[[], str | None], tls: ssl.SSLContext | None = None
    ) -> None:
        """`clients_address`: where clients reach the master, from the name servers."""
        self._adopting = adopting
        self._clients_address = clients_address
        self._tls = tls
        self._channel: Channel | None = None
        self._told = ""

    async def is_one(self, place: str) -> bool:
        """Return whether the broker with the copies port `place` is Apache's. Raises KappaError if it does not answer."""
        try:
            return _OURS not in await self._runtime(place)
        finally:
            self.leave()

    async def greet(self, place: str, end: int) -> Start:
        """Return the start of the stream, if a log that ends at `end` can go on with this master's. Raises Refusal."""
        said = await self._runtime(place)
        if _OURS in said:
            raise Refusal(
                f"the broker at {place} is not Apache's: copies.protocol must be kappamq, or auto, for a master like this"
            )
        low, high = _number(said, "commitLogMinOffset"), _number(said, "commitLogMaxOffset")
        if end > high:
            raise Refusal(
                f"our log reaches to {end}, that of the Apache master at {place} only to {high}: it has lost messages that this copy "
                f"still has, or is another one. Make this broker the master, or cut its log (`kappamq store cut --to {high} --data DIR`)"
            )
        if end < low:
            raise Refusal(
                f"our log ends at {end}, that of the Apache master at {place} begins at {low} by now: what lies between is gone. Stop this "
                f"broker, copy the master's store folder while it is stopped, too, and start this broker on the copy"
            )
        return Start(end, high - end)

    async def keep_asking(self, place: str, stream: ClassicStream, shorten: Callable[[int], None]) -> None:
        """Adopt the master's tables periodically. `shorten` is called with the beginning of the master's log."""
        while True:
            try:
                answers = [(table, await self._ask(place, table.header())) for table in ASKED]
                said = await self._runtime(place)
                await stream.reach(_number(said, "commitLogMaxOffset"))
                for table, answer in answers:
                    await self._adopting.adopt(table, answer)
                shorten(_number(said, "commitLogMinOffset"))
                self._told = ""
            except KappaError as error:
                self.leave()
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning(
                        "copies: could not get topics, groups and offsets from the Apache master, retrying: %s",
                        error,
                    )
            await asyncio.sleep(_PAUSE_S)

    def leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _runtime(self, place: str) -> dict[str, str]:
        return KVTable.decode((await self._ask(place, GetBrokerRuntimeInfo())).body).table

    async def _ask(self, place: str, header: Header) -> Frame:
        if self._channel is None or not self._channel.is_open:
            self._channel = await Channel.connect(self._clients_at(place), timeout=_CONNECT_S, tls=self._tls)
        answer = await self._channel.request(request(header), timeout=_ANSWER_S)
        if answer.code != 0:
            raise NotKnown(
                f"the master answers request {answer_of(header)} with code {answer.code}: {str(answer.remark)[:500]}"
            )
        return answer

    def _clients_at(self, place: str) -> str:
        """From the name servers; else the default place, which is right unless its haListenPort is configured."""
        told = self._clients_address()
        if told is not None:
            return told
        host, port = address.split(place)
        return address.join(host, port - 1)


def answer_of(header: Header) -> int:
    return int(header.code or 0)


def _number(said: dict[str, str], key: str) -> int:
    try:
        return int(said[key])
    except (KeyError, ValueError):
        raise NotKnown(f"the master does not say {key} in its runtime information") from None

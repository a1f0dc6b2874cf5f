"""How the brokers of a batch transaction reach each other: by name, as the name servers know them. Calls to this broker stay inside."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

from kappamq.errors import BrokerNotFound, NotAvailable, NotConnected, NotMaster, RequestTimeout, for_code
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.batches import ChunkList, Decisions, FinishedBatches
from kappamq.protocol.bodies.topics import ClusterInfo
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import AskDecisions, CheckChunks, CheckChunksResponse, SettleScope
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetClusterInfo

_TIMEOUT_S: Final = 5.0
_MASTER: Final = 0


class Local(Protocol):
    """What the other side of a call to this very broker is."""

    async def decisions(self, scope: str, broker: str, finished: dict[str, dict[str, int]]) -> Decisions: ...

    async def rows_of(self, scope: str, transaction: str, chunks: list[list[int]]) -> int: ...

    def settle(self, scope: str) -> None: ...


class Peers:
    def __init__(
        self,
        name: str,
        nameservers: Callable[[], Sequence[str]],
        local: Callable[[], Local],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._name = name
        self._nameservers = nameservers
        self._local = local
        self._tls = tls
        self._channels: dict[str, Channel] = {}  # by broker name, or by address of a name server
        # by broker name, which anybody may say
        self._connecting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- calls -------------------------------------------------------------------------------------------------------------

    async def decisions(self, coordinator: str, scope: str, finished: dict[str, dict[str, int]]) -> Decisions:
        if coordinator == self._name:
            return await self._local().decisions(scope, self._name, finished)
        body = FinishedBatches(finished).encode()
        return Decisions.decode(
            (await self._call(coordinator, AskDecisions(scope=scope, broker=self._name), body)).body
        )

    async def check_chunks(self, broker: str, scope: str, transaction: str, chunks: list[list[int]]) -> int:
        if broker == self._name:
            return await self._local().rows_of(scope, transaction, chunks)
        body = ChunkList({broker: chunks}).encode()
        answer = await self._call(broker, CheckChunks(scope=scope, transaction=transaction), body)
        return CheckChunksResponse.decode(answer.ext).rows

    async def settle(self, broker: str, scope: str) -> None:
        if broker == self._name:
            self._local().settle(scope)
        else:
            await self._call(broker, SettleScope(scope=scope))

    # -- connections -------------------------------------------------------------------------------------------------------

    async def _call(self, broker: str, header: Header, body: bytes = b"") -> Frame:
        """The answer of another broker. Raises the KappaError that it answers with, or NotAvailable: with a text of ours, since
        whoever asked us would take a hint at its leader for one at ours."""
        try:
            channel = await self._channel_to(broker)
            answer = await channel.request(header, body, _TIMEOUT_S)
        except (NotConnected, RequestTimeout) as error:
            raise NotAvailable(f"broker {broker} does not answer now: {error}") from error
        if answer.code:
            refused = for_code(answer.code, f"broker {broker}: {answer.remark}")
            if isinstance(refused, NotMaster):
                # The node lives on without the role, and so does the connection: the next call looks up who has it now.
                self._forget(broker, channel)
                raise NotAvailable(f"broker {broker} at {channel.address} is not the master any more: try again")
            raise refused
        return answer

    def _forget(self, broker: str, channel: Channel) -> None:
        if self._channels.get(broker) is channel:
            del self._channels[broker]
        channel.close()

    async def _channel_to(self, broker: str) -> Channel:
        async with self._connecting.setdefault(broker, asyncio.Lock()):
            channel = self._channels.get(broker)
            if channel is None or not channel.is_open:
                channel = self._channels[broker] = await Channel.connect(await self._address_of(broker), tls=self._tls)
            return channel

    async def _address_of(self, broker: str) -> str:
        """The address of a master, as a name server knows it."""
        reasons = []
        for nameserver in self._nameservers():
            try:
                channel = self._channels.get(nameserver)
                if channel is None or not channel.is_open:
                    channel = self._channels[nameserver] = await Channel.connect(nameserver, tls=self._tls)
                answer = await channel.request(GetClusterInfo(), timeout=_TIMEOUT_S)
            except (NotConnected, RequestTimeout) as error:  # another one may know
                reasons.append(str(error))
                continue
            found = ClusterInfo.decode(answer.body).brokers.get(broker) if answer.code == 0 else None
            address = found.addresses.get(_MASTER) if found is not None else None
            if address:
                return address
            reasons.append(f"name server {nameserver} does not know it")
        raise BrokerNotFound(f"broker {broker} cannot be found: {'; '.join(reasons) or 'no name server is configured'}")

    def stop(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

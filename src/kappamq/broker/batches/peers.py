"""How the brokers of a batch transaction reach each other: by name, through the name servers. Calls to this broker stay local."""

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
_SHARED_S: Final = 1.0
"""How long a name server's answer is shared: many scopes may have coordinators that cannot be found."""
_NOW_S: Final = 0.0
"""The same, before reporting that there is no such broker: ask again. Concurrent callers share a request all the same."""


class Local(Protocol):
    """The peer in a call to this broker itself."""

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
        self._asked: dict[str, tuple[float, asyncio.Task[ClusterInfo | str]]] = {}  # by name server, with the time
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
        """Return the answer of another broker. Raises the KappaError that it answers with, or NotAvailable: with our own text, since
        the caller would take a hint at its leader for one at ours."""
        try:
            channel = await self._channel_to(broker)
            answer = await channel.request(header, body, _TIMEOUT_S)
        except (NotConnected, RequestTimeout) as error:
            raise NotAvailable(f"broker {broker} does not answer now: {error}") from error
        if answer.code:
            refused = for_code(answer.code, f"broker {broker}: {answer.remark}")
            if isinstance(refused, NotMaster):
                # The node goes on without the role, and so does the connection: the next call looks up the new master.
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
                channel = self._channels[broker] = await self._connect(broker)
            return channel

    async def _connect(self, broker: str) -> Channel:
        """Use a recent answer of a name server; if that does not work, ask it again."""
        address = None
        try:
            address = await self._address_of(broker, _SHARED_S)
            return await Channel.connect(address, tls=self._tls)
        except (BrokerNotFound, NotConnected, RequestTimeout):
            now = await self._address_of(broker, _NOW_S)
            if now == address:
                raise
        return await Channel.connect(now, tls=self._tls)

    async def _address_of(self, broker: str, age_s: float) -> str:
        """The address of a master, as a name server knows it."""
        reasons = []
        for nameserver in self._nameservers():
            info = await self._cluster_of(nameserver, age_s)
            if isinstance(info, str):  # another name server may know it
                reasons.append(info)
                continue
            found = info.brokers.get(broker)
            address = found.addresses.get(_MASTER) if found is not None else None
            if address:
                return address
            reasons.append(f"name server {nameserver} does not know it")
        raise BrokerNotFound(f"broker {broker} cannot be found: {'; '.join(reasons) or 'no name server is configured'}")

    async def knows(self, broker: str) -> bool:
        """Return whether a name server knows it, even if its master is away. Raises NotAvailable if none of them answers."""
        reasons = []
        nameservers = self._nameservers()
        for nameserver in nameservers:
            info = await self._cluster_of(nameserver, _NOW_S)
            if isinstance(info, str):
                reasons.append(info)
            elif broker in info.brokers:
                return True
        if reasons and len(reasons) == len(nameservers):
            raise NotAvailable(f"whether there is a broker {broker} cannot be said now: {'; '.join(reasons)}")
        return False

    async def _cluster_of(self, nameserver: str, age_s: float) -> ClusterInfo | str:
        """Return a name server's answer, at most this old, or its error; concurrent callers share a request."""
        now = asyncio.get_running_loop().time()
        asked = self._asked.get(nameserver)
        if asked is None or (asked[1].done() and now - asked[0] >= age_s) or asked[1].cancelled():
            asked = self._asked[nameserver] = now, asyncio.create_task(self._ask_cluster(nameserver))
        return await asyncio.shield(asked[1])

    async def _ask_cluster(self, nameserver: str) -> ClusterInfo | str:
        try:
            channel = self._channels.get(nameserver)
            if channel is None or not channel.is_open:
                channel = self._channels[nameserver] = await Channel.connect(nameserver, tls=self._tls)
            answer = await channel.request(GetClusterInfo(), timeout=_TIMEOUT_S)
        except (NotConnected, RequestTimeout) as error:
            return str(error)
        if answer.code:
            return f"name server {nameserver} answers {answer.code}: {answer.remark}"
        return ClusterInfo.decode(answer.body)

    def stop(self) -> None:
        for _at, question in self._asked.values():
            question.cancel()
        self._asked.clear()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

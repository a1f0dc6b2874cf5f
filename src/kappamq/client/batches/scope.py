"""A scope of batch transactions, as its owner uses it: open it, begin a batch, decide it.

What a batch needs to be staged (`Ticket`) and what staging brings (`Part`) are plain values: other processes may do the staging.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID
from kappamq.errors import GoingAway, IllegalOperation, NoRoute, NotConnected, NotMaster, NotSupported, RequestTimeout
from kappamq.protocol.bodies.batches import BatchOutcome, ChunkList
from kappamq.protocol.bodies.topics import ClusterInfo
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import (
    AbortBatch,
    AbortBatchResponse,
    AwaitBatch,
    BeginBatch,
    BeginBatchResponse,
    DecideBatch,
    OpenScope,
    OpenScopeResponse,
)
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetClusterInfo

_TRIES: Final = 5
_PAUSE_S: Final = 0.5
_NO_MASTER_S: Final = 10.0
"""How long to go on asking nodes that answer, but are not the master."""
_WAIT_S: Final = 10.0
CHECKSUM_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """What staging needs to know of a batch."""

    scope: str
    owner: str
    number: int
    transaction: str | None  # None: the batch was decided before, so that nothing is staged, only counted
    rows_max: int  # of a chunk


@dataclass(slots=True)
class Part:
    """What was staged of a batch, in order: everything, or what one of several writers did."""

    chunks: dict[str, list[list[int]]] = field(default_factory=dict)  # broker -> [place, CRC]
    rows: int = 0
    checksum: int = 0  # the sum of the CRCs of all bodies: the order of the rows does not matter

    def add(self, other: Part) -> None:
        for broker, chunks in other.chunks.items():
            self.chunks.setdefault(broker, []).extend(chunks)
        self.rows += other.rows
        self.checksum = (self.checksum + other.checksum) & CHECKSUM_MASK


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch ended."""

    number: int
    rows: int
    repeated: bool  # it was decided before: nothing was written this time
    published: bool  # on all brokers; else they are still at it
    dropped: Mapping[str, int]  # topic -> messages that could not be published, since the topic was deleted meanwhile


class Scope:
    """Created by `open_scope`."""

    def __init__(self, core: ClientCore, name: str, owner: str, coordinator: str, rows_max: int, last: int) -> None:
        self._core = core
        self.name = name
        self.owner = owner
        self.coordinator = coordinator
        self.last = last  # number of the last decided batch when the scope was opened, -1: none
        self._rows_max = rows_max

    async def begin(self, number: int) -> Ticket:
        """Begin to write a batch; what an earlier attempt has staged for it, or for another one, will be dropped."""
        answer = await self._ask(BeginBatch(scope=self.name, owner=self.owner, number=number))
        transaction = BeginBatchResponse.decode(answer.ext).transaction
        return Ticket(self.name, self.owner, number, transaction, self._rows_max)

    async def decide(self, ticket: Ticket, parts: Iterable[Part], *, wait_s: float = _WAIT_S) -> Outcome:
        """From now on the batch counts, whatever happens. Then waits, at most `wait_s`, until all of it is published."""
        whole = Part()
        for part in parts:
            whole.add(part)
        header = DecideBatch(
            scope=self.name,
            owner=self.owner,
            number=ticket.number,
            transaction=ticket.transaction or "",
            rows=whole.rows,
            checksum=whole.checksum,
        )
        answer = await self._ask(header, ChunkList(whole.chunks).encode())
        outcome = BatchOutcome.decode(answer.body)
        if not outcome.published and wait_s > 0:
            outcome = await self._published(ticket.number, wait_s)
        repeated = ticket.transaction is None
        return Outcome(outcome.number, outcome.rows, repeated, outcome.published, outcome.dropped)

    async def _published(self, number: int, wait_s: float) -> BatchOutcome:
        header = AwaitBatch(scope=self.name, owner=self.owner, number=number, wait_ms=int(wait_s * 1000))
        return BatchOutcome.decode((await self._ask(header, timeout=wait_s + self._core.request_timeout)).body)

    async def abort(self, ticket: Ticket) -> bool:
        """Drop what was staged; False if the batch was decided before."""
        if ticket.transaction is None:
            return False
        header = AbortBatch(scope=self.name, owner=self.owner, number=ticket.number, transaction=ticket.transaction)
        return not AbortBatchResponse.decode((await self._ask(header)).ext).decided

    async def _ask(self, header: Header, body: bytes = b"", timeout: float | None = None) -> Frame:
        """Ask the coordinator, again if it cannot be reached: every request of a scope may be repeated."""
        tries_left, no_master_until = _TRIES, self._core.clock.liveness() + _NO_MASTER_S
        while True:
            tries_left -= 1
            try:
                address = (await masters(self._core)).get(self.coordinator)
                if address is None:
                    raise NotConnected(
                        f"broker {self.coordinator}, which coordinates scope {self.name}, is not registered"
                    )
                return await self._core.ask(address, header, body, timeout=timeout)
            except NotMaster:  # the name server tells soon who is
                if self._core.clock.liveness() >= no_master_until:
                    raise
                tries_left = max(tries_left, 1)
            except (NotConnected, RequestTimeout, NoRoute, GoingAway):
                if not tries_left:
                    raise
            await asyncio.sleep(_PAUSE_S)


async def masters(core: ClientCore) -> dict[str, str]:
    """Broker name -> address, of all masters that the name servers know. Raises NoRoute if there is none."""
    info = ClusterInfo.decode((await core.ask_nameserver(GetClusterInfo())).body)
    found = {
        name: broker.addresses[MASTER_ID] for name, broker in info.brokers.items() if broker.addresses.get(MASTER_ID)
    }
    if not found:
        raise NoRoute("no master is registered with the name server")
    return found


async def open_scope(core: ClientCore, name: str, owner: str) -> Scope:
    """Open a scope on all masters, choosing its coordinator if it is new.

    Raises IllegalOperation if it belongs to another owner, NotConnected if a master cannot be reached, NotSupported if one is
    not a KappaMQ broker.
    """
    found = await masters(core)
    known = await _ask_all(core, found, OpenScope(scope=name, owner=owner))
    chosen = {answer.coordinator for answer in known.values() if answer.coordinator}
    if len(chosen) > 1:
        raise IllegalOperation(f"scope {name} has several coordinators ({', '.join(sorted(chosen))}): reset it")
    coordinator = chosen.pop() if chosen else min(found, key=lambda broker: zlib.crc32(f"{name}@{broker}".encode()))
    if coordinator not in found:
        raise NotConnected(f"broker {coordinator}, which coordinates scope {name}, is not registered: start it")
    if any(answer.coordinator is None for answer in known.values()):
        # The coordinator first: what it has is what counts.
        header = OpenScope(scope=name, owner=owner, coordinator=coordinator)
        order = {coordinator: found[coordinator]}, {broker: found[broker] for broker in found if broker != coordinator}
        for some in order:
            known |= await _ask_all(core, some, header)
        if {answer.coordinator for answer in known.values()} != {coordinator}:
            raise IllegalOperation(f"scope {name} was opened by somebody else at the same time: try again")
    rows_max = min(answer.chunk_rows_max or 1 for answer in known.values())
    last = known[coordinator].last
    return Scope(core, name, owner, coordinator, rows_max, -1 if last is None else last)


async def _ask_all(core: ClientCore, brokers: Mapping[str, str], header: OpenScope) -> dict[str, OpenScopeResponse]:
    answers: dict[str, OpenScopeResponse] = {}
    for broker, address in brokers.items():
        try:
            answers[broker] = OpenScopeResponse.decode((await core.ask(address, header)).ext)
        except NotSupported as error:
            raise NotSupported(
                f"broker {broker} at {address} does not know batch transactions, only KappaMQ brokers do: write with "
                "at-least-once delivery"
            ) from error
        except (NotConnected, RequestTimeout) as error:
            raise NotConnected(
                f"broker {broker} at {address} cannot be reached, and might know more of scope {header.scope}: {error}"
            ) from error
    return answers

"""A scope of batch transactions, as its owner uses it: open it, begin a batch, decide it.

The input of staging (`Ticket`) and its result (`Part`) are plain values, so other processes may do the staging.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kappamq.client.batches.patience import PATIENCE_S, Patience
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID
from kappamq.errors import IllegalOperation, KappaError, NoRoute, NotConnected, NotSupported, RequestTimeout
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
    QueryScopes,
)
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetClusterInfo

_WAIT_S: Final = 10.0
_WAIT_ONCE_S: Final = 10.0
"""A longer wait is split into several requests."""
CHECKSUM_MASK: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """What staging needs to know about a batch."""

    scope: str
    owner: str
    number: int
    transaction: str | None  # None: the batch was decided before, so that nothing is staged, only counted
    rows_max: int  # of a chunk


@dataclass(slots=True)
class Part:
    """The staged chunks of a batch, in order: all of them, or those of one of several writers."""

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
    published: bool  # on all brokers; else they are still publishing
    dropped: Mapping[str, int]  # topic -> messages that could not be published, since the topic was deleted meanwhile


class Scope:
    """Created by `open_scope`. `patience_s`: how long its coordinator may be away."""

    def __init__(
        self, core: ClientCore, name: str, owner: str, coordinator: str, rows_max: int, last: int, patience_s: float
    ) -> None:
        self._core = core
        self.patience_s = patience_s
        self.name = name
        self.owner = owner
        self.coordinator = coordinator
        self.last = last  # number of the last decided batch when the scope was opened, -1: none
        self._rows_max = rows_max

    async def begin(self, number: int, *, attempt: str | None = None) -> Ticket:
        """Begin to write a batch; chunks that an earlier attempt has staged, for this batch or another, will be dropped.
        Several writers that name the same attempt write the same batch, in whatever order they begin."""
        answer = await self._ask(BeginBatch(scope=self.name, owner=self.owner, number=number, attempt=attempt))
        transaction = BeginBatchResponse.decode(answer.ext).transaction
        return Ticket(self.name, self.owner, number, transaction, self._rows_max)

    async def decide(self, ticket: Ticket, parts: Iterable[Part], *, wait_s: float = _WAIT_S) -> Outcome:
        """Decide the batch: it will be published, whatever happens. Then wait, at most `wait_s`, until all of it is published."""
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
        return _outcome(outcome, repeated=ticket.transaction is None)

    async def published(self, number: int, *, wait_s: float = _WAIT_S) -> Outcome:
        """Wait, at most `wait_s`, until a batch that was decided before is published."""
        return _outcome(await self._published(number, wait_s), repeated=True)

    async def _published(self, number: int, wait_s: float) -> BatchOutcome:
        while True:
            once = min(wait_s, _WAIT_ONCE_S)
            header = AwaitBatch(scope=self.name, owner=self.owner, number=number, wait_ms=int(once * 1000))
            answer = await self._ask(header, timeout=once + self._core.request_timeout)
            outcome = BatchOutcome.decode(answer.body)
            wait_s -= once
            if outcome.published or wait_s <= 0:
                return outcome

    async def abort(self, ticket: Ticket) -> bool:
        """Drop the staged chunks; False if the batch was decided before. Not retried for long: the timeout, or the next attempt, drops
        them too."""
        if ticket.transaction is None:
            return False
        header = AbortBatch(scope=self.name, owner=self.owner, number=ticket.number, transaction=ticket.transaction)
        return not AbortBatchResponse.decode((await self._ask(header, patience_s=PATIENCE_S)).ext).decided

    async def _ask(
        self, header: Header, body: bytes = b"", timeout: float | None = None, patience_s: float | None = None
    ) -> Frame:
        """Ask the coordinator, and retry if it cannot be reached: every request of a scope may be repeated."""
        patience = Patience(self.patience_s if patience_s is None else patience_s)
        while True:
            try:
                address = (await masters(self._core)).get(self.coordinator)
                if address is None:
                    raise NotConnected(
                        f"broker {self.coordinator}, which coordinates scope {self.name}, is not registered"
                    )
                return await self._core.ask(address, header, body, timeout=timeout)
            except KappaError as error:
                await patience.wait_after(error)


def _outcome(found: BatchOutcome, *, repeated: bool) -> Outcome:
    return Outcome(found.number, found.rows, repeated, found.published, found.dropped)


async def masters(core: ClientCore) -> dict[str, str]:
    """Return broker name -> address, of all masters that the name servers know. Raises NoRoute if there is none."""
    info = ClusterInfo.decode((await core.ask_nameserver(GetClusterInfo())).body)
    found = {
        name: broker.addresses[MASTER_ID] for name, broker in info.brokers.items() if broker.addresses.get(MASTER_ID)
    }
    if not found:
        raise NoRoute("no master is registered with the name server")
    return found


async def check_masters(core: ClientCore, name: str) -> None:
    """Raises NotConnected if a master cannot be reached, NotSupported if one is not a KappaMQ broker: a scope needs all."""
    await _ask_all(core, await masters(core), QueryScopes(scope=name), name)


async def open_scope(core: ClientCore, name: str, owner: str, *, patience_s: float = PATIENCE_S) -> Scope:
    """Open a scope on all masters, choosing its coordinator if it is new.

    Raises IllegalOperation if it belongs to another owner, NotConnected if a master cannot be reached, NotSupported if one is
    not a KappaMQ broker.
    """
    found = await masters(core)
    known = await _open(core, found, OpenScope(scope=name, owner=owner))
    chosen = {answer.coordinator for answer in known.values() if answer.coordinator}
    if len(chosen) > 1:
        raise IllegalOperation(f"scope {name} has several coordinators ({', '.join(sorted(chosen))}): reset it")
    coordinator = chosen.pop() if chosen else min(found, key=lambda broker: zlib.crc32(f"{name}@{broker}".encode()))
    if coordinator not in found:
        raise NotConnected(f"broker {coordinator}, which coordinates scope {name}, is not registered: start it")
    if any(answer.coordinator is None for answer in known.values()):
        # The coordinator first: its record is authoritative.
        header = OpenScope(scope=name, owner=owner, coordinator=coordinator)
        order = {coordinator: found[coordinator]}, {broker: found[broker] for broker in found if broker != coordinator}
        for some in order:
            known |= await _open(core, some, header)
        if {answer.coordinator for answer in known.values()} != {coordinator}:
            raise IllegalOperation(f"scope {name} was opened by somebody else at the same time: try again")
    rows_max = min(answer.chunk_rows_max or 1 for answer in known.values())
    last = known[coordinator].last
    return Scope(core, name, owner, coordinator, rows_max, -1 if last is None else last, patience_s)


async def _open(core: ClientCore, brokers: Mapping[str, str], header: OpenScope) -> dict[str, OpenScopeResponse]:
    answers = await _ask_all(core, brokers, header, header.scope)
    return {broker: OpenScopeResponse.decode(answer.ext) for broker, answer in answers.items()}


async def _ask_all(core: ClientCore, brokers: Mapping[str, str], header: Header, scope: str) -> dict[str, Frame]:
    """Ask these brokers concurrently and return their answers. Raises the error of the first one that fails."""

    async def ask(broker: str, address: str) -> Frame:
        try:
            return await core.ask(address, header)
        except NotSupported as error:
            raise NotSupported(
                f"broker {broker} at {address} does not know batch transactions, only KappaMQ brokers do: write with "
                "at-least-once delivery"
            ) from error
        except (NotConnected, RequestTimeout) as error:
            raise NotConnected(
                f"broker {broker} at {address} cannot be reached, and might know more of scope {scope}: {error}"
            ) from error

    answers = await asyncio.gather(
        *(ask(broker, address) for broker, address in brokers.items()), return_exceptions=True
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return {broker: answer for broker, answer in zip(brokers, answers, strict=True) if isinstance(answer, Frame)}

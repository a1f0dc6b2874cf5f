"""A broker that holds chunks: stages them, and asks the coordinator of their scope whether to publish them.

Nothing is published or dropped before the coordinator has answered, however long it cannot be reached.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from kappamq.broker.sending.appending import Appender, Draft, Placed
from kappamq.config.broker import BrokerConfig
from kappamq.errors import Busy, IllegalMessage, IllegalOperation, InvalidParameter, KappaError, TransactionFailed
from kappamq.protocol.bodies.batches import DecidedChunks, Decisions
from kappamq.protocol.headers.batches import StageChunk
from kappamq.protocol.names import STAGED_TOPIC
from kappamq.state.metadata import Commit
from kappamq.state.scopes import Scope, Scopes
from kappamq.state.staged import LOST_CHUNKS, Chunk, Staged, StagedChunks, row
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

CHUNK_BYTES_MAX: Final = 256 << 10
CHUNK_ROWS_MAX: Final = 1000
CHUNK_ROWS_MAX_TWIN: Final = 64
"""So that publishing one chunk takes the loop about a millisecond or two."""
UNDECIDED_MAX: Final = 100
"""Transactions of one scope whose chunks wait for a decision: one is open at a time, the others wait to be dropped."""
TRANSACTION_CHUNKS_MAX: Final = 80_000
"""On one broker. A decision lists about 43,000 at most (decision_bytes_max); failed attempts may have staged some, too."""
_TRANSACTION: Final = re.compile(r"[0-9a-f]{32}")
_CHECKED_AT_ONCE: Final = 1000
"""Of the chunks that a decision lists."""
ASK_S: Final = 5.0
"""How long chunks lie before the coordinator is asked, and between two questions."""
ASK_MAX_S: Final = 300.0
"""The pause after a coordinator could not be reached: each time twice as long."""
ASKED_AT_ONCE_MAX: Final = 50
"""Scopes, in one tick; more than that wait for the next one."""


class Decides(Protocol):
    """Reaches the coordinator of a scope, wherever it is."""

    async def decisions(self, coordinator: str, scope: str, finished: dict[str, dict[str, int]]) -> Decisions: ...


class Sent(NamedTuple):
    """A chunk as a client sent it."""

    header: StageChunk
    body: bytes
    born: bytes


class Participant:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        scopes: Scopes,
        staged: StagedChunks,
        commit: Commit,
        appender: Appender,
        coordinators: Decides,
        liveness: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_decided: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._scopes = scopes
        self._staged = staged
        self._commit = commit
        self._appender = appender
        self._coordinators = coordinators
        self._liveness = liveness
        self._spawn = spawn
        self._on_decided = on_decided
        self._settling: dict[str, bool] = {}  # scopes that a job asks about -> whether it should ask once more
        self._ask_at: dict[str, float] = {}  # liveness time
        # One request at a time for each scope: an answer that another one has overtaken would be wrong.
        # while somebody asks: anybody names scopes
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._failures: dict[str, int] = {}  # consecutive requests without an answer
        self._complaints: dict[str, str] = {}

    @property
    def rows_max(self) -> int:
        return CHUNK_ROWS_MAX if self._store.kernel_module.NAME == "native" else CHUNK_ROWS_MAX_TWIN

    # -- staging -----------------------------------------------------------------------------------------------------------

    def check(self, sent: Sent) -> None:
        """Check everything that does not need the body. Raises the KappaError for the client."""
        header, body = sent.header, sent.body
        scope = self._scopes.get(header.scope)
        if scope is None:
            raise InvalidParameter(f"scope {header.scope} is not known to broker {self._config.name}: open it first")
        if scope.owner != header.owner:
            raise IllegalOperation(f"scope {header.scope} belongs to {scope.owner}, not to {header.owner}")
        self._check_transaction(header)
        if not 1 <= header.rows <= self.rows_max:
            raise IllegalMessage(
                f"a chunk has 1 to {self.rows_max} messages with the {self._store.kernel_module.NAME} kernel, not {header.rows}"
            )
        if header.rows > 1 and len(body) > CHUNK_BYTES_MAX:
            raise IllegalMessage(
                f"the chunk has {len(body)} bytes, the limit is {CHUNK_BYTES_MAX}; only a single message may have more"
            )
        if self._store.kernel_module.crc32(body) != header.crc:
            raise IllegalMessage(
                "the CRC of the chunk is not the one in its header: it was damaged on its way, send it again"
            )
        self._check_room(header)
        limit = self._config.staged_bytes_max
        if self._staged.charged_bytes + len(body) > limit:
            raise Busy(
                f"{self._staged.charged_bytes} bytes are staged for batch transactions, the limit is {limit} (staged_bytes_max): "
                "try again when they are decided"
            )

    def _check_room(self, header: StageChunk) -> None:
        staged = self._staged.get(header.transaction)
        if staged is None and self._staged.undecided(header.scope) >= UNDECIDED_MAX:
            raise Busy(
                f"{UNDECIDED_MAX} transactions of scope {header.scope} are staged and not decided: try again when its coordinator has "
                "said what becomes of them (the broker's log tells if it cannot be asked)"
            )
        if staged is not None and len(staged.chunks) >= TRANSACTION_CHUNKS_MAX:
            raise IllegalOperation(
                f"transaction {header.transaction} has {TRANSACTION_CHUNKS_MAX} chunks on broker {self._config.name} already, more than "
                "can be decided: write smaller batches"
            )

    def _check_transaction(self, header: StageChunk) -> None:
        if header.number < 0:
            raise InvalidParameter(f"batches are numbered from 0 on, not {header.number}")
        if _TRANSACTION.fullmatch(header.transaction) is None:
            raise InvalidParameter(
                "the transaction of the chunk is none that a coordinator began: begin the batch first"
            )
        staged = self._staged.get(header.transaction)
        if staged is not None and (staged.scope, staged.number) != (header.scope, header.number):
            raise IllegalOperation(
                f"transaction {header.transaction} is that of batch {staged.number} in scope {staged.scope}, not of batch "
                f"{header.number} in scope {header.scope}"
            )

    def stage(self, sent: Sent, queue_id: int) -> tuple[int, Placed]:
        """Store a chunk that was checked and read; returns its place, and where its record is."""
        header, body = sent.header, sent.body
        place = self._store.queue_state(STAGED_TOPIC, 0).next
        chunk = Chunk(place, self._store.append_offset, header.crc, header.rows, len(body), header.topic, queue_id)
        pairs = {
            "scope": header.scope,
            "number": str(header.number),
            "transaction": header.transaction,
            "partition": f"{header.partition}.{header.attempt}.{header.sequence}",
        }
        draft = Draft(STAGED_TOPIC, 0, body, pairs, born_ms=header.born_ms, born=sent.born, waited=True)
        replaces = self._staged.get(header.transaction) is None and any(
            staged.waiting is None for staged in self._staged.of_scope(header.scope)
        )
        change = "chunk-staged", [header.transaction, header.scope, header.number, row(chunk)]
        (placed,) = self._appender.append_group([draft], [change])
        assert placed.queue_offset == place
        if replaces:  # chunks of an earlier attempt need not stay until this one is over
            self.settle(header.scope)
        else:
            self._ask_at[header.scope] = self._liveness() + self._pause(header.scope)
        return place, placed

    async def rows_of(self, scope: str, transaction: str, chunks: list[list[int]]) -> int:
        """Return how many rows these chunks have together. Raises TransactionFailed if they do not match what is staged here.

        Other requests may run meanwhile, which is safe: no chunk of an open transaction is dropped."""
        staged = self._staged.get(transaction)
        rows = 0
        seen: set[int] = set()
        for number, listed in enumerate(chunks):
            if number % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            place, crc = listed if len(listed) == 2 else (-1, 0)
            chunk = staged.chunks.get(place) if staged is not None and staged.scope == scope else None
            if chunk is None or chunk.crc != crc or place in seen:
                raise TransactionFailed(
                    f"broker {self._config.name} has no chunk at place {place} with CRC {crc} for transaction {transaction} of scope "
                    f"{scope}, or it is listed twice: nothing is decided"
                )
            seen.add(place)
            rows += chunk.rows
        return rows

    # -- the decision ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About once a second: ask about chunks that have waited for a while, and report what was published."""
        now = self._liveness()
        found = [(self._ask_at.setdefault(scope, now), scope) for scope in self._staged.scopes()]
        due = [one for one in found if one[0] <= now and one[1] not in self._settling]
        for _at, scope in heapq.nsmallest(ASKED_AT_ONCE_MAX, due):
            self.settle(scope)

    def settle(self, scope: str) -> None:
        """Ask the coordinator of a scope, soon."""
        self._ask_at[scope] = self._liveness() + self._pause(scope)
        if scope in self._settling:
            self._settling[scope] = True
        else:
            self._settling[scope] = False
            self._spawn(self._settle(scope))

    async def _settle(self, scope: str) -> None:
        try:
            while True:
                self._settling[scope] = False
                async with self._turn(scope):
                    await self._ask(scope)
                if not self._settling[scope]:
                    break
            self._complaints.pop(scope, None)
            self._failures.pop(scope, None)
        except KappaError as error:
            self._failures[scope] = self._failures.get(scope, 0) + 1
            self._ask_at[scope] = self._liveness() + self._pause(scope)
            if self._complaints.get(scope) != str(error):
                self._complaints[scope] = str(error)
                log.warning("scope %s: cannot ask the coordinator about staged chunks: %s", scope, error)
        finally:
            del self._settling[scope]
            if not self._staged.of_scope(scope):
                self._ask_at.pop(scope, None)
                self._failures.pop(scope, None)
                self._complaints.pop(scope, None)

    def _pause(self, scope: str) -> float:
        return min(ASK_S * (1 << min(self._failures.get(scope, 0), 10)), ASK_MAX_S)

    async def settled(self, scope: str) -> bool:
        """Ask now; return whether nothing is staged any more. Raises KappaError if the coordinator cannot be reached."""
        async with self._turn(scope):
            await self._ask(scope)
        return not self._staged.of_scope(scope)

    def _turn(self, scope: str) -> asyncio.Lock:
        return self._asking.setdefault(scope, asyncio.Lock())

    async def _ask(self, name: str) -> None:
        scope = self._scopes.get(name)
        finished = {one.transaction: one.dropped for one in self._staged.of_scope(name) if one.is_published}
        if finished:
            # The coordinator forgets published batches: before that the messages must be confirmed.
            await self._appender.kept(self._store.append_offset)
        mine = [staged.transaction for staged in self._staged.of_scope(name)]
        if scope is None:
            answer = Decisions()  # it was removed, by an operator
        else:
            answer = await self._coordinators.decisions(scope.coordinator, name, finished)
        decided = {one.transaction: one for one in answer.decided}
        for transaction in mine:
            staged = self._staged.get(transaction)
            if staged is None:
                continue
            if transaction in finished:
                if transaction not in decided:  # the coordinator has noted it
                    self._commit("chunks-finished", [transaction])
            elif staged.waiting is None:
                if transaction in decided:
                    self._publish(staged, decided[transaction].chunks)
                elif transaction != answer.open:
                    log.info("scope %s: dropped %d staged chunks of batch %d", name, len(staged.chunks), staged.number)
                    self._commit("chunks-dropped", [transaction])
        if scope is not None:
            await self._report_lost(scope, answer.decided)

    async def _report_lost(self, scope: Scope, decided: list[DecidedChunks]) -> None:
        """Report decided transactions without chunks here to the coordinator, so that it does not wait for them."""
        # Do not rely on what was here when it was asked: a chunk that was staged meanwhile may be decided already.
        if all(self._staged.get(one.transaction) is not None for one in decided):
            return
        # A deposed node that has not noticed lacks what its successor has: only a node that can still get a record confirmed may report
        # chunks as lost. The coordinator forgets them then, and the successor would drop them.
        self._commit("scope-asked", [scope.name])
        await self._appender.kept(self._store.append_offset)
        lost = [one for one in decided if self._staged.get(one.transaction) is None]
        for one in lost:
            _log_lost(scope.name, one.number, len(one.chunks))
        dropped = {one.transaction: {LOST_CHUNKS: len(one.chunks)} for one in lost}
        await self._coordinators.decisions(scope.coordinator, scope.name, dropped)

    def _publish(self, staged: Staged, chunks: list[list[int]]) -> None:
        here = [place for place, crc in chunks if place in staged.chunks and staged.chunks[place].crc == crc]
        if not here:
            # The chunks here are of a later attempt, which is not valid; the decided ones are reported as lost.
            self._commit("chunks-dropped", [staged.transaction])
            return
        lost = len(chunks) - len(here)
        if lost:
            _log_lost(staged.scope, staged.number, lost)
        self._commit("chunks-decided", [staged.transaction, here, lost])
        self._on_decided()


def _log_lost(scope: str, number: int, chunks: int) -> None:
    log.error(
        "scope %s: batch %d is decided, but %d of its chunks are not in this store: was its disk replaced, or is it a copy that was "
        "behind? They are lost",
        scope,
        number,
        chunks,
    )

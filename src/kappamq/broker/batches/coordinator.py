"""The coordinator of scopes: begins a transaction, decides it or aborts it, and remembers the decision until all have published.

Answers must never be taken back: every answer waits until the log is confirmed, and copied as for a send, up to
the record it depends on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from kappamq.broker.sending.appending import Appender
from kappamq.config.broker import BrokerConfig
from kappamq.errors import IllegalOperation, InvalidParameter, KappaError, TransactionFailed
from kappamq.protocol.bodies.batches import BatchOutcome, DecidedChunks, Decisions
from kappamq.protocol.names import check_broker, check_group, check_topic
from kappamq.state.metadata import Commit
from kappamq.state.scopes import OTHERS, Chunks, Scope, Scopes, summed
from kappamq.state.staged import LOST_CHUNKS

log = logging.getLogger(__name__)

OWNER_CHARACTERS_MAX: Final = 200
ATTEMPT_CHARACTERS_MAX: Final = 64
BROKERS_MAX: Final = 256
"""The limit for one batch: all of them are asked at once."""
DROPPED_MAX: Final = 1 << 40
"""Messages of one topic that a broker may report as dropped from a batch."""


class Participants(Protocol):
    """The brokers that hold chunks, this one included."""

    async def check_chunks(self, broker: str, scope: str, transaction: str, chunks: list[list[int]]) -> int:
        """Return how many rows these chunks have. Raises KappaError if one of them is not staged there as claimed."""
        ...

    async def knows(self, broker: str) -> bool:
        """Return whether a name server knows it. Raises NotAvailable if none can be reached."""
        ...

    async def settle(self, broker: str, scope: str) -> None:
        """Tell a broker to ask for the decision."""
        ...


class Coordinator:
    def __init__(
        self,
        config: BrokerConfig,
        scopes: Scopes,
        commit: Commit,
        appender: Appender,
        participants: Participants,
        end: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake`: wakes the agenda, since something is due at a time that it does not know yet."""
        self._config = config
        self._scopes = scopes
        self._commit = commit
        self._appender = appender
        self._participants = participants
        self._end = end  # of the log
        self._spawn = spawn
        self._wake = wake
        self._published = asyncio.Event()  # set and replaced whenever a batch was published everywhere

    # -- scopes ------------------------------------------------------------------------------------------------------------

    async def open_scope(self, name: str, owner: str, coordinator: str | None) -> Scope | None:
        """Record a scope if it is new, and return its state. Raises IllegalOperation if it has another owner."""
        _check_names(name, owner)
        scope = self._scopes.get(name)
        if scope is None:
            if not coordinator:
                return None
            self._check_room()
            check_broker(coordinator)
            if coordinator != self._config.name and not await self._participants.knows(coordinator):
                raise InvalidParameter(
                    f"no name server of broker {self._config.name} knows a broker {coordinator}, which shall coordinate scope {name}: "
                    "whatever is staged for it could not be decided. Start that broker, or let the client choose one"
                )
            if self._scopes.get(name) is None:  # others had a turn
                self._check_room()
                self._commit("scope", [name, owner, coordinator])
        await self._confirmed()
        return self._owned(name, owner)

    def _check_room(self) -> None:
        if len(self._scopes.table) >= self._config.scopes_max:
            raise InvalidParameter(
                f"there are {len(self._scopes.table)} scopes already (scopes_max): `kappamq scope reset` removes those that are "
                "no longer used"
            )

    async def remove_scope(self, name: str, owner: str, *, force: bool = False) -> None:
        """Forget a scope. Raises IllegalOperation while messages of it are still to be published, unless with `force`."""
        scope = self._owned(name, owner)
        if scope.publishing and not force:
            raise IllegalOperation(
                f"scope {name} has {len(scope.publishing)} decided batches that are not published on all brokers "
                f"({', '.join(sorted({broker for one in scope.publishing.values() for broker in one.chunks}))}): "
                f"wait until they are. If such a broker is gone for good: `kappamq scope reset {name} --force`"
            )
        self._commit("scope-removed", [name])
        await self._confirmed()

    def _owned(self, name: str, owner: str) -> Scope:
        scope = self._scopes.get(name)
        if scope is None:
            raise InvalidParameter(f"scope {name} is not known to broker {self._config.name}: open it first")
        if scope.owner != owner:
            raise IllegalOperation(
                f"scope {name} belongs to {scope.owner}, not to {owner}. If that was a query whose checkpoint was deleted, its "
                f"batches may be in the topics already: check that, then run `kappamq scope reset {name}`, or use another scope"
            )
        return scope

    def _coordinated(self, name: str, owner: str) -> Scope:
        scope = self._owned(name, owner)
        if scope.coordinator != self._config.name:
            raise InvalidParameter(f"scope {name} is coordinated by {scope.coordinator}, not by {self._config.name}")
        return scope

    # -- a transaction -----------------------------------------------------------------------------------------------------

    async def begin(self, name: str, owner: str, number: int, attempt: str | None) -> str | None:
        """Open a transaction for a batch, in place of one that is open; None if the batch was decided before.

        All that name the same attempt share a transaction; an attempt that was replaced by another one cannot come back."""
        scope = self._coordinated(name, owner)
        if number < 0:
            raise InvalidParameter(f"batches are numbered from 0 on, not {number}")
        if attempt is not None and not (0 < len(attempt) <= ATTEMPT_CHARACTERS_MAX and attempt.isprintable()):
            raise InvalidParameter(f"the name of an attempt has 1 to {ATTEMPT_CHARACTERS_MAX} printable characters")
        transaction = None
        if number > scope.last:
            opened = scope.open
            if attempt is not None and opened is not None and opened.number == number and attempt in opened.attempts:
                if attempt != opened.attempts[-1]:
                    raise TransactionFailed(
                        f"attempt {attempt} at batch {number} of scope {name} was replaced by a later one: what it wrote does not count"
                    )
                transaction = opened.transaction
            else:
                transaction = uuid.uuid4().hex
                change = [name, transaction, number]
                self._commit("batch-begun", change if attempt is None else [*change, attempt])
                self._wake()  # it must be aborted if it is never decided
        await self._confirmed()
        return transaction

    async def decide(
        self, name: str, owner: str, number: int, transaction: str, rows: int, checksum: int, chunks: Chunks
    ) -> BatchOutcome:
        """Decide the batch: it will be published. Repeating the request changes nothing and gets the same answer."""
        scope = self._coordinated(name, owner)
        if number < 0:
            raise InvalidParameter(f"batches are numbered from 0 on, not {number}")
        if checksum < 0:
            raise InvalidParameter(f"the checksum of a batch is a sum of CRCs, not {checksum}")
        if number > scope.last:
            self._check_open(scope, number, transaction)
            chunks = {broker: listed for broker, listed in chunks.items() if listed}
            if len(chunks) > BROKERS_MAX:
                raise InvalidParameter(f"the decision names {len(chunks)} brokers, the limit is {BROKERS_MAX}")
            try:
                await self._check_chunks(name, transaction, rows, chunks)
            except KappaError:
                # Other requests ran meanwhile: if the same was decided, the chunks may be published, and gone.
                if number > self._coordinated(name, owner).last:
                    raise
            scope = self._coordinated(name, owner)
        if number > scope.last:
            self._check_open(scope, number, transaction)
            self._commit("batch-decided", [name, transaction, number, rows, checksum, chunks])
            await self._confirmed()
            for broker in chunks:
                self._spawn(self._settle(broker, name))
        else:
            self._check_same(scope, number, rows, checksum)
            await self._confirmed()
        return self._outcome(scope, number)

    async def _check_chunks(self, scope: str, transaction: str, rows: int, chunks: Chunks) -> None:
        check = self._participants.check_chunks
        found = await asyncio.gather(*(check(broker, scope, transaction, listed) for broker, listed in chunks.items()))
        if sum(found) != rows:
            raise TransactionFailed(f"the chunks have {sum(found)} rows, not {rows}: nothing is decided")

    def _check_open(self, scope: Scope, number: int, transaction: str) -> None:
        if scope.open is None or scope.open.transaction != transaction or scope.open.number != number:
            raise TransactionFailed(
                f"transaction {transaction} of batch {number} in scope {scope.name} is not open (any more): it was aborted after "
                f"{self._config.batch_transaction_timeout_ms} ms, or another attempt took its place. Nothing of it is published"
            )

    def _check_same(self, scope: Scope, number: int, rows: int, checksum: int) -> None:
        decided = scope.decided.get(number)
        if decided is None:
            raise IllegalOperation(
                f"batch {number} of scope {scope.name} is older than the last {len(scope.decided)} that are remembered (up to "
                f"{scope.last}): whether it is the same cannot be said"
            )
        if (decided.rows, decided.checksum) != (rows, checksum):
            raise IllegalOperation(
                f"batch {number} of scope {scope.name} was decided with {decided.rows} rows and checksum {decided.checksum}, now it has "
                f"{rows} rows and checksum {checksum}. It was published as it was; a batch must give the same rows when it is repeated"
            )

    async def _settle(self, broker: str, scope: str) -> None:
        with contextlib.suppress(KappaError):  # it asks by itself in a while
            await self._participants.settle(broker, scope)

    async def abort(self, name: str, owner: str, number: int, transaction: str) -> bool:
        """Abort the transaction; returns whether that is impossible because it was decided before."""
        scope = self._coordinated(name, owner)
        if scope.open is not None and scope.open.transaction == transaction:
            self._commit("batch-aborted", [name, transaction])
        await self._confirmed()
        return number <= scope.last

    async def published(self, name: str, owner: str, number: int, wait_s: float) -> BatchOutcome:
        """Return the outcome of a decided batch, as soon as it is published on all brokers, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._outcome(self._coordinated(name, owner), number).published:
                    await self._published.wait()
        return self._outcome(self._coordinated(name, owner), number)

    @staticmethod
    def _outcome(scope: Scope, number: int) -> BatchOutcome:
        decided = scope.decided.get(number)
        if decided is None:
            raise InvalidParameter(f"batch {number} of scope {scope.name} is not decided")
        published = all(one.number != number for one in scope.publishing.values())
        return BatchOutcome(decided.number, decided.rows, decided.checksum, published, dict(decided.dropped))

    # -- participants ------------------------------------------------------------------------------------------------------

    async def decisions(self, name: str, broker: str, finished: dict[str, dict[str, int]]) -> Decisions:
        """A broker reports what it has published and gets the chunks that are still to be published. It can drop all others."""
        scope = self._coordinated_here(name)
        noted = False
        for transaction, dropped in finished.items():
            publishing = None if scope is None else scope.publishing.get(transaction)
            if publishing is not None and broker in publishing.chunks:
                self._commit("batch-finished", [name, transaction, broker, _checked(name, broker, dropped)])
                noted = True
        if not noted and broker != self._config.name:
            # A deposed node that has not noticed would cause chunks to be dropped that its successor has decided: only a node that can
            # still get a record confirmed may say what was not decided. (Our own chunks are in the same log as the decision.)
            self._commit("scope-asked", [name])
        # As of now, not as of the moment when it is confirmed: decisions made meanwhile are confirmed later.
        answer = self._decisions(scope, broker)
        await self._confirmed()
        self._published.set()
        self._published = asyncio.Event()
        return answer

    def _coordinated_here(self, name: str) -> Scope | None:
        scope = self._scopes.get(name)
        return scope if scope is not None and scope.coordinator == self._config.name else None

    @staticmethod
    def _decisions(scope: Scope | None, broker: str) -> Decisions:
        if scope is None:
            return Decisions()
        decided = [
            DecidedChunks(one.transaction, one.number, one.chunks[broker])
            for one in scope.publishing.values()
            if broker in one.chunks
        ]
        return Decisions(scope.open.transaction if scope.open is not None else None, decided)

    # -- a part of the agenda: undecided batches are aborted -----------------------------------------------------------------

    def due_ms(self) -> int | None:
        oldest = self._scopes.oldest_open(self._config.name)
        if oldest is None or oldest.open is None:
            return None
        return oldest.open.begun_ms + self._config.batch_transaction_timeout_ms

    def run(self, now_ms: int) -> None:
        oldest = self._scopes.oldest_open(self._config.name)
        if oldest is None or oldest.open is None:
            return
        log.warning(
            "batch %d of scope %s was not decided within %d ms: aborted",
            oldest.open.number,
            oldest.name,
            now_ms - oldest.open.begun_ms,
        )
        self._commit("batch-aborted", [oldest.name, oldest.open.transaction])

    async def _confirmed(self) -> None:
        await self._appender.kept(self._end())


def _checked(scope: str, broker: str, dropped: dict[str, int]) -> dict[str, int]:
    """Bound what a broker reports as dropped: any peer may claim to be a broker, and the report is kept as long as the batch is
    remembered."""
    if any(not 0 <= count <= DROPPED_MAX for count in dropped.values()):
        raise InvalidParameter(
            f"broker {broker} reports a count of dropped messages for scope {scope} that is none: 0 to {DROPPED_MAX} are possible"
        )
    named = {topic: count for topic, count in dropped.items() if _is_name(topic)}
    others = sum(dropped.values()) - sum(named.values())
    counts = summed({}, named)
    return summed(counts, {OTHERS: others}) if others else counts


def _is_name(topic: str) -> bool:
    if topic in (LOST_CHUNKS, OTHERS):
        return True
    try:
        check_topic(topic)
    except InvalidParameter:
        return False
    return True


def _check_names(scope: str, owner: str) -> None:
    try:
        check_group(scope)
    except InvalidParameter as error:
        raise InvalidParameter(f"{str(error).replace('group', 'scope')}") from error
    if not owner or len(owner) > OWNER_CHARACTERS_MAX or not owner.isprintable():
        raise InvalidParameter(f"the owner of a scope has 1 to {OWNER_CHARACTERS_MAX} printable characters")

"""Requests about transactions: how one begins (a half message), ends (37), and is asked about again (323).

The first decision counts. A second one, whether the producer's own that comes late or an answer to a check that was sent
meanwhile, changes nothing: if it is the same it gets the same answer as the first, else the earlier decision.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Draft, Placed
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.open_transactions import Half, Outcome
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import (
    BrokerError,
    IllegalMessage,
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    ProtocolError,
    TransactionFailed,
)
from kappamq.protocol import names
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import ResumeCheckHalfMessage
from kappamq.protocol.headers.client import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN,
    EndTransaction,
)
from kappamq.protocol.records import properties
from kappamq.protocol.records.ids import parse_offset_id
from kappamq.protocol.records.record import Record
from kappamq.protocol.timing import number

log = logging.getLogger(__name__)

_OUTCOMES = {TRANSACTION_COMMIT: Outcome.COMMITTED, TRANSACTION_ROLLBACK: Outcome.ROLLED_BACK}
_SAID = {
    Outcome.COMMITTED: "it was committed",
    Outcome.ROLLED_BACK: "it was rolled back",
    Outcome.GIVEN_UP: f"it was given up, since nobody had decided; the message is in {names.TRANSACTION_GIVEN_UP_TOPIC}",
}
_RESUMED_FROM = (names.HALF_TOPIC, names.TRANSACTION_GIVEN_UP_TOPIC)
_TIMES = (properties.DELAY, *sorted(properties.TIMER_NAMES))
_PROPERTIES_BYTES_KEPT = 200  # for what copies of a half will say on top
CheckAsked = Callable[[Draft, int, int], object]
"""Raises if a message asks for a time that cannot be had: (message, now, bytes that its properties will grow by)."""


class Transactions:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        writer: LogWriter,
        half_log: HalfLog,
        worker: Worker,
        check_asked: CheckAsked,
    ) -> None:
        self._config = config
        self._clock = clock
        self._writer = writer
        self._log = half_log
        self._worker = worker
        self._check_asked = check_asked

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    # -- beginning ---------------------------------------------------------------------------------------------------------

    def prepare(self, draft: Draft, group: str) -> Placed:
        """Store the first half of a transaction of the producers `group`."""
        if self._config.reject_transactions:
            raise NoPermission(
                f"the broker[{self._config.name}] sending transaction message is forbidden (rejectTransactionMessage)"
            )
        for name in _TIMES:
            number(draft.properties, name)  # else it could never be committed
        unique = draft.properties.get(properties.UNIQUE_KEY, "")
        added = _PROPERTIES_BYTES_KEPT + len(f"{draft.topic}{group}{unique}".encode())
        self._check_asked(draft, self._clock.message_ms(), added)
        size = sum(len(name) + len(value) + 2 for name, value in draft.properties.items())
        if size > properties.TEXT_BYTES_MAX // 4:  # then it is worth counting the bytes
            size = len(properties.encode(draft.properties).encode())
            limit = properties.TEXT_BYTES_MAX - _PROPERTIES_BYTES_KEPT - len(draft.topic) - len(group)
            if size > limit:
                raise IllegalMessage(
                    f"the message is illegal: its properties take {size} bytes, those of a transaction {limit} at most"
                )
        return self._log.prepare(draft, group)

    # -- ending ------------------------------------------------------------------------------------------------------------

    def end(self, request: Request[EndTransaction]) -> Awaitable[None] | Frame | None:
        header = request.header
        if header.decision == TRANSACTION_UNKNOWN:
            log.info(
                "%s leaves transaction %s open: %s",
                request.connection,
                header.message_id,
                request.remark or "no reason given",
            )
            return request.reply(remark="it stays open: a producer of the group will be asked")
        outcome = _OUTCOMES.get(header.decision)
        if outcome is None:
            raise InvalidParameter(
                f"commitOrRollback is {TRANSACTION_COMMIT} (commit), {TRANSACTION_ROLLBACK} (roll back) or "
                f"{TRANSACTION_UNKNOWN} (not known yet), not {header.decision}"
            )
        if self._log.is_hot(header.log_offset):
            self._log.write_up_to(header.log_offset)
            named = self._log.record_at(header.log_offset)
            root = self._root(header, named)
            record = self._at_hand(root, named)
            known = self._log.halves.get(root) is not None or self._log.halves.ended(root) is not None
            if known and (record is not None or outcome is not Outcome.COMMITTED):
                self._decide(request, outcome, root, record)
                return None
        return self._end_slowly(request, outcome)

    async def _end_slowly(self, request: Request[EndTransaction], outcome: Outcome) -> None:
        """Something has to be read from the disk first."""
        header = request.header
        named = await self._worker(self._log.record_at, header.log_offset)
        root = self._root(header, named)
        await self._log.recall(root, self._worker)
        record = self._at_hand(root, named)
        if record is None and outcome is Outcome.COMMITTED:
            record = await self._log.load_slowly(root, self._worker)
        self._decide(request, outcome, root, record)

    def _at_hand(self, root: int, named: Record | None) -> Record | None:
        """What would be committed, if it need not be read from the disk. All copies of a half have the same to say."""
        half = self._log.halves.get(root)
        if half is None or (named is not None and named.log_offset == half.log_offset):
            return named
        return self._log.load(half) if self._log.is_hot(half.log_offset) else None

    def _root(self, header: EndTransaction, named: Record | None) -> int:
        """The log offset by which the transaction is known. Raises BrokerError if the request names none of its copies."""
        halves, at = self._log.halves, header.log_offset
        if named is None:
            half = halves.get(at)
            if half is None and halves.ended(at) is None:
                raise BrokerError(
                    f"Find prepared transaction message failed: there is no message at log offset {at}. It never was, "
                    "or it was deleted long ago"
                )
            if half is not None:
                self._check_group(header, half.group)
            return at  # its first copy is gone, but we know of it
        if named.topic != names.HALF_TOPIC:
            raise BrokerError(
                f"Find prepared transaction message failed: the message at log offset {at} is none, it belongs to topic "
                f"{named.topic}"
            )
        pairs = named.property_map()
        self._check_group(header, pairs.get(properties.PRODUCER_GROUP, ""))
        if named.queue_offset != header.transaction_offset:
            raise BrokerError(
                f"The transaction state table offset wrong: it is {named.queue_offset}, not {header.transaction_offset}"
            )
        unique = pairs.get(properties.UNIQUE_KEY, "")
        if not {header.transaction_id, header.message_id} & {unique, named.offset_id} and (
            header.transaction_id or header.message_id
        ):
            # A power cut took the half it means, and another one was stored in its place.
            raise BrokerError(f"Find prepared transaction message failed: {at} holds message {unique} now")
        root = named.prepared_offset or at
        if halves.get(root) is None:
            copy = halves.copy_of(unique, header.producer_group, named.born_ms)
            if copy is not None:
                return copy.root
        return root

    def _check_group(self, header: EndTransaction, group: str) -> None:
        if header.producer_group != group:
            raise BrokerError(
                f"The producer group wrong: {header.producer_group!r} cannot end what {group!r} has begun"
            )

    def _decide(self, request: Request[EndTransaction], outcome: Outcome, root: int, record: Record | None) -> None:
        half = self._log.halves.get(root)
        if half is None:
            end = self._decided_before(root, outcome)
        else:
            self._check_time(request.header, half)
            if outcome is Outcome.COMMITTED:
                assert record is not None
                end = self._log.commit(half, record)
            else:
                end = self._log.roll_back(half)
        answer_when_stored(self._writer, request, request.reply(), end)

    def _decided_before(self, root: int, outcome: Outcome) -> int:
        """Where the log is safe with the same decision. Raises TransactionFailed if it was another one."""
        ended = self._log.halves.ended(root)
        wanted = "committed" if outcome is Outcome.COMMITTED else "rolled back"
        if ended is None:
            raise TransactionFailed(f"it cannot be {wanted}: it was ended long ago. Nothing was changed")
        if ended[0] is not outcome:
            raise TransactionFailed(f"it cannot be {wanted}: {_SAID[ended[0]]}. Nothing was changed")
        return ended[1]

    def _check_time(self, header: EndTransaction, half: Half) -> None:
        """A producer that asked for a time without checks has to end the transaction within it, as with RocketMQ."""
        if half.immune_ms is not None and not header.from_check:
            late_ms = self._clock.message_ms() - half.since_ms - half.immune_ms
            if late_ms > 0:
                raise IllegalOperation(
                    f"the time this transaction asked for ({properties.CHECK_IMMUNITY_SECONDS}) ended {late_ms} ms ago: "
                    "its producer is going to be asked, and the answer decides"
                )

    # -- once more ---------------------------------------------------------------------------------------------------------

    async def resume(self, request: Request[ResumeCheckHalfMessage]) -> None:
        """An operator wants the producers of a transaction to be asked (again), named by the offset id of any copy."""
        header = request.header
        try:
            log_offset = parse_offset_id(header.message_id or "").log_offset
        except ProtocolError as error:
            raise BrokerError(f"msgId names no record of a broker's log: {error}") from error
        self._log.write_up_to(log_offset)
        record = await self._worker(self._log.record_at, log_offset)
        needed = {properties.PRODUCER_GROUP, properties.REAL_TOPIC, properties.REAL_QUEUE_ID}
        if record is None or not record.property_map().keys() >= needed or record.topic not in _RESUMED_FROM:
            raise BrokerError(f"there is no half message at log offset {log_offset}: nobody can be asked about it")
        root = record.prepared_offset or log_offset
        newest = await self._log.load_slowly(root, self._worker)
        half = self._log.halves.get(root)  # not before: it may have been ended while a worker read it
        if half is not None and newest is not None:
            self._log.ask_anew(half, newest)
        else:
            ended = self._log.halves.ended(root)
            if record.topic == names.HALF_TOPIC or (ended is not None and ended[0] is not Outcome.GIVEN_UP):
                how = _SAID[ended[0]] if ended is not None else "it was ended before"
                raise BrokerError(f"nobody needs to be asked about this transaction: {how}")
            self._log.reopen(record, root)
        answer_when_stored(self._writer, request, request.reply(), self._log.end)

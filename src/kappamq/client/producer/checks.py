"""Answers to brokers' checks of open transactions (code 39), and the decisions remembered for them.

The producer answers from memory for transactions it has decided, and does not answer while one is still being executed.
For all others, such as those of a process that has died, it calls the application's `check`, in a few threads or tasks at
a time. A lost answer does no harm: the broker checks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kappamq.client.core.calling import in_thread, is_asynchronous
from kappamq.errors import KappaError, ProtocolError, for_code
from kappamq.message import Decision, ReceivedMessage
from kappamq.net.channel import Channel
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN,
    CheckTransaction,
    EndTransaction,
)
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import decode

log = logging.getLogger(__name__)

Verdict = Decision | bool | None
"""True stands for COMMIT, False for ROLLBACK, None for UNKNOWN."""
Check = Callable[[ReceivedMessage], Awaitable[Verdict] | Verdict]
OnDecided = Callable[[ReceivedMessage, Decision], None]

REMEMBERED_MAX: Final = 10_000
QUIET_S: Final = 10.0
CODES: Final = {
    Decision.COMMIT: TRANSACTION_COMMIT,
    Decision.ROLLBACK: TRANSACTION_ROLLBACK,
    Decision.UNKNOWN: TRANSACTION_UNKNOWN,
}
_WORDS: Final = {True: Decision.COMMIT, False: Decision.ROLLBACK, None: Decision.UNKNOWN}


def decision_of(said: object, who: str) -> Decision:
    """Convert what an application returned. Raises TypeError if it is not a decision."""
    if isinstance(said, Decision):
        return said
    if said is None or isinstance(said, bool):
        return _WORDS[said]
    raise TypeError(f"{who} returned {said!r}: expected Decision.COMMIT, ROLLBACK or UNKNOWN (or True, False, None)")


class Known:
    """The decisions of one producer, and its transactions that are still being executed, by message id."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: set[str] = set()
        self._decided: OrderedDict[str, Decision] = OrderedDict()
        self._confirmed: OrderedDict[str, float] = OrderedDict()  # until when a check can only be an outdated one

    def begin(self, message_id: str) -> None:
        self._running.add(message_id)

    def end(self, message_id: str, decision: Decision) -> None:
        self._running.discard(message_id)
        if decision is not Decision.UNKNOWN:
            self._decided[message_id] = decision
            if len(self._decided) > REMEMBERED_MAX:
                self._decided.popitem(last=False)

    def confirm(self, message_id: str) -> None:
        """Note that a broker has confirmed that it carried the decision out.

        Apache's broker persists this only seconds later and may check meanwhile; answering then would deliver the message
        twice. A check that comes much later means that the broker lost the decision in a power failure."""
        now = self._now()
        self._confirmed[message_id] = now + QUIET_S
        while next(iter(self._confirmed.values())) < now:
            self._confirmed.popitem(last=False)

    def get(self, message_id: str) -> Decision | None:
        """Return the decision; UNKNOWN while it is being made or carried out; None if only the application knows."""
        if message_id in self._running or self._confirmed.get(message_id, 0.0) > self._now():
            return Decision.UNKNOWN
        return self._decided.get(message_id)


class Checks:
    """Routes the checks that one client receives to the producer of the group they are for."""

    def __init__(self) -> None:
        self._answering: dict[str, list[Answering]] = {}

    def add(self, answering: Answering) -> None:
        self._answering.setdefault(answering.group, []).append(answering)

    def remove(self, answering: Answering) -> None:
        several = self._answering.get(answering.group, [])
        if answering in several:
            several.remove(answering)
        if not several:
            self._answering.pop(answering.group, None)

    @property
    def unanswered(self) -> int:
        """How many checks the application has not answered yet."""
        return sum(answering.unanswered for several in list(self._answering.values()) for answering in several)

    def serve(self, channel: Channel, frame: Frame) -> None:
        try:
            header = CheckTransaction.decode(frame.ext)
            message = decode(frame.body, check_crc=False).to_message(header.logical_broker or "")
        except ProtocolError as error:
            log.warning("ignored a transaction check from broker %s that cannot be decoded: %s", channel.address, error)
            return
        group = message.properties.get(properties.PRODUCER_GROUP, "")
        several = self._answering.get(group, [])
        for answering in several:
            if answering.known.get(message.message_id) is not None:
                answering.ask(channel, header, message)
                return
        if several:
            several[0].ask(channel, header, message)
        else:
            log.info(
                "ignored a transaction check from broker %s: this client has no producer of group %r",
                channel.address,
                group,
            )


class Answering:
    """Answers the checks for one producer."""

    def __init__(
        self,
        group: str,
        check: Check,
        known: Known,
        on_decided: OnDecided,
        *,
        at_once: int,
        waiting_max: int,
        timeout: float,
    ) -> None:
        self.group = group
        self.known = known
        self.dropped = 0
        self._on_decided = on_decided
        self._check = check
        self._is_asynchronous = is_asynchronous(check)
        self._limit = asyncio.Semaphore(at_once)
        self._waiting_max = waiting_max
        self._timeout = timeout
        self._asked: dict[
            str, asyncio.Task[None]
        ] = {}  # by message id: a second question need not wait beside the first

    def ask(self, channel: Channel, header: CheckTransaction, message: ReceivedMessage) -> None:
        if message.message_id in self._asked:
            return
        if len(self._asked) >= self._waiting_max:
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th...: log, but not every time
                log.warning(
                    "%d transaction checks of group %s already wait for `check`; dropped %d so far, brokers will repeat them",
                    *(len(self._asked), self.group, self.dropped),
                )
            return
        task = asyncio.get_running_loop().create_task(self._answer(channel, header, message))
        self._asked[message.message_id] = task
        task.add_done_callback(lambda _: self._asked.pop(message.message_id, None))

    @property
    def unanswered(self) -> int:
        return len(self._asked)

    async def close(self) -> None:
        """Stop answering. Does not wait for a `check` that is running in a thread."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, channel: Channel, header: CheckTransaction, message: ReceivedMessage) -> None:
        decision = self.known.get(message.message_id)
        remark: str | None = None
        if decision is None:
            async with self._limit:
                decision, remark = await self._ask_application(message)
        answer = request(
            EndTransaction(
                topic=message.topic,
                producer_group=self.group,
                transaction_offset=header.transaction_offset,
                log_offset=header.log_offset,
                decision=CODES[decision],
                from_check=True,
                message_id=message.message_id,
                transaction_id=header.transaction_id,
                logical_broker=header.logical_broker,
            )
        )
        answer.remark = remark
        try:
            if decision is Decision.UNKNOWN:
                await channel.oneway(answer, timeout=self._timeout)  # RocketMQ's brokers do not reply to this
                return
            self._on_decided(message, decision)
            said = await channel.request(answer, timeout=self._timeout)
            if said.code != ResponseCode.SUCCESS:
                raise for_code(said.code, said.remark)
        except KappaError as error:
            log.warning(
                "the broker did not accept %s for transaction %s: %s. If it is still open, the broker will check again",
                *(decision, message.message_id, error),
            )

    async def _ask_application(self, message: ReceivedMessage) -> tuple[Decision, str | None]:
        check: Any = self._check
        try:
            said = await (check(message) if self._is_asynchronous else in_thread(check, message))
            return decision_of(said, "check"), None
        except Exception as error:
            log.exception(
                "`check` failed for message %s of group %s; the transaction stays open", message.message_id, self.group
            )
            return Decision.UNKNOWN, f"{type(error).__name__}: {error}"

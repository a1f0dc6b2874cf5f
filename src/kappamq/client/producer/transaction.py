"""Transactional messages: delivered if, and only if, the application's own transaction was committed.

The producer first stores the message as a half message, which consumers do not see. Then the application does its work,
typically a database transaction, and the half message is committed, so that consumers get it, or rolled back. If this process
dies in between, or the decision is lost, the broker asks any producer of the group: its `check` says whether the work was done.

    async with producer.transaction(Message("orders", b"...")) as t:
        await insert_order(t.message_id)     # an exception rolls the message back
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, Unpack

from kappamq.client.core.calling import in_thread, is_asynchronous
from kappamq.client.core.core import ClientCore
from kappamq.client.producer.checks import CODES, Answering, Check, Known, Verdict, decision_of
from kappamq.client.producer.outgoing import SYS_PREPARED, Outgoing, single
from kappamq.client.producer.producer import AsyncProducer
from kappamq.client.producer.selection import Selection
from kappamq.client.producer.sending import Key
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    IllegalMessage,
    KappaError,
    MaybeStored,
    NoMaster,
    NotAvailable,
    NotConnected,
    ProtocolError,
    Retry,
    SendTimeout,
    TransactionFailed,
)
from kappamq.message import Decision, Message, MessageQueue, ReceivedMessage, SendResult
from kappamq.protocol import trace
from kappamq.protocol.headers.client import EndTransaction
from kappamq.protocol.records import properties
from kappamq.protocol.records.ids import parse_offset_id
from kappamq.protocol.trace import TransactionEnded

log = logging.getLogger(__name__)

Execute = Callable[[Message, str], Awaitable[Verdict] | Verdict]
"""Called with the message and its id once the half message is stored: does the work and returns the decision."""
_TRACED: Final = {
    Decision.COMMIT: trace.COMMITTED,
    Decision.ROLLBACK: trace.ROLLED_BACK,
    Decision.UNKNOWN: trace.UNKNOWN,
}


class Listener(Protocol):
    """The application's two callbacks in one object."""

    def execute(self, message: Message, message_id: str) -> Awaitable[Verdict] | Verdict:
        """Do the work. An exception leaves the transaction open, and `check` will decide."""

    def check(self, message: ReceivedMessage) -> Awaitable[Verdict] | Verdict:
        """Was the work for this message done? May be called at any producer of the group, perhaps in another process."""


class AsyncTransaction:
    """One transaction, created by `AsyncTransactionProducer.transaction`; can be entered once."""

    def __init__(self, producer: AsyncTransactionProducer, message: Message, send: Callable[[], Awaitable[SendResult]]):
        self.message = message
        self.message_id = ""  # set once the half message is stored; `check` gets it, too
        self.result: SendResult | None = None  # where the half message is stored
        self.decision: Decision | None = None
        self.confirmed = False  # a broker has confirmed that it carried the decision out
        self._producer = producer
        self._send = send

    def rollback(self) -> None:
        """Roll the message back at the end of the block, although there was no exception."""
        self.decision = Decision.ROLLBACK

    def leave_open(self) -> None:
        """Decide nothing at the end of the block: `check` will decide."""
        self.decision = Decision.UNKNOWN

    async def __aenter__(self) -> Self:
        self.result = await self._send()
        self.message_id = self.result.message_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.decision = Decision.ROLLBACK
        elif self.decision is None:
            self.decision = Decision.COMMIT
        assert self.result is not None
        try:
            self.confirmed = await self._producer._end(self.message, self.result, self.decision)
        except TransactionFailed as failure:
            if error is None:
                raise
            error.add_note(f"and the message could not be rolled back: {failure}")


class AsyncTransactionProducer(AsyncProducer):
    """A producer that can also send transactional messages.

    >>> async with AsyncTransactionProducer("127.0.0.1:9876", group="shop", check=was_done) as producer:  # doctest: +SKIP
    ...     async with producer.transaction(Message("orders", b"...")) as t:
    ...         await insert_order(t.message_id)
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        check: Check | None = None,
        listener: Listener | None = None,
        topics: Sequence[str] = (),
        selection: str | Selection = "round-robin",
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """`check`: a function (called in threads) or coroutine function that says whether the work for a message was
        done; or a `listener` with methods `execute` and `check`. All producers of a `group` must be able to answer for
        each other. `topics`: register with their brokers at start, so that these can check at once; with others on first send.
        """
        super().__init__(nameserver, group=group, selection=selection, config=config, **options)
        if (check is None) == (listener is None):
            raise ConfigError(
                "a transaction producer needs either `check`, a function that says whether the work for a message was done, "
                "or a `listener` with methods `execute` and `check`: without it transactions left open by a crash could not be settled"
            )
        self._execute: Execute | None = listener.execute if listener is not None else None
        for name, function in (("check", check), ("listener.check", getattr(listener, "check", check))):
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be a function that takes a message; got {function!r}")
        self._check: Check = listener.check if listener is not None else check  # type: ignore[assignment]
        self._topics = tuple(topics)
        self._known = Known()
        self._answering: Answering | None = None
        self._introducing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.running()
        if self._introducing is not None:
            await asyncio.wait([self._introducing], timeout=self.config.request_timeout_ms / 1000)
        return self

    def running(self) -> ClientCore:
        core = super().running()
        if self._answering is None:
            self._answering = Answering(
                self.group,
                self._check,
                self._known,
                lambda message, decision: self._trace(message, "", decision, from_check=True),
                at_once=self.config.check_threads,
                waiting_max=self.config.checks_waiting_max,
                timeout=self.config.request_timeout_ms / 1000,
            )
            core.checks.add(self._answering)
            self._introducing = asyncio.get_running_loop().create_task(self._introduce(core))
        return core

    async def close(self) -> None:
        """Unregister from the brokers; they check open transactions with other producers of the group."""
        answering, core = self._answering, self._core
        if self._introducing is not None:
            self._introducing.cancel()
        if answering is not None and core is not None:
            core.checks.remove(answering)
            await answering.close()
        await super().close()

    async def _introduce(self, core: ClientCore) -> None:
        """Brokers may hold open transactions of an earlier process: register so that they can check them."""
        for topic in self._topics or (self.config.default_topic,):
            try:
                await core.routes.find(topic)
            except KappaError as error:
                (log.warning if self._topics else log.info)(
                    "could not register with the brokers of topic %s yet: %s", topic, error
                )
        await core.heartbeat()

    # --- transactions ---

    def transaction(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> AsyncTransaction:
        """For `async with`: entering stores the half message, a normal exit commits it, an exception rolls it back.

        `check_after`: seconds that the work may take before a broker checks; default is the broker's setting (6 s). After
        that, only the answer of `check` counts. Entering raises what `send` raises; the end of the block raises
        TransactionFailed if the broker has decided otherwise meanwhile. A decision that could not be delivered is not an
        error: `check` will decide.
        """
        return AsyncTransaction(self, message, lambda: self._begin(message, key, queue, timeout, check_after))

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute | None = None,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> AsyncTransaction:
        """Store the half message, call `execute` (default: the listener's), and commit or roll back as it returns.

        If it raises, the transaction stays open and `check` decides; the exception propagates to the caller."""
        work = execute or self._execute
        if work is None:
            raise ConfigError("nothing to execute: pass `execute` here, or a `listener` to the producer")
        transaction = self.transaction(message, key=key, queue=queue, timeout=timeout, check_after=check_after)
        await transaction.__aenter__()
        try:
            call: Any = work
            if is_asynchronous(call):
                said = await call(message, transaction.message_id)
            else:
                said = await in_thread(lambda given: call(*given), (message, transaction.message_id))
            transaction.decision = decision_of(said, "execute")
        except BaseException as error:
            error.add_note(f"transaction {transaction.message_id} stays open: `check` will decide it")
            transaction.leave_open()
            await transaction.__aexit__(None, None, None)
            raise
        await transaction.__aexit__(None, None, None)
        return transaction

    async def _begin(
        self,
        message: Message,
        key: Key | None,
        queue: MessageQueue | None,
        timeout: float | None,
        check_after: float | None,
    ) -> SendResult:
        core = self.running()
        now_ms = core.clock.message_ms()
        message_id = self._next_id(now_ms)
        extra = {properties.TRANSACTION_PREPARED: "true", properties.PRODUCER_GROUP: self.group}
        if check_after is not None:
            if check_after < 0:
                raise IllegalMessage(f"check_after must be a number of seconds, got {check_after}")
            extra[properties.CHECK_IMMUNITY_SECONDS] = str(math.ceil(check_after))
        outgoing = single(message, message_id, now_ms, self.config, sys_flag=SYS_PREPARED, extra=extra)
        if properties.decode(outgoing.properties).keys() & {properties.DELAY, *properties.TIMER_NAMES}:
            raise IllegalMessage(
                "a transactional message cannot be delayed: RocketMQ's brokers would lose it. Send the delayed message from "
                "the consumer of this one"
            )
        self._known.begin(message_id)
        try:
            chosen = key if key is not None else message.sharding_key or None
            result = await self._send_half(core, message, outgoing, chosen, queue, timeout)
        except BaseException:
            self._known.end(message_id, Decision.ROLLBACK)  # if it was stored nevertheless, a broker will check it
            raise
        if not result.ok:
            await self._end(message, result, Decision.ROLLBACK)
            raise NotAvailable(
                f"the half message was stored, but not durably ({result.status}): it was rolled back, try again later"
            )
        return result

    async def _send_half(
        self,
        core: ClientCore,
        message: Message,
        outgoing: Outgoing,
        key: Key | None,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> SendResult:
        """Try other brokers only while none can have stored it: a second half message would be checked separately."""
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        deadline = core.clock.liveness() + limit
        tries = 1 if key is not None or queue is not None else 1 + self.config.send_retries
        failed: str | None = None
        while True:
            tries -= 1
            try:
                route = await self.sending.route(core, outgoing.topic, deadline)
            except TimeoutError:
                raise SendTimeout(
                    f"the name server did not return the route of {outgoing.topic!r} within {limit:g} s; nothing was sent"
                ) from None
            chosen = self.sending.choose(route, key, queue, failed, core.clock.liveness())
            left = deadline - core.clock.liveness()
            try:
                await core.brokers.get(route.master(chosen.broker), left if not tries else left / 2)
            except (NotConnected, NoMaster):
                self.sending.faults.failed(chosen.broker, core.clock.liveness(), reachable=False)
                if core.clock.liveness() >= deadline:
                    raise
                if tries > 0 and any(other.broker != chosen.broker for other in route.publish):
                    failed = chosen.broker
                    continue
                # There is no other broker: sending to this queue waits for the master.
            try:
                left = max(0.001, deadline - core.clock.liveness())
                return (await self._deliver(core, [message], outgoing, None, chosen, left))[0]
            except KappaError as error:
                in_doubt = isinstance(error, ClientError | ProtocolError | MaybeStored) or type(error) is BrokerError
                if not tries or in_doubt or error.retry is Retry.NEVER or core.clock.liveness() >= deadline:
                    raise
                failed = chosen.broker

    async def _end(self, message: Message, result: SendResult, decision: Decision) -> bool:
        """Tell the broker that holds the half message. Returns False if delivery is uncertain; raises TransactionFailed if refused."""
        self._known.end(result.message_id, decision)
        self._trace(message, result.message_id, decision, from_check=False)
        core = self.running()
        try:
            header = EndTransaction(
                topic=message.topic,
                producer_group=self.group,
                transaction_offset=result.queue_offset,
                log_offset=parse_offset_id(result.offset_id).log_offset,
                decision=CODES[decision],
                from_check=False,
                message_id=result.message_id,
                transaction_id=result.transaction_id or result.message_id,
                logical_broker=result.queue.broker,
            )
            if decision is Decision.UNKNOWN:
                route = await core.routes.find(message.topic)
                channel = await core.brokers.get(route.master(result.queue.broker))
                await channel.oneway(header, timeout=core.request_timeout)  # RocketMQ's brokers do not reply to this
                return False
            # Not repeated if the answer is lost: a broker refuses to settle a half message twice.
            await core.ask_master(message.topic, result.queue.broker, header, again=False)
            self._known.confirm(result.message_id)
            return True
        except TransactionFailed:
            raise
        except KappaError as error:
            log.warning(
                "transaction %s: %s may not have reached the broker (%s); the broker will check and get the same answer",
                *(result.message_id, decision, error),
            )
            return False

    def _trace(
        self, message: Message | ReceivedMessage, message_id: str, decision: Decision, *, from_check: bool
    ) -> None:
        if self._tracer is None:
            return
        named = message_id or getattr(message, "message_id", "")
        self._tracer.add(
            TransactionEnded(
                time_ms=self._tracer.clock.message_ms(),
                group=self.group,
                topic=message.topic,
                message_id=named,
                tags=message.tags,
                keys=" ".join(message.keys),
                transaction_id=named,
                state=_TRACED[decision],
                from_check=from_check,
            )
        )

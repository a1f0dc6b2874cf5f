"""Transactions for programs without an event loop. See producer/transaction.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from kappamq.client.blocking.clients import Producer
from kappamq.client.producer.checks import Check, Verdict, decision_of
from kappamq.client.producer.selection import Selection
from kappamq.client.producer.sending import Key
from kappamq.client.producer.transaction import AsyncTransaction, AsyncTransactionProducer, Listener
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ConfigError
from kappamq.message import Decision, Message, MessageQueue, SendResult


class Transaction:
    """One transaction, created by `TransactionProducer.transaction`; can be entered once."""

    def __init__(self, producer: TransactionProducer, inner: AsyncTransaction) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def message(self) -> Message:
        return self._inner.message

    @property
    def message_id(self) -> str:
        """Set once the half message is stored; `check` gets it, too."""
        return self._inner.message_id

    @property
    def result(self) -> SendResult | None:
        """Where the half message is stored."""
        return self._inner.result

    @property
    def decision(self) -> Decision | None:
        return self._inner.decision

    @property
    def confirmed(self) -> bool:
        """Whether a broker has confirmed that it carried the decision out; otherwise `check` will decide."""
        return self._inner.confirmed

    def rollback(self) -> None:
        """Roll the message back at the end of the block, although there was no exception."""
        self._inner.rollback()

    def leave_open(self) -> None:
        """Decide nothing at the end of the block: `check` will decide."""
        self._inner.leave_open()

    def __enter__(self) -> Self:
        self._producer._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer._run(self._inner.__aexit__(kind, error, trace))


class TransactionProducer(Producer):
    """A producer that can also send transactional messages.

    >>> with TransactionProducer("127.0.0.1:9876", group="shop", check=was_done) as producer:  # doctest: +SKIP
    ...     with producer.transaction(Message("orders", b"...")) as t:
    ...         insert_order(t.message_id)  # an exception rolls the message back
    """

    inner: AsyncTransactionProducer

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
        """`check`: says whether the work for a message was done; called in threads, `check_threads` at once. Or a
        `listener` with methods `execute` and `check`. See AsyncTransactionProducer."""
        self._execute = listener.execute if listener is not None else None
        self._make(
            AsyncTransactionProducer(
                nameserver,
                group=group,
                check=check,
                listener=listener,
                topics=topics,
                selection=selection,
                config=config,
                **options,
            )
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Register with the brokers so that they can check open transactions; the first send does this as well."""
        self._run(self.inner.__aenter__())

    def transaction(
        self,
        message: Message,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> Transaction:
        """For `with`: entering stores the half message, a normal exit commits it, an exception rolls it back.

        See AsyncTransactionProducer.transaction."""
        return Transaction(
            self, self.inner.transaction(message, key=key, queue=queue, timeout=timeout, check_after=check_after)
        )

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message, str], Verdict] | None = None,
        *,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> Transaction:
        """Store the half message, call `execute` (default: the listener's) on this thread, and commit or roll back as it returns.

        If it raises, the transaction stays open and `check` decides; the exception propagates to the caller."""
        work: Any = execute or self._execute
        if work is None:
            raise ConfigError("nothing to execute: pass `execute` here, or a `listener` to the producer")
        transaction = self.transaction(message, key=key, queue=queue, timeout=timeout, check_after=check_after)
        transaction.__enter__()
        try:
            transaction._inner.decision = decision_of(work(message, transaction.message_id), "execute")
        except BaseException as error:
            error.add_note(f"transaction {transaction.message_id} stays open: `check` will decide it")
            transaction.leave_open()
            transaction.__exit__(None, None, None)
            raise
        transaction.__exit__(None, None, None)
        return transaction

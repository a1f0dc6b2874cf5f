"""Batch transactions for programs without an event loop. See client/batches/batch_transaction.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from kappamq.client.batches.batch_transaction import AsyncBatchTransaction
from kappamq.client.batches.scope import Outcome
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue


class BatchTransaction:
    """Created by `Producer.batch_transaction`; can be entered once. See AsyncBatchTransaction."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], inner: AsyncBatchTransaction) -> None:
        self._run = run
        self._inner = inner

    @property
    def number(self) -> int:
        return self._inner.number

    @property
    def repeated(self) -> bool:
        """Whether the batch was decided before, so that nothing is written this time."""
        return self._inner.repeated

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, once the block has been left; None if nothing was decided."""
        return self._inner.outcome

    def send(self, message: Message, *, key: Key | None = None, queue: MessageQueue | None = None) -> None:
        """Add a message to the batch; see `Producer.send` for `key` and `queue`."""
        self._run(self._inner.send(message, key=key, queue=queue))

    def rollback(self) -> None:
        """Publish nothing at the end of the block, although there was no exception."""
        self._inner.rollback()

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

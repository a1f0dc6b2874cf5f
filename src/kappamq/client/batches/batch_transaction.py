"""A batch transaction in one program: `async with producer.batch_transaction("copy", 7) as batch: await batch.send(...)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Self

from kappamq.client.batches.scope import Outcome, Scope, Ticket, open_scope
from kappamq.client.batches.staging import Stager
from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.producer.sending import Key
from kappamq.config.client import ClientConfig
from kappamq.errors import ClientError, KappaError
from kappamq.message import Message, MessageQueue


class AsyncBatchTransaction:
    """Created by `AsyncProducer.batch_transaction`; can be entered once.

    Messages are published when the block ends without an exception: all of them, each once, also if this program or a broker
    crashes at that moment. If the program crashed before it learned the outcome, run the same batch again: with the same number and
    messages it changes nothing if it was decided. Readers see the messages one after the other, not all in one instant."""

    def __init__(
        self,
        start: Callable[[], ClientCore],
        config: ClientConfig,
        next_id: Callable[[int], str],
        scope: str,
        number: int,
        owner: str,
    ) -> None:
        self._start = start
        self._config = config
        self._next_id = next_id
        self._scope_name = scope
        self._owner = owner
        self.number = number
        self._entered: tuple[Scope, Ticket, Stager] | None = None
        self._rolled_back = self._left = False
        self.outcome: Outcome | None = None
        """The outcome, once the block has been left; None if nothing was decided."""

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise ClientError("a batch transaction can be entered once: create another one")
        core = self._start()
        scope = await open_scope(core, self._scope_name, self._owner)
        ticket = await scope.begin(self.number)
        self._entered = scope, ticket, Stager(core, self._config, ticket, self._next_id)
        return self

    @property
    def repeated(self) -> bool:
        """Whether the batch was decided before, so that nothing is written this time."""
        return self._entered is not None and self._entered[1].transaction is None

    async def send(self, message: Message, *, key: Key | None = None, queue: MessageQueue | None = None) -> None:
        """Add a message to the batch; see `AsyncProducer.send` for `key` and `queue`."""
        arguments.message(message)
        if self._entered is None or self._left:
            raise ClientError("messages can be added within the `async with` block only")
        await self._entered[2].add(message, key=key, queue=queue)

    def rollback(self) -> None:
        """Publish nothing at the end of the block, although there was no exception."""
        self._rolled_back = True

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._entered is not None
        scope, ticket, stager = self._entered
        self._left = True
        try:
            if kind is None and not self._rolled_back:
                part = await stager.finish()
                self.outcome = await scope.decide(ticket, [part])
        finally:
            if self.outcome is None:
                stager.cancel()
                with contextlib.suppress(KappaError):  # its timeout aborts it
                    await scope.abort(ticket)

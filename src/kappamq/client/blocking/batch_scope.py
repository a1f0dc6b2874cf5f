"""Scopes and parts of batches for programs without an event loop. See client/batches."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from kappamq.client.batches.scope import Outcome, Part, Scope, Ticket
from kappamq.client.batches.staging import Stager
from kappamq.client.producer.sending import Key
from kappamq.message import Message, MessageQueue

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class BatchScope:
    """Created by `Producer.open_scope`. See Scope."""

    def __init__(self, run: Run, inner: Scope) -> None:
        self._run = run
        self._inner = inner

    @property
    def last(self) -> int:
        """Number of the last decided batch when the scope was opened, -1: none."""
        return self._inner.last

    @property
    def coordinator(self) -> str:
        return self._inner.coordinator

    def begin(self, number: int, *, attempt: str | None = None) -> Ticket:
        ticket: Ticket = self._run(self._inner.begin(number, attempt=attempt))
        return ticket

    def decide(self, ticket: Ticket, parts: Iterable[Part], *, wait_s: float) -> Outcome:
        outcome: Outcome = self._run(self._inner.decide(ticket, parts, wait_s=wait_s))
        return outcome

    def published(self, number: int, *, wait_s: float) -> Outcome:
        outcome: Outcome = self._run(self._inner.published(number, wait_s=wait_s))
        return outcome

    def abort(self, ticket: Ticket) -> bool:
        dropped: bool = self._run(self._inner.abort(ticket))
        return dropped


class BatchStager:
    """Created by `Producer.stager`. See Stager."""

    def __init__(self, run: Run, inner: Stager) -> None:
        self._run = run
        self._inner = inner

    def add(self, message: Message, *, key: Key | None = None, queue: MessageQueue | None = None) -> None:
        self._run(self._inner.add(message, key=key, queue=queue))

    def add_encoded(
        self, topic: str, body: bytes, rows: int, checksum: int, *, queue: MessageQueue | None = None
    ) -> None:
        self._run(self._inner.add_encoded(topic, body, rows, checksum, queue=queue))

    def finish(self) -> Part:
        part: Part = self._run(self._inner.finish())
        return part

    def cancel(self) -> None:
        async def on_its_loop() -> None:
            self._inner.cancel()

        self._run(on_its_loop())

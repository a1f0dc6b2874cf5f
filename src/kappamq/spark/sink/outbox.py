"""Sends batches or messages with a few in flight: one per queue, so that a queue's rows stay in order, and a limit over all.

Delivery is at least once: temporary failures (a broker restarts, a queue is busy) are retried until `patience_s` is over, and may
then be stored twice.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kappamq.errors import KappaError
from kappamq.message import Message, MessageQueue, SendResult
from kappamq.spark.patience import PATIENCE_S, Patience

if TYPE_CHECKING:
    from kappamq.client.blocking.clients import Producer

IN_FLIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Parcel:
    """One batch send; without a queue the client chooses one."""

    topic: str
    body: bytes
    queue: MessageQueue | None
    rows: int

    def start(self, producer: Producer) -> Future[SendResult]:
        return producer.send_encoded_async(self.topic, self.body, queue=self.queue)


@dataclass(frozen=True, slots=True)
class Single:
    """One message that cannot be in a batch, such as a delayed one."""

    message: Message
    queue: MessageQueue | None

    @property
    def topic(self) -> str:
        return self.message.topic

    def start(self, producer: Producer) -> Future[SendResult]:
        return producer.send_async(self.message, queue=self.queue)


class Outbox:
    def __init__(self, producer: Producer, in_flight: int = IN_FLIGHT, patience_s: float = PATIENCE_S) -> None:
        self._producer = producer
        self._in_flight = in_flight
        self._patience_s = patience_s
        self._under_way: OrderedDict[object, tuple[Future[SendResult], Parcel | Single]] = OrderedDict()
        self._number = 0

    def send(self, parcel: Parcel | Single) -> None:
        """Send when the previous one of its queue has arrived. Raises the permanent error of any earlier one."""
        self._number += 1
        lane: object = parcel.queue if parcel.queue is not None else self._number
        if lane in self._under_way:
            self._finish(lane)
        while len(self._under_way) >= self._in_flight:
            self._finish(next(iter(self._under_way)))
        try:
            self._under_way[lane] = parcel.start(self._producer), parcel
        except KappaError as error:  # this client has too much in flight already
            self._again(parcel, error)

    def close(self) -> None:
        """Wait until everything has arrived. Raises permanent errors."""
        while self._under_way:
            self._finish(next(iter(self._under_way)))

    def settle(self) -> None:
        """Wait for sends in flight, whether they succeed or not: so a failed task sends nothing more while its second attempt runs."""
        while self._under_way:
            future, _parcel = self._under_way.popitem()[1]
            with contextlib.suppress(Exception):  # the task fails with the first error; this is not it
                future.result()

    def _finish(self, lane: object) -> None:
        future, parcel = self._under_way.pop(lane)
        try:
            future.result()
        except KappaError as error:
            self._again(parcel, error)

    def _again(self, parcel: Parcel | Single, error: KappaError) -> None:
        patience = Patience(f"sending to {parcel.topic}", self._patience_s)
        while True:
            patience.wait_after(error)
            try:
                parcel.start(self._producer).result()
                return
            except KappaError as latest:
                error = latest

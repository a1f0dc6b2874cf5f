"""Reads the traces of one message: who sent it, who consumed it, and the results."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kappamq.client.admin.queries import COUNT_MAX, FOREVER_MS, MessageQueries
from kappamq.config.client import ClientConfig
from kappamq.errors import NoRoute, QueryNotFound
from kappamq.message import ReceivedMessage
from kappamq.protocol import trace
from kappamq.protocol.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Entry,
    MessageKind,
    Outcome,
    Published,
    Recalled,
    TransactionEnded,
)

PAGES_MAX: Final = 50
"""Limit on the entries read for one message."""


@dataclass(frozen=True, slots=True)
class Traced:
    """One entry, with the address of the client that wrote it."""

    entry: Entry
    client: str


@dataclass(slots=True)
class Consumption:
    """One delivery of the message to one consumer."""

    group: str = ""
    client: str = ""
    request_id: str = ""
    begun_ms: int | None = None
    retry_times: int = 0
    ended_ms: int | None = None
    cost_ms: int | None = None
    success: bool | None = None  # None: the end was not traced
    outcome: int | None = None

    @property
    def state(self) -> str:
        if self.success is None:
            return "not finished, or its end was not traced"
        if self.success:
            return "success"
        known = {int(each): each.name.lower().replace("_", " ") for each in Outcome}
        return known.get(self.outcome or Outcome.FAILED, "failed")


@dataclass(slots=True)
class Story:
    """The traces of one message, each list ordered by time."""

    message_id: str
    topic: str = ""
    sent: list[tuple[Published, str]] = field(default_factory=list)  # each with the client's address
    consumed: list[Consumption] = field(default_factory=list)
    transactions: list[tuple[TransactionEnded, str]] = field(default_factory=list)
    recalls: list[tuple[Recalled, str]] = field(default_factory=list)

    @property
    def groups(self) -> dict[str, bool]:
        """Consumer group -> whether it consumed the message successfully."""
        found: dict[str, bool] = {}
        for consumption in self.consumed:
            found[consumption.group] = found.get(consumption.group, False) or bool(consumption.success)
        return found

    def lines(self) -> list[str]:
        """The traces as text, ordered by time."""
        told: list[tuple[int, str]] = []
        for sent, client in self.sent:
            how = "sent" if sent.success else "not sent"
            text = f"{how} by {sent.group} at {client} to {sent.topic} on {sent.store_host or '?'}, {sent.body_bytes} bytes"
            told.append((sent.time_ms, f"{text}, {_kind(sent.kind)}, in {sent.cost_ms} ms"))
        for ended, client in self.transactions:
            by = "after a check by the broker" if ended.from_check else "by the producer"
            told.append((ended.time_ms, f"transaction {ended.state} by {ended.group} at {client}, {by}"))
        for recall, client in self.recalls:
            how = "recalled" if recall.success else "not recalled"
            told.append((recall.time_ms, f"{how} by {recall.group} at {client}"))
        for one in self.consumed:
            again = f", delivery {one.retry_times + 1}" if one.retry_times else ""
            cost = f" in {one.cost_ms} ms" if one.cost_ms is not None else ""
            at = one.begun_ms if one.begun_ms is not None else one.ended_ms or 0
            told.append((at, f"consumed by {one.group} at {one.client}{again}: {one.state}{cost}"))
        return [f"{_time(at)}  {text}" for at, text in sorted(told)]


class TraceQueries(MessageQueries):
    """The methods of an admin that read traces."""

    config: ClientConfig

    async def trace_of(self, message_id: str, *, topic: str | None = None) -> Story:
        """Return the traces of a message, found by its producer-assigned id. Raises QueryNotFound.

        `topic`: the trace topic, if it is not the default. Clients write traces only with `trace=True`, and a few seconds
        late.
        """
        trace_topic = topic or self.config.trace_topic
        try:
            found = await self._traces(trace_topic, message_id)
        except NoRoute:
            raise QueryNotFound(
                f"no broker has the trace topic {trace_topic!r}: start the brokers with traceTopicEnable=true, or create it"
            ) from None
        story = story_of(message_id, found)
        if not (story.sent or story.consumed or story.transactions or story.recalls):
            raise QueryNotFound(
                f"no trace of message {message_id} in {trace_topic!r}: is tracing enabled at its clients (trace=True), and has it "
                "been a few seconds?"
            )
        return story

    async def _traces(self, topic: str, message_id: str) -> list[Traced]:
        seen: dict[str, ReceivedMessage] = {}
        end_ms = FOREVER_MS
        for _ in range(PAGES_MAX):
            page = await self._query(topic, message_id, COUNT_MAX, 0, end_ms, unique=False)
            fresh = {message.offset_id: message for message in page if message.offset_id not in seen}
            seen |= fresh
            times: dict[str, list[int]] = {}
            for message in page:
                times.setdefault(message.queue.broker, []).append(message.stored_ms)
            # Brokers return the newest first: the next page ends where that of a broker with more entries began.
            begins = [min(stored) for stored in times.values() if len(stored) >= COUNT_MAX]
            if not begins or not fresh:
                break
            end_ms = max(begins)
        return [
            Traced(entry, message.born_host.rpartition(":")[0])
            for message in sorted(seen.values(), key=lambda message: message.stored_ms)
            for entry in trace.decode(message.body)
        ]


def story_of(message_id: str, traced: Iterable[Traced]) -> Story:
    """Combine the entries of one message; ignores those of others."""
    story = Story(message_id)
    deliveries: dict[str, Consumption] = {}
    for one in traced:
        entry = one.entry
        # Java's producers write one entry for a whole batch, with all its ids.
        if message_id not in entry.message_id.split(","):
            continue
        if isinstance(entry, Published):
            story.sent.append((entry, one.client))
            story.topic = story.topic or entry.topic
        elif isinstance(entry, TransactionEnded):
            story.transactions.append((entry, one.client))
        elif isinstance(entry, Recalled):
            story.recalls.append((entry, one.client))
        else:
            _consumed(deliveries, entry, one.client)
    story.consumed = sorted(deliveries.values(), key=lambda one: (one.begun_ms or one.ended_ms or 0, one.group))
    story.sent.sort(key=lambda pair: pair[0].time_ms)
    story.transactions.sort(key=lambda pair: pair[0].time_ms)
    return story


def _consumed(deliveries: dict[str, Consumption], entry: ConsumeBegun | ConsumeEnded, client: str) -> None:
    delivery = deliveries.setdefault(entry.request_id, Consumption(request_id=entry.request_id, client=client))
    delivery.group = delivery.group or entry.group
    if isinstance(entry, ConsumeBegun):
        delivery.begun_ms, delivery.retry_times = entry.time_ms, entry.retry_times
    else:
        delivery.cost_ms, delivery.success, delivery.outcome = entry.cost_ms, entry.success, entry.outcome
        delivery.ended_ms = entry.time_ms or None


def _kind(number: int) -> str:
    return MessageKind(number).name.lower() if number in {int(each) for each in MessageKind} else f"kind {number}"


def _time(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")

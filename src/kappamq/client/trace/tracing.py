"""Records what happens to messages in the trace topic, without delaying the messages themselves.

Entries are added from any thread, without waiting. They are kept in a bounded queue and sent in batches by a task; entries
that do not fit, or cannot be sent, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Self

from kappamq.clock import Clock
from kappamq.config.client import ClientConfig
from kappamq.errors import KappaError
from kappamq.message import Message, MessageQueue, ReceivedMessage, Redeliver, SendResult
from kappamq.protocol import trace
from kappamq.protocol.names import GROUP_CHARACTERS_MAX
from kappamq.protocol.records import properties
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Entry, MessageKind, Outcome, Published, Recalled

log = logging.getLogger(__name__)

GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER-"
DEFAULT_REGION: Final = "DefaultRegion"
BODY_BYTES_MAX: Final = 128_000
KEYS_BYTES_MAX: Final = 16_000
"""Keys are properties, whose length is limited; message ids take precedence."""
SENDING_MAX: Final = 16
"""Trace messages in flight."""
CLOSE_S: Final = 3.0
"""How long closing waits for the last traces to be sent."""
COMPLAIN_S: Final = 60.0

Send = Callable[[Message], Awaitable[object]]


def trace_group(group: str) -> str:
    """Return the producer group that sends the traces of `group`."""
    return (GROUP_PREFIX + group)[:GROUP_CHARACTERS_MAX]


class Tracer:
    """Collects the entries of one producer or consumer. `send` sends to the trace topic; `release` closes that producer."""

    def __init__(
        self, config: ClientConfig, group: str, clock: Clock, send: Send, release: Callable[[], Awaitable[None]]
    ) -> None:
        self.group = group
        self.clock = clock
        self.dropped = 0  # the queue was full
        self.failed = 0  # the send failed
        self._topic = config.trace_topic
        self._batch = config.trace_batch
        self._flush_s = config.trace_flush_ms / 1000
        self._waiting_max = config.trace_waiting_max
        self._send_message = send
        self._release = release
        self._waiting: deque[Entry] = deque()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()  # there are entries to send
        self._enough = asyncio.Event()  # enough for a whole message, or closing
        self._sending: set[asyncio.Task[None]] = set()
        self._complained = -COMPLAIN_S
        self._closed = False
        self._requests = (f"{secrets.token_hex(8)}{number}".upper() for number in itertools.count())
        self._task = self._loop.create_task(self._run())

    # --- adding; from any thread ---

    def add(self, *entries: Entry) -> None:
        """Add entries; never blocks."""
        with self._lock:
            if self._closed or len(self._waiting) + len(entries) > self._waiting_max:
                self.dropped += len(entries)
                return
            before = len(self._waiting)
            self._waiting.extend(entries)
            waiting = before + len(entries)
        if not before or before // self._batch != waiting // self._batch:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the loop is closed, so nothing can be sent

    def published(
        self,
        messages: Sequence[Message],
        message_ids: Sequence[str],
        results: Sequence[SendResult] | None,
        *,
        began_ms: int,
        kind: MessageKind = MessageKind.NORMAL,
        store_host: str = "",
    ) -> None:
        """Record that messages were sent or, without results, that the send failed."""
        if messages[0].topic == self._topic or (results is not None and not results[0].trace_on):
            return
        cost_ms = max(0, self.clock.message_ms() - began_ms)
        self.add(
            *(
                Published(
                    time_ms=began_ms,
                    region=(results[number].region if results is not None else "") or DEFAULT_REGION,
                    group=self.group,
                    topic=message.topic,
                    message_id=message_ids[number],
                    tags=message.tags,
                    keys=" ".join(message.keys),
                    store_host=store_host,
                    body_bytes=len(message.body),
                    cost_ms=cost_ms,
                    kind=kind,
                    offset_id=results[number].offset_id if results is not None else "",
                    success=results is not None and results[number].ok,
                )
                for number, message in enumerate(messages)
            )
        )

    def recalled(self, topic: str, message_id: str, *, success: bool, region: str = "") -> None:
        """Record a recall of a delayed message, successful or not."""
        self.add(
            Recalled(
                time_ms=self.clock.message_ms(),
                region=region or DEFAULT_REGION,
                group=self.group,
                topic=topic,
                message_id=message_id,
                success=success,
            )
        )

    def begun(self, messages: Sequence[ReceivedMessage]) -> list[ConsumeBegun]:
        """Record that a listener gets these messages now. Pass the result to `ended`."""
        with self._lock:
            request_id = next(self._requests)
        now_ms = self.clock.message_ms()
        entries = [
            ConsumeBegun(
                time_ms=now_ms,
                region=message.properties.get(properties.REGION, "") or DEFAULT_REGION,
                group=self.group,
                request_id=request_id,
                message_id=message.message_id,
                retry_times=message.reconsume_times,
                keys=" ".join(message.keys),
            )
            for message in messages
            if message.properties.get(properties.TRACE_ON) != "false" and message.topic != self._topic
        ]
        if entries:
            self.add(*entries)
        return entries

    def ended(self, begun: Sequence[ConsumeBegun], outcome: Outcome) -> None:
        """Record that the listener has finished."""
        now_ms = self.clock.message_ms()
        entries = [
            ConsumeEnded(
                request_id=entry.request_id,
                message_id=entry.message_id,
                cost_ms=max(0, now_ms - entry.time_ms) // len(begun),
                success=outcome is Outcome.SUCCESS,
                keys=entry.keys,
                outcome=outcome,
                time_ms=now_ms,
                group=self.group,
            )
            for entry in begun
        ]
        if entries:
            self.add(*entries)

    # --- sending; on the loop ---

    async def close(self) -> None:
        """Send the remaining entries, for a limited time."""
        with self._lock:
            self._closed = True
        self._wake()
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._task)
        except TimeoutError:
            self._task.cancel()
            for sending in self._sending:
                sending.cancel()
            self._lost(len(self._waiting), "the client was closed before they were sent")
            self._waiting.clear()
        finally:
            await self._release()

    def _wake(self) -> None:
        waiting = len(self._waiting)
        if waiting or self._closed:
            self._some.set()
        if waiting >= self._batch or self._closed:
            self._enough.set()

    async def _run(self) -> None:
        while self._waiting or not self._closed:
            await self._some.wait()
            self._some.clear()
            try:
                async with asyncio.timeout(self._flush_s):
                    await self._enough.wait()
            except TimeoutError:
                pass  # waited long enough for more
            self._enough.clear()
            for part, body in self._parts():
                while len(self._sending) >= SENDING_MAX:
                    await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                task = self._loop.create_task(self._send(part, body))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
        if self._sending:
            await asyncio.wait(self._sending)

    def _parts(self) -> Iterator[tuple[list[Entry], bytes]]:
        """Take the waiting entries, one message's worth at a time: the entries and their encoded body."""
        part: list[Entry] = []
        body = b""
        while True:
            with self._lock:
                entry = self._waiting.popleft() if self._waiting else None
            if entry is None:
                break
            text = trace.encode(entry).encode()
            if part and (len(part) >= self._batch or len(body) + len(text) > BODY_BYTES_MAX):
                yield part, body
                part, body = [], b""
            part.append(entry)
            body += text
        if part:
            yield part, body

    async def _send(self, entries: list[Entry], body: bytes) -> None:
        try:
            await self._send_message(Message(self._topic, body, keys=_keys(entries)))
        except (KappaError, ValueError) as error:
            self._lost(len(entries), str(error))

    def _lost(self, count: int, why: str) -> None:
        self.failed += count
        now = self.clock.liveness()
        if count and now - self._complained >= COMPLAIN_S:
            self._complained = now
            log.warning(
                "group %s: lost message traces (%d not sent, %d dropped so far): %s",
                *(self.group, self.failed, self.dropped, why),
            )


def traced(listener: Callable[[Any], Any], tracer: Tracer) -> Callable[[Any], Any]:
    """Wrap a listener so that it is traced; it may be a coroutine function, and take lists."""
    call = getattr(listener, "__call__", None)  # noqa: B004 - an object may have a coroutine as its __call__
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call):

        async def listen_async(given: Any) -> Any:
            with Watched(tracer, given) as watched:
                return watched.said(await listener(given))

        return listen_async

    def listen(given: Any) -> Any:
        with Watched(tracer, given) as watched:
            return watched.said(listener(given))

    return listen


class Watched:
    """One call of a traced listener."""

    def __init__(self, tracer: Tracer, given: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        self._tracer = tracer
        self._given = [given] if isinstance(given, ReceivedMessage) else given
        self._begun: list[ConsumeBegun] = []
        self._outcome = Outcome.EXCEPTION

    def __enter__(self) -> Self:
        self._begun = self._tracer.begun(self._given)
        return self

    def said(self, verdict: Any) -> Any:
        self._outcome = Outcome.FAILED if isinstance(verdict, Redeliver) else Outcome.SUCCESS
        return verdict

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        self._tracer.ended(self._begun, Outcome.TIMEOUT if cancelled else self._outcome)


class Reading:
    """Traces of messages without a listener: begun when one is handed out, ended when it is acknowledged or sent back."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._out: dict[tuple[MessageQueue, int], list[ConsumeBegun]] = {}

    def took(self, message: ReceivedMessage) -> None:
        self._out[message.queue, message.queue_offset] = self._tracer.begun([message])

    def ended(self, message: ReceivedMessage, outcome: Outcome) -> None:
        begun = self._out.pop((message.queue, message.queue_offset), None)
        if begun:
            self._tracer.ended(begun, outcome)


def _keys(entries: list[Entry]) -> tuple[str, ...]:
    keys: list[str] = []
    size = 0
    for key in trace.index_keys(entries):
        if key != "".join(key.split()):
            continue  # an id with blanks, from a non-standard client, would be read as several keys
        size += len(key.encode()) + 1
        if size > KEYS_BYTES_MAX:
            break
        keys.append(key)
    return tuple(keys)

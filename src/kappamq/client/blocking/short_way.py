"""Send and wait from a thread, without the loop: the thread writes the request and reads the answer itself.

Two switches between threads cost more than the rest of a send. The short way is for the usual case only: the route is known, no broker is
in trouble, no other thread uses the line, and no earlier message could be overtaken. All other sends use the loop, which also takes over
sends that failed here: with the same message id, and counting the first attempt.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID, Route
from kappamq.client.producer.faults import Failing
from kappamq.client.producer.outgoing import single
from kappamq.client.producer.producer import AsyncProducer, unique_ids
from kappamq.client.producer.selection import RoundRobin, Sticky
from kappamq.client.producer.sending import Key
from kappamq.clock import SystemClock
from kappamq.errors import KappaError, NotConnected, RequestTimeout
from kappamq.message import Message, MessageQueue, SendResult
from kappamq.net.line import IDLE_S, Line
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.records.ids import UniqueIds

Run = Callable[[Coroutine[Any, Any, SendResult]], SendResult]

LONG_FIRST: Final = 2
"""The number of sends through the loop before lines are opened: a program that sends a message or two needs no second connection."""
LOOK_S: Final = IDLE_S / 2
"""How often to look for lines that are idle, or that the other side has closed."""


class _Place:
    """The state of one address: a line, or none yet, and a lock that its user holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.line: Line | None = None


class ShortWay:
    """Thread-safe. `send` returns None if nothing was sent and the message has to go through the loop."""

    def __init__(self, inner: AsyncProducer, run: Run) -> None:
        """`run` waits for a coroutine on the loop."""
        self._inner = inner
        self._run = run
        self._sending = inner.sending
        config = inner.config
        selection = inner.sending.selection
        # Objects that threads share with the loop must be thread-safe. `trace`: works on the loop only.
        self._is_possible = (
            not config.tls
            and not config.trace
            and isinstance(inner.sending.faults, Failing)
            and type(selection) in (RoundRobin, Sticky)
        )
        self._limit_s = config.send_timeout_ms / 1000
        self._places: dict[str, _Place] = {}
        self._making = threading.Lock()
        self._ids: UniqueIds | None = None
        self._so_far = 0
        self._looking = False  # the loop will call `close_idle`

    def send(
        self, message: Message, key: Key | None, queue: MessageQueue | None, timeout: float | None
    ) -> SendResult | None:
        """Send, and return when a broker has stored the message. Raises what `AsyncProducer.send` does."""
        if self._so_far < LONG_FIRST:
            self._so_far += 1
            return None
        core = self._inner.core
        if not self._is_possible or core is None or type(core.clock) is not SystemClock:
            return None
        route = core.routes.ready(message.topic)
        failing = self._sending.faults
        if route is None or not isinstance(failing, Failing) or failing.any_failed:
            return None
        began = core.clock.liveness()
        chosen = self._sending.choose(route, key, queue, None, began)
        address = route.addresses.get(chosen.broker, {}).get(MASTER_ID)
        if address is None:
            return None
        place = self._places.get(address) or self._place(address)
        if not place.lock.acquire(blocking=False):
            return None  # in use: through the loop, several leave together
        limit = self._limit_s if timeout is None else timeout
        if limit <= 0:
            place.lock.release()
            return None
        try:
            return self._by(place, core, message, route, chosen, address, began, limit, key, queue)
        finally:
            place.lock.release()

    def close(self) -> None:
        """Accept no more sends, wait for those in flight, and close the lines."""
        self._is_possible = False
        with self._making:
            places = list(self._places.values())
        for place in places:
            with place.lock:
                if place.line is not None:
                    place.line.close()
                    place.line = None

    def close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close lines that will not be used again, such as those to a broker that has moved. Runs on the loop, so it never waits for a
        lock."""
        self._looking = False  # first: so lines opened from now on are checked, too
        with self._making:
            places = list(self._places.values())
        for place in places:
            if not place.lock.acquire(blocking=False):
                self._look_later(loop)  # in use
                continue
            try:
                if place.line is not None and place.line.is_usable:
                    self._look_later(loop)
                elif place.line is not None:
                    place.line.close()
                    place.line = None
            finally:
                place.lock.release()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._making:
            if self._looking:
                return
            self._looking = True
        # This must not keep a producer alive that the application has dropped.
        loop.call_soon_threadsafe(loop.call_later, LOOK_S, _close_idle, weakref.ref(self), loop)

    def _by(
        self,
        place: _Place,
        core: ClientCore,
        message: Message,
        route: Route,
        chosen: MessageQueue,
        address: str,
        began: float,
        limit: float,
        key: Key | None,
        queue: MessageQueue | None,
    ) -> SendResult | None:
        if not self._is_possible:
            return None  # closed meanwhile
        line = place.line
        if line is None or not line.is_usable:
            line = place.line = self._connected(line, address, limit)
            if line is None:
                return None
            self._look_later(core.loop)
        born_ms = core.clock.message_ms()
        outgoing = single(message, self._next_id(core, born_ms), born_ms, self._sending.config)
        last = key is not None or queue is not None or not self._sending.config.send_retries
        left = limit - (core.clock.liveness() - began)
        if left <= 0:
            return None  # connecting took the time, and nothing was sent
        attempt = self._sending.attempt(route, chosen, left, began, last=last)
        frame = self._sending.request(outgoing, chosen)
        outcome: Frame | KappaError
        try:
            outcome = line.ask(frame, attempt.left)
        except (NotConnected, RequestTimeout) as error:
            outcome = error
        else:
            if outcome.code == ResponseCode.SUCCESS:
                return self._sending.answered(core, outgoing, attempt, outcome)[0]
            if outcome.code == ResponseCode.GO_AWAY:
                line.close()
        # We keep the line meanwhile, so that closing the producer waits for this, too.
        return self._run(self._inner.go_on(outgoing, route, attempt, outcome, key, queue, limit, began + limit))

    def _connected(self, old: Line | None, address: str, limit: float) -> Line | None:
        if old is not None:
            old.close()
        try:
            return Line.open(address, min(self._sending.config.connect_timeout_ms / 1000, limit / 2))
        except NotConnected:
            return None  # nothing was sent: the loop knows what to do

    def _place(self, address: str) -> _Place:
        with self._making:
            return self._places.setdefault(address, _Place())

    def _next_id(self, core: ClientCore, now_ms: int) -> str:
        with self._making:
            if self._ids is None:
                self._ids = unique_ids(core.client_id)
            return self._ids.next(now_ms)


def _close_idle(found: weakref.ref[ShortWay], loop: asyncio.AbstractEventLoop) -> None:
    way = found()
    if way is not None:
        way.close_idle(loop)

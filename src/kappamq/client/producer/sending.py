"""The attempts of one send: one overall timeout, within it several attempts, each on another broker if possible.

Errors that may not occur elsewhere or later (`KappaError.retry`) are retried: lost connections, and answers such as
"busy" or "no permission here". A message that may already be stored keeps its id in every attempt, so consumers can detect
duplicates. A send to a queue the caller chose, by `queue` or `key`, is not retried: another queue would break the order.

An attempt that certainly stored nothing, since there is no master, it cannot be reached, or it is another node, does not count:
other brokers are tried at once, and if there is none the send waits for a master (`core/patience.py`) within its timeout.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

from kappamq import native
from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.patience import Patience, is_about_master
from kappamq.client.core.routes import Route
from kappamq.client.producer.faults import Failing, Faults, LatencyFaults
from kappamq.client.producer.outgoing import Outgoing
from kappamq.client.producer.pressure import Pressure
from kappamq.client.producer.selection import RoundRobin, Selection, Sticky, by_key
from kappamq.config.client import ClientConfig
from kappamq.errors import (
    BrokerError,
    IllegalMessage,
    InvalidParameter,
    KappaError,
    MaybeStored,
    NoRoute,
    NotAvailable,
    NotConnected,
    NotMaster,
    RequestTimeout,
    Retry,
    SendTimeout,
    for_code,
)
from kappamq.message import MessageQueue, SendResult, SendStatus
from kappamq.net.channel import Channel
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, next_opaque
from kappamq.protocol.headers.client import SendMessageResponse, SendMessageV2

Key = str | int | bytes
T = TypeVar("T")

PAUSE_S: Final = 0.05
"""Pause before the same broker is tried again; doubles each time."""
FAILURES_MAX: Final = 10
"""If all attempts fail, the error describes this many of them."""
REFRESH_S: Final = 0.5
"""How long a retry waits for a fresh route before it uses the old one."""

FIXED_MAX: Final = 10_000
"""The number of queues for which parts of requests are cached."""
_BORN: Final = SendMessageV2.wire_names["born_ms"]
_PROPERTIES: Final = SendMessageV2.wire_names["properties"]

MAYBE: Final = "it may have been stored, sending it again may store it twice"

_STATUS: Final = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
_filled_objects: Final = native.load().filled_objects
_FIELDS: Final = tuple(
    vars(SendResult)[name]
    for name in (
        *("message_id", "queue_offset", "offset_id"),  # each message has its own
        *("status", "queue", "transaction_id", "region", "trace_on", "recall_handle"),
    )
)
_UNCLASSED_RETRIED: Final = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT}
)
"""Codes without an error class that RocketMQ's clients retry; other unknown codes are not retried."""


@dataclass(frozen=True, slots=True)
class Attempt:
    queue: MessageQueue
    address: str
    began: float
    left: float  # seconds
    last: bool  # no further attempt follows


@dataclass(frozen=True, slots=True)
class Failed:
    """A first attempt that was made without `tries`, and failed after its request had left."""

    attempt: Attempt
    route: Route
    error: KappaError


class Sending:
    """How one producer sends: queue selection, broker faults and the limit of sends in flight."""

    def __init__(self, config: ClientConfig, group: str, selection: Selection) -> None:
        self.config = config
        self.group = group
        self.selection = selection
        self.faults: Faults = LatencyFaults() if config.latency_faults else Failing()
        self._fixed: dict[object, dict[str, str]] = {}
        self.pressure = Pressure(config.inflight_max, config.inflight_bytes_max, wait=config.inflight_full == "wait")

    async def deliver(
        self,
        core: ClientCore,
        outgoing: Outgoing,
        key: Key | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send and return a result for each message once a broker has stored it."""
        check(key, queue, timeout)
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        deadline = core.clock.liveness() + limit
        size = len(outgoing.body)
        if not self.pressure.try_take(size):
            await self.pressure.take(size, limit)
        try:
            return await self.tries(core, outgoing, key, queue, limit, deadline)
        finally:
            self.pressure.give_back(size)

    async def tries(
        self,
        core: ClientCore,
        outgoing: Outgoing,
        key: Key | None,
        queue: MessageQueue | None,
        limit: float,
        deadline: float,
        first: Failed | None = None,
        chosen_already: MessageQueue | None = None,
    ) -> list[SendResult]:
        """`deliver` without the limit of sends in flight. `first`: go on after this attempt. `chosen_already`: the queue to begin with."""
        pinned = key is not None or queue is not None
        tries = 1 if queue is not None else 1 + self.config.send_retries
        now, topic = core.clock.liveness, outgoing.topic
        patience: Patience | None = None  # made when something fails, which is seldom
        failures = _Failures()
        failed_broker: str | None = None
        masterless: set[str] = set()  # groups that were found without a master since the last pause
        maybe_stored = False
        number = 0
        try:
            while number < tries:
                if first is not None:
                    route, chosen = first.route, first.attempt.queue
                else:
                    route = core.routes.ready(topic) or await self.route(core, topic, deadline)
                    chosen = chosen_already or self.choose(route, key, queue, failed_broker, now())
                    chosen_already = None
                if number and chosen.broker == failed_broker:
                    await asyncio.sleep(PAUSE_S * 2**number)
                left = deadline - now()
                if left <= 0 and first is None:
                    break
                address, unsent = None, True
                try:
                    if first is not None:
                        address, unsent, failed, first = first.attempt.address, False, first.error, None
                        raise failed
                    last = pinned or number == tries - 1
                    attempt = self.attempt(route, chosen, left, now(), last=last)
                    address = attempt.address
                    channel = await self._connect(core, attempt)
                    unsent = False
                    return await self._ask(core, outgoing, attempt, channel)
                except RequestTimeout as error:
                    failures.append(error)
                    maybe_stored |= not unsent
                    core.routes.lost(address or "")  # it may be cut off, and have a successor
                    if now() >= deadline or pinned:
                        break  # the attempt used up all the time
                except KappaError as error:
                    failures.append(error)
                    maybe_stored |= not unsent and isinstance(error, (NotConnected, MaybeStored))
                    if (unsent or isinstance(error, NotMaster)) and is_about_master(error):
                        masterless.add(chosen.broker)
                        others = {other.broker for other in route.publish} - masterless
                        failed_broker = chosen.broker
                        if others and not pinned:
                            core.routes.lost(address or "")
                            continue
                        masterless.clear()
                        if pinned:
                            queue = chosen  # also with a key: when the route is shorter, that would mean another queue
                        patience = patience or Patience(core.routes, topic, now, deadline)
                        if await patience.after(error, chosen.broker, address):
                            continue
                        if maybe_stored:
                            break  # an earlier attempt may have succeeded
                        raise
                    if isinstance(error, InvalidParameter) and queue is None:
                        if number == tries - 1 or not await self._has_gone(core, chosen):
                            raise
                        number += 1
                        continue  # the topic has fewer queues now: choose again
                    if number == tries - 1 or pinned or not may_work_elsewhere(error):
                        raise
                    if isinstance(error, NotConnected):
                        if {other.broker for other in route.publish} == {chosen.broker}:
                            patience = patience or Patience(core.routes, topic, now, deadline)
                            await patience.after(error, chosen.broker, address)
                    elif error.retry is Retry.AFTER_ROUTE_REFRESH:
                        await self._refresh(core, topic)
                number += 1
                failed_broker = chosen.broker
        except KappaError as error:
            # What the last attempt was refused with says nothing of an earlier one that may have been stored.
            unknown = maybe_stored and not isinstance(error, (MaybeStored, NotConnected))
            if unknown and isinstance(error, (NoRoute, NotMaster)):
                failures.append(error)
            else:
                told = MaybeStored.because(str(error)) if unknown else error
                for number, earlier in enumerate(failures):
                    if earlier is not error:
                        told.add_note(f"attempt {number + 1} failed with: {earlier}")
                if told is error:
                    raise
                raise told from error
        except TimeoutError:
            failures.append(NoRoute(f"the name server did not return the route of {outgoing.topic!r} in time"))
        tried = "; ".join(str(failure) for failure in failures) or "no attempt was made in time"
        raise timed_out(outgoing.message_ids[0], outgoing.topic, limit, tried, maybe_stored=maybe_stored)

    async def once(
        self,
        core: ClientCore,
        outgoing: Outgoing,
        key: Key | None,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> None:
        """Send without waiting for an answer."""
        check(key, queue, timeout)
        limit = self.config.send_timeout_ms / 1000 if timeout is None else timeout
        deadline = core.clock.liveness() + limit
        try:
            async with asyncio.timeout(limit):
                route = await core.routes.find_for_sending(outgoing.topic)
                chosen = self.choose(route, key, queue, None, core.clock.liveness())
                channel = await core.brokers.get(route.master(chosen.broker))
                header = outgoing.header(self.group, chosen.queue_id, chosen.broker, self.config)
                await channel.oneway(header, outgoing.body, deadline - core.clock.liveness())
        except (TimeoutError, RequestTimeout) as error:
            raise SendTimeout(
                f"could not send the message for {outgoing.topic!r} within {limit:g} s: {error}"
            ) from None

    def choose(
        self, route: Route, key: Key | None, queue: MessageQueue | None, failed_broker: str | None, now: float
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != route.topic:
                raise IllegalMessage(f"the message has topic {route.topic!r}, but the given queue is {queue}")
            return queue
        if key is not None:
            return by_key(route.publish, key)
        return self.selection.choose(self.faults.usable(route.publish, failed_broker, now), failed_broker)

    def choose_for_all(self, route: Route, entries: list[T], now: float) -> list[tuple[MessageQueue, list[T]]] | None:
        """`choose` for messages without a chosen queue: return the queues, and which messages each gets, in order.
        None: the application's own selection has to be called for each."""
        queues = self.faults.usable(route.publish, None, now)
        selection = self.selection
        if type(selection) is RoundRobin:
            count = len(queues)
            first = selection.first_of(len(entries), count)
            return [(queues[(first + n) % count], entries[n::count]) for n in range(min(count, len(entries)))]
        if type(selection) is not Sticky:
            return None
        parts: dict[MessageQueue, list[T]] = {}
        for entry in entries:
            parts.setdefault(selection.choose(queues, None), []).append(entry)
        return list(parts.items())

    def attempt(self, route: Route, queue: MessageQueue, left: float, now: float, *, last: bool) -> Attempt:
        if not last and self.config.send_try_timeout_ms:
            left = min(left, self.config.send_try_timeout_ms / 1000)
        return Attempt(queue, route.master(queue.broker), now, left, last)

    def request(self, outgoing: Outgoing, queue: MessageQueue) -> Frame:
        """Return the request that sends to this queue. The constant part of a queue's requests is encoded once. Thread-safe."""
        what = (queue, outgoing.topic, outgoing.code, outgoing.sys_flag, outgoing.flag)
        fixed = self._fixed.get(what)
        if fixed is None:
            if len(self._fixed) >= FIXED_MAX:
                self._fixed.clear()
            header = outgoing.header(self.group, queue.queue_id, queue.broker, self.config)
            fixed = self._fixed[what] = header.encode()
        ext = {**fixed, _BORN: str(outgoing.born_ms), _PROPERTIES: outgoing.properties}
        return Frame(int(outgoing.code), next_opaque(), ext=ext, body=outgoing.body)

    async def _connect(self, core: ClientCore, attempt: Attempt) -> Channel:
        try:
            # As long as nothing was sent it is safe to give up early, which leaves time for another broker, or another master.
            return await core.brokers.get(attempt.address, attempt.left / 2)
        except NotConnected:
            self.faults.failed(attempt.queue.broker, core.clock.liveness(), reachable=False)
            raise

    async def _ask(self, core: ClientCore, outgoing: Outgoing, attempt: Attempt, channel: Channel) -> list[SendResult]:
        queue = attempt.queue
        try:
            answer = await channel.request(self.request(outgoing, queue), timeout=attempt.left)
        except (NotConnected, RequestTimeout) as error:
            raise self.unanswered(core, attempt, error) from error
        return self.answered(core, outgoing, attempt, answer)

    def unanswered(self, core: ClientCore, attempt: Attempt, error: KappaError) -> KappaError:
        """Note that a request got no answer; return the error that says so."""
        self.faults.failed(attempt.queue.broker, core.clock.liveness(), reachable=False)
        if isinstance(error, NotConnected):
            return NotConnected(f"{error}, before it had answered: {MAYBE}")
        return error

    def answered(self, core: ClientCore, outgoing: Outgoing, attempt: Attempt, answer: Frame) -> list[SendResult]:
        """Return what an answer says about each message; raise the error that it stands for."""
        queue = attempt.queue
        if answer.code == ResponseCode.GO_AWAY:
            core.brokers.drop(attempt.address)
        status = _STATUS.get(answer.code)  # type: ignore[call-overload]
        now = core.clock.liveness()
        if status is None:
            self.faults.failed(queue.broker, now, reachable=True)
            raise for_code(answer.code, answer.remark)
        self.faults.answered(queue.broker, now - attempt.began, now)
        if status is not SendStatus.OK and self.config.retry_not_stored_ok and not attempt.last:
            raise NotAvailable(f"{queue.broker} has stored the message, but: {status}")
        return _results(answer, outgoing, queue, status)

    async def route(self, core: ClientCore, topic: str, deadline: float) -> Route:
        """Return a route with writable queues; if its brokers have no master, wait for one. Raises NoRoute or TimeoutError."""
        patience: Patience | None = None
        while True:
            try:
                async with asyncio.timeout(deadline - core.clock.liveness()):
                    return await core.routes.find_for_sending(topic)
            except NoRoute as error:
                patience = patience or Patience(core.routes, topic, core.clock.liveness, deadline)
                if not await patience.after(error):
                    raise

    async def _has_gone(self, core: ClientCore, queue: MessageQueue) -> bool:
        """Return whether the topic no longer has the queue."""
        await self._refresh(core, queue.topic)
        route = core.routes.ready(queue.topic)
        return route is not None and queue not in route.publish

    async def _refresh(self, core: ClientCore, topic: str) -> None:
        try:
            async with asyncio.timeout(REFRESH_S):
                await core.routes.refresh(topic)
        except (TimeoutError, KappaError):
            pass  # keep the old route


class _Failures(list[KappaError]):
    """Describe the failures so far; of equal failures in a row, only the first: a wait may end after hundreds."""

    def append(self, error: KappaError) -> None:
        if len(self) < FAILURES_MAX and not (self and str(self[-1]) == str(error)):
            super().append(error)


def timed_out(message_id: str, topic: str, limit: float, tried: str, *, maybe_stored: bool) -> SendTimeout:
    """Return the error of a message that was not confirmed in time; it says whether the message may be stored."""
    return SendTimeout(
        f"no broker confirmed message {message_id} for {topic!r} within {limit:g} s "
        f"({tried}): " + (MAYBE if maybe_stored else "nothing was sent, so it is not stored and may be sent again")
    )


def check(key: object, queue: object, timeout: object) -> None:
    arguments.key(key)
    if queue is not None:
        arguments.queue(queue)
    arguments.seconds("timeout", timeout)


def may_work_elsewhere(error: KappaError) -> bool:
    if type(error) is BrokerError:
        return error.response_code in _UNCLASSED_RETRIED
    return error.retry is not Retry.NEVER


def _results(answer: Frame, outgoing: Outgoing, queue: MessageQueue, status: SendStatus) -> list[SendResult]:
    header = SendMessageResponse.decode(answer.ext)
    offset_ids = header.message_id.split(",")
    stored = queue
    if header.queue_id != queue.queue_id:
        stored = MessageQueue(queue.topic, queue.broker, header.queue_id)
    message_ids, first, count = outgoing.message_ids, header.queue_offset, len(outgoing.message_ids)
    if len(offset_ids) < count:
        offset_ids += [""] * (count - len(offset_ids))
    own = (list(message_ids), list(range(first, first + count)), offset_ids)
    shared = (
        status,
        stored,
        header.transaction_id or "",
        header.region or "",
        header.trace_on != "false",
        header.recall_handle or "",
    )
    results: list[SendResult] = _filled_objects(SendResult, _FIELDS, own, shared, count, True)
    return results

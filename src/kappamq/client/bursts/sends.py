"""All messages that a producer has accepted and not settled: finds their lanes, and reports their results.

Bound to one event loop; only its thread may call it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kappamq.client.bursts.encoding import Encoder
from kappamq.client.bursts.lanes import Lane
from kappamq.client.bursts.leftovers import Watch
from kappamq.client.bursts.waiting import Sink, Waiting, each_its_own, entries_by_topic, settle_entries, weigh
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import Route
from kappamq.client.producer.outgoing import Outgoing, check_sendable, single
from kappamq.client.producer.selection import by_key
from kappamq.client.producer.sending import MAYBE, Sending, timed_out
from kappamq.errors import ClientClosed, IllegalMessage, KappaError, SendTimeout
from kappamq.message import MessageQueue, SendResult
from kappamq.net.channel import Channel
from kappamq.protocol.records.ids import UniqueIds

log = logging.getLogger(__name__)

LATE_S: Final = 0.05
"""The shortest interval between checks for timed-out messages; also how much longer a request in flight may take for one of them."""

FRESH_MAX: Final = 256
"""When this many messages have come in a turn they are placed before it ends: a full request leaves at once."""
MOMENTS_MAX: Final = 64
"""This many messages share a reading of the clock, if they come in one turn of the loop."""

COMPRESS_ASIDE_BYTES: Final = 256 << 10
"""Bodies of this size or more are compressed in a thread, since that would block the loop for too long."""

OnSettled = Callable[[Waiting, str, SendResult | None], None]


class _Topic:
    """The lanes of one topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: dict[tuple[MessageQueue, bool], Lane] = {}
        self.publish: tuple[MessageQueue, ...] = ()  # what keys are mapped to
        self.route: Route | None = None
        self.unrouted: deque[Waiting] = deque()  # messages that wait for a route
        self.barred: deque[Waiting] = deque()  # messages that wait until their key may map to another queue

    @property
    def in_order(self) -> bool:
        """Whether messages are in flight whose order matters."""
        return any(lane.ordered and not lane.is_idle for lane in self.lanes.values())

    def forget_gone(self, route: Route) -> None:
        """Drop idle lanes of queues that the route does not have."""
        known = set(route.publish)
        for where, lane in list(self.lanes.items()):
            if lane.is_idle and lane.queue not in known:
                del self.lanes[where]


class Sends:
    """`on_settled` is called for each message that may have been sent, with its id and its result, if it has one."""

    def __init__(self, core: ClientCore, sending: Sending, ids: UniqueIds, on_settled: OnSettled | None = None) -> None:
        self._open: set[Waiting] = set()
        self._fresh: list[Waiting] = []  # plain ones that were not placed yet in this turn of the loop
        self._watch = Watch(self)
        self.core = core
        self.sending = sending
        self.config = sending.config
        self._ids = ids
        self._on_settled = on_settled
        self._encoder = Encoder(self.config)
        self._topics: dict[str, _Topic] = {}
        self._due: list[Lane] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = float("inf")  # liveness time at which the timer rings
        self._progress: asyncio.Future[None] | None = None  # while a flush is waiting
        self._linger_s = self.config.linger_ms / 1000
        self._turn_ends = False  # logs them at its end
        self._moment = (0.0, 0)
        self._moments = 0  # for how many more messages it is used
        self._plain_bytes = min(self.config.compress_over_bytes, self.config.message_bytes_max + 1)
        self._flushing = 0  # how many wait for `flush`: meanwhile nothing lingers

    def __len__(self) -> int:
        return len(self._open) + len(self._fresh)

    def __del__(self) -> None:
        self._watch.tell("a producer that was not closed was forgotten", self)

    def left_over(self) -> tuple[int, int]:
        """The number of messages without a result that were not sent, and of those that may be stored."""
        maybe = sum(entry.sent for entry in self._open)
        return len(self) - maybe, maybe

    @property
    def sinks(self) -> list[Sink]:
        """The sinks of the messages that have no result yet."""
        return [entry.sink for entry in (*self._open, *self._fresh)]

    def accept(self, entry: Waiting) -> None:
        """Accept a message. Any error with it is passed to its sink."""
        if entry.plain and entry.size < self._plain_bytes:
            fresh = self._fresh
            fresh.append(entry)
            if not self._turn_ends:
                self._until_turn_ends()
            elif len(fresh) >= FRESH_MAX:
                self._place_fresh()
            return
        if self._fresh:
            self._place_fresh()
        self._accept(entry)

    def _accept(self, entry: Waiting) -> None:
        try:
            self._look_at_one(entry)
        except Exception as error:  # also what a selection of the application raises, or returns
            self.fail(entry, error)

    def _look_at_one(self, entry: Waiting) -> None:
        self._open.add(entry)
        if entry.deadline < self._looks_at:
            self._look_at(entry.deadline)
        message = entry.message
        name = message.topic
        topic = self._topics.get(name)
        try:
            if not entry.weight:
                weigh(entry)
            if message.properties or not 0 < entry.size <= self.config.message_bytes_max:
                self._encoder.check(message)
            if topic is None:
                check_sendable(name)
                topic = self._topics[name] = _Topic(name)
            if entry.queue is not None and entry.queue.topic != name:
                raise IllegalMessage(f"the message has topic {name!r}, but the given queue is {entry.queue}")
        except (KappaError, UnicodeError) as error:
            self.fail(entry, error)
            return
        if entry.size >= self.config.compress_over_bytes:
            entry.joins = False  # a batch cannot say that a member is compressed
        self._route(topic, entry)

    def again(self, entry: Waiting) -> None:
        """Look for a lane once more."""
        self._route(self._topics[entry.message.topic], entry)

    async def flush(self) -> None:
        """Send lingering messages, and return when every message that was accepted before has been settled."""
        self._flushing += 1
        try:
            self._place_fresh()
            for lane in [lane for topic in self._topics.values() for lane in topic.lanes.values()]:
                if lane.wants_to_send:
                    self._send(lane)
            waited_for = list(self._open)
            while waited_for:
                if waited_for[-1].settled:
                    waited_for.pop()
                    continue
                if self._progress is None:
                    self._progress = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._progress)
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """End all sends under way with an error: either the outcome is not known, or the message was not sent."""
        self._place_fresh()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in list(self._open):
            why = MAYBE if entry.sent else "it was not sent"
            self.fail(entry, ClientClosed(f"this client was closed before the message was confirmed: {why}"))

    # --- called by lanes and bursts ---

    def prepared(self, entries: list[Waiting]) -> tuple[list[Waiting], Outgoing] | None:
        """Encode messages that leave together; those that cannot be encoded fail, and the others go without them."""
        ids = self._ids.several(self.core.clock.message_ms(), len(entries))
        born_ms = entries[0].born_ms
        if len(entries) > 1:
            messages = [entry.message for entry in entries]
            bare = all([entry.plain for entry in entries])  # noqa: C419 - quicker than a generator
            try:
                return entries, self._encoder.batch(messages, ids, born_ms, bare=bare)
            except Exception:
                wrong = [
                    self._encoder.wrong(message, message_id) for message, message_id in zip(messages, ids, strict=True)
                ]
                if not any(wrong):
                    raise
            good: list[Waiting] = []
            for entry, error in zip(entries, wrong, strict=True):
                if error is None:
                    good.append(entry)
                else:
                    self.fail(entry, error)
            return self.prepared(good) if good else None
        try:
            return entries, single(entries[0].message, ids[0], born_ms, self.config)
        except Exception as error:
            self.fail(entries[0], error)
            return None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.core.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def alone(self, entry: Waiting, message_id: str | None = None) -> None:
        """Send one message by itself."""
        if entry.settled or entry.sink.done():
            self.left(entry)
            return
        if message_id is None:
            message_id = self._ids.next(self.core.clock.message_ms())
        try:
            if entry.size < COMPRESS_ASIDE_BYTES or entry.key is not None or entry.queue is not None:
                outgoing = single(entry.message, message_id, entry.born_ms, self.config)
            else:
                outgoing = await asyncio.to_thread(single, entry.message, message_id, entry.born_ms, self.config)
            entry.sent = True
            results = await self.sending.tries(self.core, outgoing, entry.key, entry.queue, entry.limit, entry.deadline)
        except Exception as error:
            self.fail(entry, error, message_id)
        except asyncio.CancelledError:
            self.fail(entry, ClientClosed(f"this client was closed before the message was confirmed: {MAYBE}"))
            raise
        else:
            self.succeed([entry], results, outgoing)

    def succeed(self, entries: list[Waiting], results: list[SendResult], outgoing: Outgoing) -> None:
        told = self._on_settled
        late = [] if told is None else [entry for entry in entries if entry.settled]
        settle_entries(entries, results, self._open)
        if told is not None:
            for entry, result in zip(entries, results, strict=True):
                if entry not in late:
                    told(entry, result.message_id, result)
        self._progressed()

    def fail(self, entry: Waiting, error: BaseException, message_id: str = "") -> None:
        if entry.settled:
            return
        self.left(entry)
        if not entry.sink.done():
            entry.sink.set_exception(error)
        if self._on_settled is not None and message_id:
            self._on_settled(entry, message_id, None)

    def left(self, entry: Waiting) -> None:
        """The sender no longer waits for the message."""
        if not entry.settled:
            entry.settled = True
            self._open.discard(entry)
            entry.limits.give_back(entry.size)
            self._progressed()

    def lane_free(self, lane: Lane) -> None:
        """A lane has messages and nothing in flight."""
        if self._linger and not lane.is_full:
            self._soon(lane)
        else:
            lane.send()

    def lane_idle(self, lane: Lane) -> None:
        topic = self._topics[lane.queue.topic]
        if topic.barred and not topic.in_order:
            barred, topic.barred = topic.barred, deque()
            for entry in barred:
                self._route(topic, entry)

    # --- valid for one turn of the loop ---

    def moment(self) -> tuple[float, int]:
        """Liveness and message time, read once for a few messages that are accepted in the same turn."""
        if not self._moments:
            self._moment = self.core.clock.liveness(), self.core.clock.message_ms()
            self._moments = MOMENTS_MAX
            self._until_turn_ends()
        self._moments -= 1
        return self._moment

    def _until_turn_ends(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self.core.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ends = False
        self._moments = 0
        self._place_fresh(at_once=True)

    # --- finding a lane ---

    def _place_fresh(self, *, at_once: bool = False) -> None:
        """Place all messages that came in this turn; `at_once`: also send them, since the turn has ended."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        by_topic, deadline = entries_by_topic(fresh)
        self._open.update(fresh)
        if deadline < self._looks_at:
            self._look_at(deadline)
            if deadline <= self.core.clock.liveness():
                self._look()  # a message without time left is not sent
        channels: set[Channel | None] = set()
        for name, entries in by_topic:
            topic = self._topics.get(name)
            route = self.core.routes.ready(name) if topic is not None and not topic.unrouted else None
            chosen = None
            if topic is not None and route is not None and route is topic.route:
                chosen = self.sending.choose_for_all(route, entries, entries[0].accepted)
            if topic is None or chosen is None:
                for entry in entries:
                    if not entry.settled:
                        self._accept(entry)
                continue
            for queue, part in chosen:
                lane = self._lane(topic, queue, ordered=False)
                if lane.put_all(part) or (at_once and not self._linger):
                    channels.add(lane.send())
                elif not lane.due or self._flushing:
                    self._soon(lane)
        for channel in channels:
            if channel is not None:
                channel.flush()

    def _route(self, topic: _Topic, entry: Waiting) -> None:
        route = None if topic.unrouted else self.core.routes.ready(topic.name)
        if route is not None:
            self._place(topic, route, entry)
            return
        topic.unrouted.append(entry)
        if len(topic.unrouted) == 1:
            self.spawn(self._find_route(topic))

    async def _find_route(self, topic: _Topic) -> None:
        while topic.unrouted:
            deadline = max(entry.deadline for entry in topic.unrouted)
            waiting = len(topic.unrouted)
            try:
                route = await self.sending.route(self.core, topic.name, deadline)
            except TimeoutError:
                pass  # the timer fails those that have timed out
            except (Exception, asyncio.CancelledError) as error:
                if not isinstance(error, (KappaError, asyncio.CancelledError)):
                    log.exception("the route of topic %r could not be looked up", topic.name)
                gone = isinstance(error, asyncio.CancelledError)
                told = ClientClosed("this client was closed before the message was sent") if gone else error
                late = [topic.unrouted.popleft() for _ in range(waiting)]
                for entry, own in zip(late, each_its_own(told, waiting), strict=True):
                    self.fail(entry, own)
                if gone:
                    raise
            else:
                while topic.unrouted:
                    self._place(topic, route, topic.unrouted.popleft())
            while topic.unrouted and topic.unrouted[0].settled:
                topic.unrouted.popleft()

    def _place(self, topic: _Topic, route: Route, entry: Waiting) -> None:
        try:
            self._find_place(topic, route, entry)
        except Exception as error:
            self.fail(entry, error)

    def _find_place(self, topic: _Topic, route: Route, entry: Waiting) -> None:
        if entry.settled or entry.sink.done():
            self.left(entry)
            return
        if topic.route is not route:
            topic.route = route
            topic.forget_gone(route)
        ordered = True
        if entry.queue is not None:
            queue = entry.queue
        elif entry.key is not None:
            changed = route.publish is not topic.publish and route.publish != topic.publish
            if topic.barred or (changed and topic.in_order):
                # The key may map to another queue now: earlier messages with the same key must be stored first.
                topic.barred.append(entry)
                return
            topic.publish = route.publish
            queue = by_key(route.publish, entry.key)
        else:
            queue = self.sending.choose(route, None, None, None, entry.accepted)
            if not entry.joins:
                self.spawn(self.alone(entry))
                return
            ordered = False
        self._into_lane(topic, queue, entry, ordered=ordered)

    def _into_lane(self, topic: _Topic, queue: MessageQueue, entry: Waiting, *, ordered: bool) -> None:
        lane = self._lane(topic, queue, ordered=ordered)
        if lane.put(entry):
            self._send(lane)
        elif not lane.due or self._flushing:
            self._soon(lane)

    def _lane(self, topic: _Topic, queue: MessageQueue, *, ordered: bool) -> Lane:
        lane = topic.lanes.get((queue, ordered))
        if lane is None:
            if not isinstance(queue, MessageQueue):
                raise TypeError(f"the selection must choose one of the queues that it is given; got {queue!r}")
            lane = topic.lanes[queue, ordered] = Lane(self, queue, ordered=ordered)
        return lane

    # --- when lanes send ---

    @property
    def _linger(self) -> float:
        return 0.0 if self._flushing else self._linger_s

    def _soon(self, lane: Lane) -> None:
        lane.due = True
        if linger := self._linger:
            self.core.loop.call_later(linger, self._lingered, lane)
            return
        if not self._due:
            self.core.loop.call_soon(self._send_due)
        self._due.append(lane)

    def _lingered(self, lane: Lane) -> None:
        lane.due = False
        self._send(lane)

    def _send_due(self) -> None:
        due, self._due = self._due, []
        for lane in due:
            lane.due = False
        channels = {lane.send() for lane in due}
        for channel in channels:
            if channel is not None:
                channel.flush()

    def _send(self, lane: Lane) -> None:
        channel = lane.send()
        if channel is not None:
            channel.flush()

    # --- time-outs ---

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = due
        self._timer = self.core.loop.call_later(max(0.0, due - self.core.clock.liveness()), self._look)

    def _look(self) -> None:
        """Fail the messages that have timed out. Those in a request or a task have a little longer, since its error says more."""
        now = self.core.clock.liveness()
        self._timer, self._looks_at = None, float("inf")
        following = float("inf")
        for entry in list(self._open):
            due = entry.deadline + LATE_S if entry.sent or self._is_unrouted(entry) else entry.deadline
            if due <= now:
                self.fail(entry, self._late(entry))
            else:
                following = min(following, due)
        if self._open:
            self._look_at(max(following, now + LATE_S))

    def _is_unrouted(self, entry: Waiting) -> bool:
        topic = self._topics.get(entry.message.topic)
        return topic is not None and bool(topic.unrouted)

    def _late(self, entry: Waiting) -> SendTimeout:
        message_id, topic = self._ids.next(entry.born_ms), entry.message.topic
        tried = "its request was not answered in time" if entry.sent else "it waited for earlier messages of its queue"
        if not entry.sent and self._is_unrouted(entry):
            tried = f"the name server did not return the route of {topic!r} in time"
        return timed_out(message_id, topic, entry.limit, tried, maybe_stored=entry.sent)

    def _progressed(self) -> None:
        if self._progress is not None:
            progress, self._progress = self._progress, None
            progress.set_result(None)

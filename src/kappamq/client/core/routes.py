"""The routes of topics: fetched from a name server, cached and refreshed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kappamq.client.core import arguments
from kappamq.errors import InvalidParameter, KappaError, NoMaster, NoRoute, ProtocolError, TopicNotFound, UnknownTopic
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.topics import PERMISSION_READ, PERMISSION_WRITE, TOPIC_QUEUES_MAX, TopicRouteData
from kappamq.protocol.names import check_topic

log = logging.getLogger(__name__)

MASTER_ID: Final = 0

UNUSED_S: Final = 600.0
"""A topic that was not used for this long is no longer refreshed."""
ASK_AGAIN_S: Final = 0.1
"""The shortest interval between two fetches of a topic's route, however many requests fail."""
STALE_WAIT_S: Final = 0.5
"""How long a request waits for a fresh route, after a connection was lost, before it uses the old one."""
REMEMBERED_S: Final = 60.0
"""How long a topic whose brokers are all gone counts as one that had a route a moment ago."""
HEADLESS_TOPICS_MAX: Final = 100
"""This many topics without a master are looked up at once."""
HEADLESS_WAIT_MAX_S: Final = 30.0
"""The longest interval between lookups of a topic that has no master."""
PROVISIONAL_S: Final = 1.0
"""How long a route borrowed from the default topic is used; meanwhile the first send creates the real one."""

ROUTE_QUEUES_MAX: Final = 1 << 18
"""The most queues to read, or to write, that a route may have over all brokers."""
DIGITS_MAX: Final = 9

Ask = Callable[[str], Awaitable[TopicRouteData]]


@dataclass(frozen=True, slots=True)
class Route:
    """Queues and broker addresses of one topic at one point in time."""

    topic: str
    addresses: Mapping[str, Mapping[int, str]]  # broker name -> broker id -> address
    publish: tuple[MessageQueue, ...]  # writable queues, sorted
    subscribe: tuple[MessageQueue, ...]  # readable queues, sorted
    provisional: bool = False  # borrowed from the default topic: this one does not exist yet
    clusters: frozenset[str] = frozenset()  # of its brokers
    writable: tuple[MessageQueue, ...] = ()  # with those of brokers that have no master now, sorted
    fixed: bool = False  # `publish` follows the configuration of an ordered topic, whether or not its brokers are there

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, borrowed_queues_max: int | None = None) -> Route:
        """Convert a name server's answer. `borrowed_queues_max`: `data` is the default topic's, to be used for `topic`.

        Raises ProtocolError for more queues than a topic can have: each one is an object here."""
        addresses = {broker.broker_name: dict(broker.addresses) for broker in data.brokers}
        writable: list[MessageQueue] = []
        subscribe: list[MessageQueue] = []
        for queues in data.queues:
            name = queues.broker_name
            if queues.permission & PERMISSION_WRITE:
                count = _counted(topic, name, queues.write_queues, writable)
                if borrowed_queues_max is not None:
                    count = min(count, borrowed_queues_max)
                writable += (MessageQueue(topic, name, number) for number in range(count))
            if queues.permission & PERMISSION_READ and addresses.get(name):
                count = _counted(topic, name, queues.read_queues, subscribe)
                subscribe += (MessageQueue(topic, name, number) for number in range(count))
        fixed = _ordered(topic, data.order_conf) if data.order_conf else []
        return cls(
            topic,
            addresses,
            tuple(sorted(fixed)) if fixed else _with_master(sorted(writable), addresses),
            tuple(sorted(subscribe)),
            borrowed_queues_max is not None,
            frozenset(broker.cluster for broker in data.brokers),
            tuple(sorted(writable)),
            bool(fixed),
        )

    def master(self, broker: str) -> str:
        """Return the address of the master of `broker`. Raises NoMaster."""
        address = self.addresses.get(broker, {}).get(MASTER_ID)
        if address is None:
            raise NoMaster(f"broker {broker!r} has no master at the moment: its queues are not writable")
        return address

    def reader_id(self, broker: str, broker_id: int = MASTER_ID) -> int:
        """Return the id to read from: `broker_id` if registered, else any other of the broker. Raises NoRoute."""
        known = self.addresses.get(broker)
        if not known:
            raise NoRoute(f"broker {broker!r} of topic {self.topic!r} is no longer registered with the name server")
        if broker_id in known:
            return broker_id
        return min(known, key=lambda other: (other < broker_id, other))

    def reader(self, broker: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of `reader_id`. Raises NoRoute."""
        chosen = self.reader_id(broker, broker_id)
        return self.addresses[broker][chosen]

    @property
    def headless(self) -> bool:
        """Whether a broker has no master at the moment."""
        return any(MASTER_ID not in known for known in self.addresses.values())

    def with_master(self, broker: str, address: str) -> Route:
        """Return this route after the node at `address` has become the master of `broker`."""
        known = {number: other for number, other in self.addresses[broker].items() if other != address}
        addresses = {**self.addresses, broker: {**known, MASTER_ID: address}}
        publish = self.publish if self.fixed else _with_master(self.writable, addresses)
        return replace(self, addresses=addresses, publish=publish)


def _with_master(
    queues: Iterable[MessageQueue], addresses: Mapping[str, Mapping[int, str]]
) -> tuple[MessageQueue, ...]:
    return tuple(queue for queue in queues if MASTER_ID in addresses.get(queue.broker, ()))


def no_broker(nameservers: str) -> NoRoute:
    return NoRoute(
        f"no broker is registered with {nameservers}: it is not running, does not reach this name server, or uses another "
        "one. Start one, for example with `kappamq broker`; a running broker logs why it cannot register"
    )


def _advice(topic: str) -> str:
    try:
        check_topic(topic)
    except InvalidParameter as error:
        return f"It cannot be created either: {error}"
    return f"Create it with `kappamq topic create {topic}` (Admin.create_topic), and check that its broker is running"


def _ordered(topic: str, text: str) -> list[MessageQueue]:
    """Parse `brokerA:4;brokerB:4`, the fixed layout of an ordered topic."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, colon, count = part.rpartition(":")
        name, count = name.strip(), count.strip()
        if colon and count.isdecimal():
            wanted = int(count) if len(count) <= DIGITS_MAX else -1
            queues += (MessageQueue(topic, name, number) for number in range(_counted(topic, name, wanted, queues)))
    return queues


def _counted(topic: str, broker: str, count: int, before: list[MessageQueue]) -> int:
    """Return `count`, the number of queues on one broker, after those of others. Raises ProtocolError if it is implausibly large."""
    if not 0 <= count <= TOPIC_QUEUES_MAX:
        raise ProtocolError(
            f"the route of topic {topic!r} gives broker {broker[:80]!r} a number of queues that is not within 0 to {TOPIC_QUEUES_MAX}: "
            "look at what that broker has registered (`kappamq topic list`), and at the topic's order configuration"
        )
    if len(before) + count > ROUTE_QUEUES_MAX:
        raise ProtocolError(f"the route of topic {topic!r} has more than {ROUTE_QUEUES_MAX} queues, on all brokers")
    return count


class Routes:
    """Caches routes. `ask` fetches one from a name server and raises TopicNotFound if none knows the topic."""

    def __init__(
        self,
        ask: Ask,
        *,
        default_topic: str,
        default_queues: int,
        now: Callable[[], float],
        nameservers: str,
        any_broker: Callable[[], Awaitable[bool]],
    ) -> None:
        self._ask = ask
        self._any_broker = any_broker
        self._default_topic = default_topic
        self._default_queues = default_queues
        self._now = now
        self._nameservers = nameservers
        self._known: dict[str, Route] = {}
        self._asked: dict[str, float] = {}
        self._used: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[Route | None]] = {}
        self._had: dict[str, float] = {}  # when it last had a route
        self._headless: dict[str, float] = {}  # topics that have a broker without a master -> since when
        self._stale: set[str] = set()  # topics whose route is doubtful, since a connection was lost

    @property
    def known(self) -> list[Route]:
        return list(self._known.values())

    def cached(self, topic: str) -> Route | None:
        return self._known.get(topic)

    async def find(self, topic: str) -> Route:
        """Return the route, fetching it if it is not cached. Raises NoRoute, whose text says what to do."""
        arguments.text("topic", topic)
        self._used[topic] = self._now()
        if topic in self._stale:
            await self._freshen(topic)
        route = self._known.get(topic)
        if route is None or route.provisional:
            route = await self._ask_once(topic)
        if route is None:
            await self.check_any_broker()
            raise UnknownTopic(
                f"no route for topic {topic!r}: no broker has registered it with {self._nameservers}. {_advice(topic)}"
            )
        return route

    async def find_master(self, topic: str, broker: str) -> str:
        """Return the address of the master of `broker`, which has `topic` or is about to create it. Raises NoRoute."""
        if topic in self._stale:
            await self._freshen(topic)
        return (self._known.get(topic) or await self.find(topic)).master(broker)

    async def check_any_broker(self) -> None:
        """Raise NoRoute if no broker is registered: topics of a broker that is down must not be reported as missing."""
        if not await self._any_broker():
            raise no_broker(self._nameservers)

    def ready(self, topic: str) -> Route | None:
        """Return the route if it is cached and usable for sending, without I/O; called for every message."""
        route = self._known.get(topic)
        if route is None or route.provisional or not route.publish or topic in self._stale:
            return None
        self._used[topic] = self._now()
        return route

    async def find_for_sending(self, topic: str) -> Route:
        """Like `find`, but for a topic that does not exist yet return the route of the default topic."""
        now = self._now()
        self._used[topic] = now
        if topic in self._stale:
            await self._freshen(topic)
        route = self._known.get(topic)
        if route is None or (route.provisional and now - self._asked.get(topic, 0.0) >= PROVISIONAL_S):
            asked = await self._ask_once(topic)
            route = asked if asked is not None else await self._borrow(topic)
        if not route.publish and route.writable:
            brokers = sorted({queue.broker for queue in route.writable})
            raise NoMaster(
                f"no queue of topic {topic!r} is writable at the moment: {', '.join(brokers)} has no master. Look at "
                f"`kappamq cluster`"
            )
        if not route.publish:
            raise NoRoute(
                f"no queue of topic {topic!r} is writable: its brokers are read-only or have no master. Look at "
                f"`kappamq topic route {topic}`"
            )
        return route

    async def refresh(self, topic: str, *, at_once: bool = False) -> Route | None:
        """Fetch the route again because the cached one turned out to be wrong; None if the topic no longer exists.

        `at_once`: even if it was fetched a moment ago, as after a change of our own.
        """
        if not at_once and topic not in self._asking:
            began = self._now()
            pause = self._asked.get(topic, began - ASK_AGAIN_S) + ASK_AGAIN_S - began
            if pause > 0:
                await asyncio.sleep(pause)
                if self._asked[topic] > began:
                    return self._known.get(topic)  # a concurrent caller has fetched it
        if at_once and topic in self._asking:
            await asyncio.wait([self._asking[topic]])  # that fetch was started before the change
        route = await self._ask_once(topic)
        if route is None:
            self._known.pop(topic, None)
            self._headless.pop(topic, None)
        return route

    async def refresh_all(self) -> None:
        """Refresh every topic in use. Keeps the route of a topic that the name server does not know: it may have restarted."""
        oldest = self._now() - UNUSED_S
        for topic in list(self._known):
            if self._used.get(topic, 0.0) < oldest:
                for table in (self._known, self._used, self._asked, self._had, self._headless):
                    table.pop(topic, None)
                self._stale.discard(topic)
                continue
            try:
                await self._ask_once(topic)
            except ProtocolError as error:  # of this topic only; the others are refreshed nevertheless
                log.warning("the route of topic %s is kept as it was: %s", topic, error)

    def lost(self, address: str) -> None:
        """The connection to a broker was lost, or it does not answer: look up its topics again before they are used."""
        for topic, route in self._known.items():
            if any(address in known.values() for known in route.addresses.values()):
                self._stale.add(topic)

    def follow(self, broker: str, address: str) -> None:
        """Note that, by a broker's answer, the node at `address` is its master now; until the name server says otherwise."""
        for topic, route in self._known.items():
            if broker in route.addresses and route.addresses[broker].get(MASTER_ID) != address:
                self._known[topic] = route.with_master(broker, address)

    def had_route(self, topic: str) -> bool:
        """Whether the topic had a route a moment ago: its only broker may be restarting."""
        last = self._had.get(topic)
        return last is not None and self._now() - last < REMEMBERED_S

    async def refresh_headless(self) -> None:
        """Refresh topics in use that have a broker without a master. The longer that lasts, the less often each is looked up."""
        now = self._now()
        due = [
            topic
            for topic, since in self._headless.items()
            if now - self._used.get(topic, 0.0) < UNUSED_S
            and now - self._asked.get(topic, 0.0) >= min((now - since) / 10, HEADLESS_WAIT_MAX_S)
        ]
        for topic in sorted(due, key=lambda one: self._asked.get(one, 0.0))[:HEADLESS_TOPICS_MAX]:
            try:
                await self._ask_once(topic)
            except ProtocolError as error:
                log.warning("the route of topic %s is kept as it was: %s", topic, error)

    async def _freshen(self, topic: str) -> None:
        """Fetch a doubtful route again. If that fails, or its broker is not registered just now, the old one is kept."""
        try:
            async with asyncio.timeout(STALE_WAIT_S):
                await self._ask_once(topic)
        except (TimeoutError, KappaError):
            pass
        self._stale.discard(topic)

    def keep(self, topic: str) -> None:
        """Mark the topic as used."""
        self._used[topic] = self._now()

    async def _borrow(self, topic: str) -> Route:
        try:
            data = await self._ask(self._default_topic)
        except TopicNotFound:
            await self.check_any_broker()
            raise UnknownTopic(
                f"no route for topic {topic!r}: no broker has registered it with {self._nameservers}, and none allows automatic "
                f"topic creation. Create it with `kappamq topic create {topic}` (Admin.create_topic), or check that "
                "its broker is running"
            ) from None
        route = Route.of(topic, data, borrowed_queues_max=self._default_queues)
        self._known[topic] = route
        return route

    async def _ask_once(self, topic: str) -> Route | None:
        """Fetch a route; concurrent callers share one request."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask_now(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._answered(topic, done))
        return await asyncio.shield(task)

    async def _ask_now(self, topic: str) -> Route | None:
        try:
            data = await self._ask(topic)
        except TopicNotFound:
            return None
        finally:
            self._asked[topic] = self._now()
        route = Route.of(topic, data)
        self._known[topic] = route
        self._had[topic] = self._now()
        self._stale.discard(topic)
        if route.headless:
            self._headless.setdefault(topic, self._now())
        else:
            self._headless.pop(topic, None)
        return route

    def _answered(self, topic: str, task: asyncio.Task[Route | None]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: there may be no waiter

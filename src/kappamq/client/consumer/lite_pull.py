"""Polling: queues are fetched in the background, and the application polls when it is ready.

Either the group's members share the queues (`topics`, `subscribe`), or the application chooses them itself (`assign`).
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, Unpack

from kappamq.client.consumer.inbox import Delivery
from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.settings import client_config
from kappamq.client.group.assignment import Sharing, Store
from kappamq.client.group.balance import Strategy, strategy
from kappamq.client.group.group_member import GroupMember
from kappamq.client.group.offsets import ConsumeFrom, Offsets, check_consume_from, time_ms
from kappamq.client.group.shares import Assigned
from kappamq.client.group.subscription import Topics, wanted_topics
from kappamq.client.pulling.pulling import PullStyle, Wanted
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ConfigError, InvalidParameter
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.bodies.clients import ConsumeType

POLL_S: Final = 5.0


class AsyncLitePullConsumer(GroupMember):
    """Polls messages, a list at a time. Supports one reader only.

    >>> async with AsyncLitePullConsumer("127.0.0.1:9876", group="audit", topics="orders") as consumer:
    ...     messages = await consumer.poll(timeout=1.0)  # doctest: +SKIP
    ...     # the next poll, or commit, acknowledges these
    """

    consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Topics | None = None,
        consume_from: ConsumeFrom = "last",
        balance: str | Strategy = "averagely",
        auto_commit: bool = True,
        idle_timeout: float | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """`topics`: shared with the other members of the group; leave it out to `assign` queues yourself.
        `auto_commit`: the offsets of earlier polls are committed every `commit_ms`, when a queue moves to another member,
        and on close; without it, only `commit` stores offsets. `consume_from`: the initial position of a group without
        committed offsets. `idle_timeout`: iteration ends after this many seconds without a message. `options`: fields of
        ClientConfig.
        """
        chosen = client_config(nameserver, config, options, type(self))
        super().__init__(
            chosen,
            group,
            {} if topics is None else wanted_topics(topics),
            start=check_consume_from(consume_from),
            strategy=strategy(balance),
            style=PullStyle(commits=False, introduced=False, lite=True, waiting_max=chosen.cached_all_max),
            retries=False,
            joins=topics is not None,
        )
        arguments.seconds("idle_timeout", idle_timeout)
        self._auto_commit = auto_commit
        self._idle_timeout = idle_timeout
        self._assigned = Assigned()
        self._polled: list[Delivery] = []

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The block ended without an error, so the last poll was processed.
        if kind is None:
            self.acknowledge()
        await self.close()

    # --- reading ---

    async def poll(self, timeout: float = POLL_S, count_max: int | None = None) -> list[ReceivedMessage]:
        """Return the next messages, at most `count_max` (`pull_batch`); an empty list if none arrive within `timeout` seconds.

        Acknowledges what the previous poll returned.
        """
        await self.start()
        limit = self.next_poll(count_max)
        return self.keep(await self.inbox.take_async(timeout, limit), limit)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        idle = self._idle_timeout
        while not self._closed:
            messages = await self.poll(POLL_S if idle is None else idle, 1)
            if not messages and idle is not None:
                return
            with self.reading():
                for message in messages:
                    yield message

    def next_poll(self, count_max: int | None) -> int:
        """Acknowledge the previous poll and return how many messages may be returned now. Thread-safe."""
        if not self._topics:
            raise ConfigError("nothing to poll: subscribe to a topic, or assign queues")
        if count_max is not None:
            arguments.number("count_max", count_max)
        if count_max is not None and count_max < 1:
            raise ConfigError(f"{count_max=}: must be at least 1")
        self.acknowledge()
        return self.config.pull_batch if count_max is None else count_max

    def keep(self, delivery: Delivery | None, limit: int) -> list[ReceivedMessage]:
        """Note what was taken from the inbox, and take more if available. Thread-safe."""
        found: list[ReceivedMessage] = []
        while delivery is not None:
            self._polled.append(delivery)
            found += delivery.messages
            delivery = self.inbox.take(limit - len(found)) if len(found) < limit else None
        return found

    def acknowledge(self) -> None:
        """Acknowledge the last poll. Thread-safe."""
        polled, self._polled = self._polled, []
        for delivery in polled:
            delivery.acknowledge()

    # --- queues ---

    async def subscribe(self, topics: Topics, wanted: Wanted = "*") -> None:
        if self._assigned.queues or (self._core is not None and not self._joins):
            raise ConfigError("this consumer reads assigned queues: use another consumer to subscribe")
        self._joins = True
        await super().subscribe(topics, wanted)

    async def assign(self, queues: Iterable[MessageQueue], wanted: Wanted = "*") -> None:
        """Read exactly these queues from now on, without joining the group's rebalancing; other readers are not affected."""
        if self._joins:
            raise ConfigError("this consumer has subscribed to topics: use another consumer to assign queues")
        arguments.expect("queues", queues, Iterable, "a list of queues")
        chosen = list(queues)
        for queue in chosen:
            arguments.queue(queue)
        self._assigned.queues = set(chosen)
        topics = {queue.topic for queue in self._assigned.queues}
        self._topics = wanted_topics(topics, wanted) if topics else {}
        if self._core is None or self._assignment is None:
            await self.start()
        else:
            self._set_interests()
            await self._assignment.balance()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted. Raises NoRoute."""
        return list((await self._at_work().routes.find(topic)).subscribe)

    # --- positions ---

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this offset. Raises InvalidParameter if the queue is not assigned or has no such offset."""
        arguments.queue(queue)
        arguments.number("offset", offset)
        assignment = self._started()
        if assignment.get(queue) is None:
            raise InvalidParameter(f"{queue} is not assigned to this consumer")
        offsets = Offsets(self._at_work(), self.group)
        low, end = await offsets.min_offset(queue), await offsets.max_offset(queue)
        if not low <= offset <= end:
            raise InvalidParameter(f"{queue} has no offset {offset}: it holds {low} to {end}")
        self._polled = [delivery for delivery in self._polled if delivery.queue.queue != queue]
        assignment.restart(queue, offset, store=False)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go back to the oldest message."""
        await self.seek(queue, await Offsets(self._at_work(), self.group).min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip the backlog."""
        await self.seek(queue, await Offsets(self._at_work(), self.group).max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, moment: int | datetime.datetime) -> None:
        """Go to the first message stored at or after a time (milliseconds since 1970 or a datetime)."""
        await self.seek(queue, await self.search(queue, moment))

    async def search(self, queue: MessageQueue, moment: int | datetime.datetime) -> int:
        """Return the offset of the first message stored at or after a time."""
        return await Offsets(self._at_work(), self.group).search(queue, time_ms(moment))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, by default everything polled so far, and wait until the brokers have stored them."""
        assignment = self._started()
        assert isinstance(self._store, _OnDemand)
        if offsets is not None:
            arguments.expect("offsets", offsets, Mapping, "a mapping from queue to offset")
            for queue, offset in offsets.items():
                arguments.queue(queue)
                arguments.number("offset", offset)
            await self._commit_as_it_is(self._store, offsets)
            return
        self.acknowledge()
        await self._store.offsets.commit(assignment.offsets(), strict=True)

    async def _commit_as_it_is(self, store: _OnDemand, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets forward or backward. Those of our own queues are committed again if their broker loses them."""
        mine = offsets.keys() & self.positions.keys() if not self._auto_commit else set()
        for queue in mine:
            store.forget(queue)
        await store.offsets.commit({queue: offsets[queue] for queue in mine}, strict=True)
        others = {queue: offset for queue, offset in offsets.items() if queue not in mine}
        await Offsets(self._at_work(), self.group).commit(others, strict=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue, None if there is none."""
        return await Offsets(self._at_work(), self.group).fetch(queue)

    # --- overrides ---

    def _make_shares(self, core: ClientCore) -> Sharing:
        return super()._make_shares(core) if self._joins else self._assigned

    def _make_store(self, core: ClientCore) -> Store:
        return _OnDemand(Offsets(core, self.group, self._start), always=self._auto_commit)

    def _at_work(self) -> ClientCore:
        self._started()
        assert self._core is not None
        return self._core


class _OnDemand:
    """Commits offsets periodically only if `always`; otherwise repeats only offsets that were committed on demand."""

    def __init__(self, offsets: Offsets, *, always: bool) -> None:
        self.offsets = offsets
        self._always = always

    async def start_of(self, queue: MessageQueue) -> int:
        return await self.offsets.start_of(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int], *, strict: bool = False) -> None:
        if self._always:
            await self.offsets.commit(offsets, strict=strict)
        else:
            await self.offsets.commit_again(strict=strict)

    def forget(self, queue: MessageQueue) -> None:
        self.offsets.forget(queue)

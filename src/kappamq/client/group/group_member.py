"""Base of all consumers that belong to a group: joining, queue assignment, offset commits, leaving."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, Self

from kappamq.client.consumer.broker_requests import BrokerRequests, Consume
from kappamq.client.consumer.consume_stats import ConsumeStats
from kappamq.client.consumer.inbox import Inbox
from kappamq.client.consumer.running_info import running_info
from kappamq.client.core import arguments
from kappamq.client.core import core as sharing
from kappamq.client.core.core import ClientCore, every
from kappamq.client.group.assignment import Assignment, Sharing, Store
from kappamq.client.group.balance import Strategy
from kappamq.client.group.condition_check import check_conditions
from kappamq.client.group.local_offsets import LocalOffsets
from kappamq.client.group.offsets import ConsumeFrom, Offsets
from kappamq.client.group.shares import Shares
from kappamq.client.group.subscription import Topics, wanted_topics
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.client.pulling.pulling import Interest, PullStyle, Wanted
from kappamq.config.client import ClientConfig
from kappamq.errors import ClientClosed, KappaError, NoRoute
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import ConsumerRunningInfo
from kappamq.protocol.bodies.clients import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from kappamq.protocol.frame import Frame
from kappamq.protocol.names import check_group, retry_topic

log = logging.getLogger(__name__)

DRAIN_S: Final = 10.0
"""How long closing waits for listeners to finish their messages."""

_FROM_WHERE: Final = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
}


class GroupMember:
    """Base class of consumers. Subclasses override `_begin` and `_drain` for what happens between joining and leaving."""

    consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        topics: dict[str, Wanted],
        *,
        start: ConsumeFrom,
        strategy: Strategy,
        style: PullStyle,
        ordered: bool = False,
        broadcasting: bool = False,
        retries: bool = True,
        joins: bool = True,
    ) -> None:
        """`retries`: also read the group's retry topic. `joins`: register with the brokers as a member of the group."""
        self.config = config
        self.group = check_group(group)
        self.ordered = ordered
        self.broadcasting = broadcasting
        self.inbox = Inbox(ordered=ordered, now=self._now)
        self.stats = ConsumeStats()
        self._topics = topics
        self._start = start
        self._strategy = None if broadcasting else strategy
        self._style = style
        self._retries = retries and not broadcasting
        self._joins = joins
        self._interests: list[Interest] = []
        self._core: ClientCore | None = None
        self._store: Store | None = None
        self._assignment: Assignment | None = None
        self._requests: BrokerRequests | None = None
        self._committing: asyncio.Task[None] | None = None
        self._started_ms = 0
        self._readers: set[object] = set()
        self._closed = False

    @property
    def damaged(self) -> int:
        """How many damaged messages have been skipped; the log names them."""
        return self.stats.damage.count

    # --- lifecycle ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and start pulling. Raises NotConnected if no name server can be reached."""
        if self._closed:
            raise ClientClosed("this consumer is closed: create a new one, it cannot be restarted")
        if self._core is not None:
            return
        # A broadcasting consumer finds its offsets file by its client id, which must be the same after a restart.
        core = sharing.acquire(self.config, consumer_group=self.group, lasting_id=self.broadcasting)
        try:
            self._store = self._make_store(core)
        except BaseException:
            await sharing.release(core)
            raise
        self._core = core
        self._started_ms = core.clock.message_ms()
        self._set_interests()
        if self._joins:
            core.add_member(self)
        self._assignment = Assignment(
            core,
            self.group,
            lambda: self._interests,
            self.inbox,
            self._store,
            self._make_shares(core),
            style=self._style,
            stats=self.stats,
            locked=self._locked,
        )
        self._requests = BrokerRequests(self.group, self._assignment, self._running_info, self._consume_now())
        try:
            for interest in self._interests:
                try:
                    await core.routes.find(interest.topic)
                except NoRoute:
                    pass  # the topic may be created later; rebalancing logs that and retries
            await check_conditions(core, self.group, self._interests)
            if self._joins:
                await core.heartbeat()
            balanced = await self._assignment.balance()
        except BaseException:
            await self.close()
            raise
        self._begin(core)
        self._assignment.start(balanced=balanced)
        self._committing = asyncio.create_task(
            every(self.config.commit_ms / 1000, self._commit_by_itself, "storing offsets")
        )

    async def close(self, drain: float = DRAIN_S) -> None:
        """Stop pulling, let listeners finish for up to `drain` seconds, commit the offsets, leave the group."""
        arguments.expect("drain", drain, (int, float), "a number of seconds")
        if self._closed:
            return
        self._closed = True
        core, assignment = self._core, self._assignment
        if core is None or assignment is None:
            self.inbox.close()
            return
        try:
            if self._committing is not None:
                self._committing.cancel()
                await asyncio.gather(self._committing, return_exceptions=True)
            await assignment.stop_pulling()
            self.inbox.close()
            if not await self._drain(drain):
                log.warning(
                    "group %s: a listener is still running after %g s; its message will be redelivered",
                    self.group,
                    drain,
                )
            await self._commit(strict=True)
        except KappaError as error:
            log.warning("group %s: could not commit the offsets on close: %s", self.group, error)
        finally:
            await assignment.leave()
            if isinstance(self._store, LocalOffsets):
                self._store.close()
            if self._joins:
                await core.remove_member(self)
            await sharing.release(core)

    def _begin(self, core: ClientCore) -> None:
        """Called before the first message arrives."""

    async def _drain(self, timeout: float) -> bool:
        """Called after the last message arrived: wait for those in flight. Returns False on timeout."""
        return True

    def _make_shares(self, core: ClientCore) -> Sharing:
        return Shares(core, self.group, self._strategy)

    def _make_store(self, core: ClientCore) -> Store:
        offsets = Offsets(core, self.group, self._start)
        if not self.broadcasting:
            return offsets
        return LocalOffsets(self.config, core.client_id, self.group, offsets.first_start_of)

    # --- offsets ---

    async def commit(self) -> None:
        """Commit the offsets now. Also done every `commit_ms` and on close."""
        await self._commit(strict=False)

    async def _commit_by_itself(self) -> None:
        await self._commit(strict=False)

    async def _commit(self, *, strict: bool) -> None:
        if self._store is not None and self._assignment is not None:
            await self._store.commit(self._assignment.offsets(), strict=strict)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues currently assigned to this consumer."""
        return sorted(queue.queue for queue in self._assignment.queues) if self._assignment is not None else []

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset of each assigned queue below which everything is acknowledged."""
        return {queue.queue: queue.committable for queue in self._assignment.queues} if self._assignment else {}

    # --- for the testing kit, which waits until all clients are idle; may be read from any thread ---

    @property
    def is_started(self) -> bool:
        return self._committing is not None

    @property
    def held(self) -> list[ProcessQueue]:
        return self._assignment.queues if self._assignment is not None else []

    @property
    def shared_topics(self) -> list[str]:
        """The topics whose queues are divided among the group; when broadcasting, all queues of each."""
        return [interest.topic for interest in self._interests] if self._joins else []

    def unfinished(self, besides: object = None) -> int:
        """How many messages are being processed, or about to be, except by `besides`, a task or thread."""
        return len(self._readers - {besides}) + self.inbox.is_wanted

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A loop over a consumer has a message in flight until it asks for the next one."""
        reader = current_reader()
        self._readers.add(reader)
        try:
            yield
        finally:
            self._readers.discard(reader)

    def look_again(self) -> None:
        if self._assignment is not None:
            self._assignment.soon()

    # --- topics ---

    async def subscribe(self, topics: Topics, wanted: Wanted = "*") -> None:
        """Add topics, or change their filters. All members of a group must have the same subscriptions.

        >>> await consumer.subscribe("orders", "new || paid")  # doctest: +SKIP
        >>> await consumer.subscribe({"orders": sql("price > 100"), "returns": "*"})  # doctest: +SKIP
        """
        new = wanted_topics(topics, wanted)
        if self._core is not None:
            await check_conditions(self._core, self.group, [Interest(topic, each, 0) for topic, each in new.items()])
        self._topics.update(new)
        await self._resubscribe()

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic; messages in flight may still be acknowledged."""
        self._topics.pop(topic, None)
        await self._resubscribe()

    async def _resubscribe(self) -> None:
        if self._core is not None and self._assignment is not None:
            self._set_interests()
            if self._joins:
                await self._core.heartbeat()
            self._assignment.soon()

    def _set_interests(self) -> None:
        assert self._core is not None
        known = {interest.topic: interest for interest in self._interests}
        version = max(self._core.clock.message_ms(), *(interest.version + 1 for interest in self._interests), 0)
        wanted = dict(self._topics)
        if self._retries:
            wanted[retry_topic(self.group)] = "*"
        # An unchanged subscription keeps its version, so a broker that missed the update still answers pulls.
        self._interests = [
            known[topic]
            if topic in known and known[topic].wanted == expression
            else Interest(topic, expression, version)
            for topic, expression in wanted.items()
        ]

    # --- pausing ---

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stop pulling and handing out these queues, by default all, until `resume`. Messages in flight are not affected."""
        _check_queues(queues)
        self._started().pause(queues)

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Resume these queues, by default all."""
        _check_queues(queues)
        self._started().resume(queues)

    def _started(self) -> Assignment:
        if self._assignment is None:
            raise ClientClosed("this consumer has not been started yet")
        return self._assignment

    # --- called by the core ---

    def heartbeat(self) -> ConsumerData:
        start = self._start
        return ConsumerData(
            group=self.group,
            consume_type=self.consume_type,
            message_model=MessageModel.BROADCASTING if self.broadcasting else MessageModel.CLUSTERING,
            from_where=_FROM_WHERE[start] if isinstance(start, str) else ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            subscriptions=[interest.to_body() for interest in self._interests],
        )

    def group_changed(self) -> None:
        if self._assignment is not None and not self.broadcasting:
            self._assignment.soon()

    def serve(self, frame: Frame) -> Frame | Awaitable[Frame] | None:
        return self._requests.serve(frame) if self._requests is not None else None

    def _running_info(self, with_stack: bool) -> ConsumerRunningInfo:
        assert self._core is not None
        assert self._assignment is not None
        return running_info(
            self.config,
            self._core.clock,
            self._started_ms,
            self._interests,
            self._assignment.queues,
            self.stats,
            consume_type=self.consume_type,
            ordered=self.ordered,
            locked=self._locked,
            with_stack=with_stack,
        )

    def _consume_now(self) -> Consume | None:
        """Return how to consume one message at once, None if that is not possible."""
        return None

    @property
    def _locked(self) -> bool:
        return self.ordered and not self.broadcasting

    def _now(self) -> float:
        assert self._core is not None
        return self._core.clock.liveness()


def current_reader() -> object:
    """Return the running task, or outside of tasks the thread."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def _check_queues(queues: Collection[MessageQueue] | None) -> None:
    if queues is None:
        return
    arguments.expect("queues", queues, Collection, "a list of queues")
    for queue in queues:
        arguments.queue(queue)

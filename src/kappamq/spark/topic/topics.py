"""The planner's queries to brokers: which topics exist, and the offset ranges of their queues."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from kappamq.client.admin.queries import Indexed
from kappamq.client.blocking.consumers import PullConsumer
from kappamq.errors import KappaError, NoRoute, NoSuchTopic, TopicNotFound
from kappamq.message import MessageQueue, PullStatus
from kappamq.protocol.records.record import Record, RecordError, iter_records
from kappamq.protocol.records.view import view_at
from kappamq.spark import connection
from kappamq.spark.patience import PATIENCE_S, Patience
from kappamq.spark.suggestions import nearest
from kappamq.spark.tls import Tls
from kappamq.spark.topic.checkpoints import Mark
from kappamq.spark.topic.known_topics import KnownTopics
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import Bounds
from kappamq.spark.topic.reported import Reported

log = logging.getLogger(__name__)

T = TypeVar("T")

_known_groups: set[tuple[str, str]] = set()
_answered: set[str] = set()
"""Name servers that this process has reached before. If one cannot be reached the first time, this is an error at once, since the address
may be wrong. Later it is probably a restart, and worth waiting for."""


def check_exists(nameservers: str, topic: str, tls: Tls | None = None, *, patience_s: float = PATIENCE_S) -> None:
    """Before the first send to a topic: a broker that creates topics by itself would create a misspelt one. Raises NoSuchTopic.

    Brokers or name servers that are away may be restarting: waits some time for them."""
    admin = connection.admin(nameservers, tls=tls)
    patience = Patience(f"looking for topic {topic}", patience_s)
    while True:
        try:
            admin.route(topic)
            return
        except TopicNotFound:
            near = nearest(topic, admin.topics())
            raise _no_such_topic(topic, near) from None
        except KappaError as error:
            patience.wait_after(error)


class Topics:
    """The topics of a read; fetched each time, since queues and brokers come and go."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._admin = connection.admin(options.nameservers, tls=options.tls)
        self._reader = connection.reader(options.nameservers, tls=options.tls)

    def names(self) -> tuple[str, ...]:
        """Return the topics by name, or those that match the pattern as a whole, perhaps none yet."""
        pattern = self._options.topic_pattern
        if pattern is None:
            return self._options.topics
        topics = self._asked("asking for the topics", self._admin.topics)
        return tuple(name for name in topics if re.fullmatch(pattern, name))

    def away(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of these queues that belong to the read and whose broker has no master now."""
        pattern = self._options.topic_pattern
        masters = self._asked("asking for the brokers", self._admin.masters)
        return sorted(
            queue
            for queue in queues
            if queue.broker not in masters
            and (queue.topic in self._options.topics if pattern is None else re.fullmatch(pattern, queue.topic))
        )

    def bounds(self, known: KnownTopics | None = None, *, lenient: bool = False) -> dict[MessageQueue, Bounds]:
        """Return the bounds of each queue at its master: one request per topic and broker. Raises NoSuchTopic for a topic that no broker
        has.

        `known` topics were there before: if no broker has one now, its brokers are away. `lenient`: the caller cannot know
        which existed, so any topic may be missing."""
        found: dict[MessageQueue, Bounds] = {}
        # A stream returns to the queues of a broker that is away, and offsets per queue name the queues to read. A read of
        # everything must not miss a broker that has only slaves now.
        partial = known is not None or self._options.start.by_queue is not None
        for topic in self.names():
            try:
                found |= self._bounds_of(topic, partial=partial)
            except TopicNotFound:
                if known is not None and topic in known:
                    known.is_away(topic)
                elif not lenient and self._options.topic_pattern is None:
                    near = nearest(topic, self._admin.topics())
                    raise _no_such_topic(topic, near) from None
            else:
                if known is not None:
                    known.is_there(topic)
        return dict(sorted(found.items()))

    def _bounds_of(self, topic: str, *, partial: bool = True) -> dict[MessageQueue, Bounds]:
        ask = functools.partial(self._admin.master_stats, topic, partial=partial)
        stats = self._asked(f"asking for the queues of {topic}", ask)
        return {queue: Bounds(at.min_offset, at.max_offset) for queue, at in stats.items()}

    def bounds_with(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """The same for the topics of these queues; waits some time for them, whose broker may be restarting. Raises NoRoute if it
        stays away.

        Regardless of onDataLoss: an absent broker has lost nothing, but going on without it would lose data. Other topics are not
        requested:
        a batch does not fail because of a broker that it does not need."""
        patience = Patience("looking for the queues of a batch")
        while True:
            found: dict[MessageQueue, Bounds] = {}
            for topic in sorted({queue.topic for queue in queues}):
                with contextlib.suppress(TopicNotFound):
                    found |= self._bounds_of(topic)
            missing = next((queue for queue in queues if queue not in found), None)
            if missing is None:
                return dict(sorted(found.items()))
            patience.wait_after(
                NoRoute(
                    f"no available broker has {missing}, which this batch needs: restart the query when its broker is back. "
                    "If it is lost for good, start with a new checkpoint"
                )
            )

    def _asked(self, what: str, ask: Callable[[], T]) -> T:
        patience = Patience(what, PATIENCE_S if self._options.nameservers in _answered else 0.0)
        while True:
            try:
                answer = ask()
            except TopicNotFound:
                raise
            except KappaError as error:
                patience.wait_after(error)
                continue
            _answered.add(self._options.nameservers)
            return answer

    def marks(self, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark]:
        """Return the mark of the message before each of these offsets; none for a queue whose message is gone or damaged."""
        found: dict[MessageQueue, Mark] = {}
        places_of = {queue: end - 1 for queue, end in ends.items()}
        answers = self._asked("looking at the last messages read", lambda: self._reader.pull_each(places_of))
        for queue, answer in answers.items():
            if answer.status is not PullStatus.FOUND:
                continue
            try:
                last = view_at(answer.data)
            except RecordError:
                continue
            if last.queue_offset == ends[queue] - 1:
                found[queue] = Mark(last.log_offset, last.body_crc, last.size)
        return found

    def looked_up(self, topic: str, key: str, *, unique: bool = False) -> dict[str, Indexed]:
        """Query the brokers' key index; returns results by broker; one that found nothing is missing."""
        return self._asked(f"looking up a key of {topic}", lambda: self._admin.find_in_index(topic, key, unique=unique))

    def messages_at(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Record]:
        """Return one message of each queue; a queue that has none there is missing."""
        found: dict[MessageQueue, Record] = {}
        for queue, answer in self._asked("looking at messages", lambda: self._reader.pull_each(offsets)).items():
            record = next(iter_records(answer.data), None) if answer.status is PullStatus.FOUND else None
            if record is not None and record.queue_offset == offsets[queue]:
                found[queue] = record
        return found

    def report(self, group: str | None, offsets: Mapping[MessageQueue, int], reported: Reported | None = None) -> None:
        """Store the offsets of a consumer group that are not `reported` yet, so that the usual tools show its lag. Failures are only
        logged."""
        told = Reported() if reported is None else reported
        due = told.due(offsets) if group is not None else {}
        if group is None or not due:
            return
        stored: dict[MessageQueue, int] = {}
        errors: dict[MessageQueue, KappaError] = {}
        try:
            client = self._client_of(group)
        except KappaError as error:
            errors = dict.fromkeys(due, error)
        else:
            failed: dict[tuple[str, str], KappaError] = {}  # the other queues of such a broker would wait in vain
            for queue, offset in due.items():
                broker = (queue.topic, queue.broker)
                try:
                    if broker not in failed:
                        client.commit(queue, offset)
                        stored[queue] = offset
                except KappaError as error:
                    failed[broker] = error
                if broker in failed:
                    errors[queue] = failed[broker]
        if told.done(stored, {queue: due[queue] for queue in errors}):
            example, why = next(iter(errors.items()))
            log.warning(
                "could not commit the offsets of group %s for %d of %d queues, such as %s: %s; retrying later",
                group,
                len(errors),
                len(offsets),
                example,
                why,
            )

    def _client_of(self, group: str) -> PullConsumer:
        key = (self._options.nameservers, group)
        if key not in _known_groups:
            if group not in self._admin.groups():
                self._admin.create_group(group)
            _known_groups.add(key)
        return connection.reader(self._options.nameservers, group, tls=self._options.tls)

    def search(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the first message of a queue that was stored at or after a time."""
        return self._asked(f"searching {queue} by time", lambda: self._reader.search(queue, time_ms))

    def stored_ms(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time in a message's record; None if there is no such message."""
        record = self.messages_at({queue: offset}).get(queue)
        return None if record is None else record.stored_ms

    def runtime_info(self, broker: str) -> dict[str, str]:
        """Return what a broker reports about itself. Raises KappaError at once if it does not answer: callers can do without."""
        return self._admin.runtime_info(broker)


def _no_such_topic(topic: str, near: str) -> NoSuchTopic:
    return NoSuchTopic(
        f"topic {topic!r} does not exist{near}: create it with `kappamq topic create {topic}` (Admin.create_topic)"
    )

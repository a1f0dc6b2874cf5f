"""Messages whose consumer failed: delivered again later, and moved to the dead letters after too many tries.

A consumer names the record it could not process (36). A copy of it goes to the retry topic of its group, later each time,
through the delay levels; when the tries are exhausted it goes to the dead letters instead. Consumers whose
request fails send the message itself to the retry topic, as a plain send: that may end among the dead letters, too.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from kappamq.broker.events import SentBack
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.upkeep.slices import Worker
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, NoPermission
from kappamq.events import Events
from kappamq.protocol import names
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import PERMISSION_WRITE, TopicConfig
from kappamq.protocol.codes import VERSION_MAX_RECONSUME, RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import SendBack, SendMessage
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, decode
from kappamq.state.groups import Groups
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

FIRST_RETRY_LEVEL = 3
"""The first delivery after a failure waits as long as this delay level says (10 s), each further one a level longer."""
DLQ_QUEUES = 1
TOPIC_UNIT_SUBSCRIBED = 2  # a flag of topics: read by consumers of another unit
_INTERNAL = frozenset((names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.HALF_OP_TOPIC, names.TIMER_TOPIC))


class Retries:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        appender: Appender,
        worker: Worker,
        holds_locks: Callable[[str], bool],
        events: Events,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._appender = appender
        self._worker = worker
        self._holds_locks = holds_locks  # of a group that consumes in order: a member has queues locked
        self._events = events

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    # -- a consumer names the record -----------------------------------------------------------------------------------------

    async def send_back(self, request: Request[SendBack]) -> Frame:
        header = request.header
        group = self._groups.existing(header.group)
        if not self._config.writable:
            raise NoPermission(f"the broker[{self._config.name}] sending message is forbidden")
        if group.retry_queues <= 0:
            return request.reply()  # the group allows no redelivery
        data = await self._worker(self._store.record, header.log_offset)
        if data is None:
            raise BrokerError(
                f"look message by offset failed, {header.log_offset}: no record begins there, or it was deleted"
            )
        record = decode(data)
        self._check(record, header)
        most = tries_max(group, header.max_reconsume_times, request.version)
        draft = again(record, header.delay_level)
        topic = retry_topic(self._topics, group, unit=header.unit_mode)
        if header.delay_level < 0 or (most is not None and record.reconsume_times >= most):
            self._bury(draft, group.name)
        else:
            draft.topic, draft.queue_id = self._writable(topic).name, random.randrange(max(1, topic.write_queues))
        origin = draft.properties[properties.RETRY_TOPIC]
        placed = self._appender.append(draft)
        self._events.publish(SentBack(group.name, origin))
        # Not before it is as durable as the broker's mode demands: the consumer drops its message when it gets the answer.
        await self._appender.answerable(placed.end)
        return request.reply()

    def _check(self, record: Record, header: SendBack) -> None:
        """Check that it is a message that a consumer may have got, and the intended one."""
        if record.topic in _INTERNAL or record.topic.startswith(names.KAPPAMQ_TOPIC_PREFIX):
            raise BrokerError(
                f"look message by offset failed, {header.log_offset}: the record there is not a message for consumers"
            )
        meant = header.origin_topic
        # After the first retry the record is in the retry topic, but its consumer names the topic it was sent to.
        if meant and meant not in (record.topic, record.property_map().get(properties.RETRY_TOPIC)):
            raise BrokerError(
                f"look message by offset failed to check the topic name {header.log_offset}: "
                f"the record there is of topic {record.topic}, not {meant}"
            )

    def _writable(self, topic: TopicConfig) -> TopicConfig:
        if not topic.permission & PERMISSION_WRITE:
            raise NoPermission(f"the topic[{topic.name}] sending message is forbidden")
        return topic

    def _bury(self, draft: Draft, group: str) -> None:
        """Turn it into a dead letter of `group`, with what is known about its origin."""
        topic = self._writable(self._topics.ensure(names.dlq_topic(group), DLQ_QUEUES))
        draft.topic, draft.queue_id = topic.name, 0
        pairs = draft.properties
        pairs[properties.DELAY] = "0"
        if properties.RETRY_TOPIC in pairs:
            pairs.setdefault(properties.DLQ_ORIGIN_TOPIC, pairs[properties.RETRY_TOPIC])
        origin_id = pairs.get(properties.UNIQUE_KEY) or pairs.get(properties.ORIGIN_MESSAGE_ID)
        if origin_id is not None:
            pairs.setdefault(properties.DLQ_ORIGIN_MESSAGE_ID, origin_id)
        log.info(
            "dead-letter queue of group %s: stored message %s of topic %s after %d attempts",
            *(group, origin_id, pairs.get(properties.RETRY_TOPIC), draft.reconsume_times),
        )

    # -- a consumer sends the message ----------------------------------------------------------------------------------------

    def topic_for_send(self, name: str) -> TopicConfig:
        """The retry topic of a send, made if its group is known. Raises GroupNotFound."""
        group = self._groups.existing(group_of(name))
        return self._topics.ensure(name, max(1, group.retry_queues))

    def place(self, draft: Draft, header: SendMessage, version: int) -> None:
        """A plain send to a retry topic: if its tries are used up, or the group consumes in order, it is a dead letter.

        In order means that the next message waits for this one: it was retried in place, and a later redelivery
        would be out of order."""
        group = self._groups.existing(group_of(draft.topic))
        most = tries_max(group, header.max_reconsume_times, version)
        # One more than above: here the number is that of the copy, there that of the record which is copied.
        if (most is not None and draft.reconsume_times > most) or self._holds_locks(group.name):
            self._bury(draft, group.name)


def again(record: Record, delay_level: int) -> Draft:
    """A copy of a record that is to be consumed once more; the caller says where. Level 0: later each time."""
    draft = Draft.of(record)
    pairs = draft.properties
    pairs.setdefault(properties.RETRY_TOPIC, record.topic)
    pairs.setdefault(properties.ORIGIN_MESSAGE_ID, record.offset_id)
    pairs[properties.WAIT] = "false"
    pairs[properties.DELAY] = str(delay_level or FIRST_RETRY_LEVEL + record.reconsume_times)
    draft.reconsume_times = record.reconsume_times + 1
    return draft


def tries_max(group: SubscriptionGroupConfig, requested: int | None, version: int) -> int | None:
    """Return how often a message is delivered again; None: no limit. The consumer's value overrides its group's setting."""
    given = (
        requested
        if requested is not None and requested >= 0 and version >= VERSION_MAX_RECONSUME
        else group.retry_times_max
    )
    return given if given >= 0 else None


def retry_topic(
    topics: Topics, group: SubscriptionGroupConfig, *, unit: bool | None = False, order: bool = False
) -> TopicConfig:
    """Return the group's retry topic, created if it does not exist."""
    sys_flag = TOPIC_UNIT_SUBSCRIBED if unit else 0
    return topics.ensure(names.retry_topic(group.name), max(1, group.retry_queues), order=order, sys_flag=sys_flag)


def group_of(topic: str) -> str:
    """The group behind a retry topic; POP adds the topic behind a '+'."""
    return topic.removeprefix(names.RETRY_PREFIX).partition("+")[0]

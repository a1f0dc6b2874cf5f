"""The slow path of sending, for messages that the kernel does not take as plain. It ends in the same append.

Does not know frames or connections: `send_requests` passes the requests of the remoting protocol, and answers them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kappamq.broker.delivery.retry import Retries
from kappamq.broker.sending.appending import SYS_PREPARED, Appender, Draft, member
from kappamq.broker.sending.gate import Gate
from kappamq.broker.timers.placing import recall_handle
from kappamq.broker.transactions.half_records import is_half
from kappamq.broker.transactions.transactions import Transactions
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import IllegalMessage, InvalidParameter, NotSupported, ProtocolError
from kappamq.native.layout import SYS_PLAIN, SYS_TRANSACTION
from kappamq.native.pure_record import GroupMember
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.headers.client import SendMessage
from kappamq.protocol.records import batch, properties
from kappamq.protocol.records.ids import UniqueIds
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore

_OURS = (
    "MSG_REGION",
    "TRACE_ON",
    "CLUSTER",
    "REAL_TOPIC",
    "REAL_QID",
    "INNER_MULTI_QUEUE_OFFSET",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    *sorted(properties.BROKER_ONLY),
)
"""Properties that only a broker may set: a sender's values are dropped."""
_TAIL_CRC = properties.TAIL_CRC + properties.NAME_END
_SYS_MULTI_TAGS = 0x2


class Sent(NamedTuple):
    """A message, or a batch of them, as a client sent it."""

    header: SendMessage
    body: bytes
    born: bytes  # address and port of the client
    version: int  # of the client


class Target(NamedTuple):
    """Where it goes, unless a placer sends it elsewhere."""

    topic: TopicConfig
    queue_id: int
    is_fresh: bool  # the topic was made for it


class Stored(NamedTuple):
    """The result of a send, and what the answer waits for."""

    ids: str
    queue_id: int
    queue_offset: int
    unique: str | None
    end: int
    waits: bool  # for the disk, where the broker syncs
    # the topic was made for it: `Sends.announced` should be awaited, since the sender asks for its route next
    is_fresh: bool
    recall_handle: str | None = None  # of a message that waits for a time


class ReadBatch(NamedTuple):
    """A batch that was read: what the kernel appends."""

    members: list[GroupMember]
    target: Target
    waits: bool


class Sends:
    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        clock: Clock,
        topics: Topics,
        appender: Appender,
        unique_ids: UniqueIds,
        gate: Gate,
        announced: Callable[[], Awaitable[None]],
        retries: Retries,
        transactions: Transactions,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._topics = topics
        self._appender = appender
        self._unique_ids = unique_ids
        self.check_gate = gate.check
        self.announced = announced  # waits until the name servers know of every topic
        self._retries = retries
        self._transactions = transactions

    # -- whether it is taken -----------------------------------------------------------------------------------------------

    def target(self, header: SendMessage) -> Target:
        """Where a message goes; its topic is made if that is allowed. Raises the KappaError that its sender should hear."""
        self.check_gate()
        is_fresh = self._topics.get(header.topic) is None
        topic = self._topics.for_send(header, self._retries.topic_for_send)
        queue_id = self.queue_of(header, topic)
        self.check_supported(header, topic)
        return Target(topic, queue_id, is_fresh)

    def queue_of(self, header: SendMessage, topic: TopicConfig) -> int:
        queues = max(topic.read_queues, topic.write_queues)
        if header.queue_id >= queues:
            raise InvalidParameter(
                f"request queueId[{header.queue_id}] is illegal, topic {topic.name} has {topic.read_queues} read and "
                f"{topic.write_queues} write queues: look up the route again"
            )
        if header.queue_id < 0:
            if not topic.write_queues:
                raise InvalidParameter(f"topic {topic.name} has no queue to write to")
            return random.randrange(topic.write_queues)
        return header.queue_id

    def check_supported(self, header: SendMessage, topic: TopicConfig) -> None:
        """Refuse messages that need unimplemented delivery features, instead of storing them as if they were plain."""
        if header.sys_flag & SYS_TRANSACTION not in (0, SYS_PREPARED):
            raise IllegalMessage(
                f"sysFlag {header.sys_flag:#x}: only END_TRANSACTION (37) commits or rolls back a transaction"
            )
        if header.sys_flag & ~(SYS_PLAIN | SYS_TRANSACTION | _SYS_MULTI_TAGS):
            raise IllegalMessage(f"sysFlag {header.sys_flag:#x} sets bits that only a broker may set")
        if (
            topic.attributes.get("queue.type", "").startswith("Batch")
            or topic.attributes.get("cleanup.policy") == "COMPACTION"
        ):
            raise NotSupported(
                f"topic {topic.name} has queue.type or cleanup.policy settings that this version of the broker cannot serve"
            )

    def _check_properties(self, pairs: dict[str, str]) -> None:
        for name, value in pairs.items():
            if _TAIL_CRC in value:
                raise IllegalMessage(f"property {name}: its value holds {_TAIL_CRC!r}, which only a broker may write")
        if "TIMER_DEL_UNIQKEY" in pairs:
            raise IllegalMessage(
                "TIMER_DEL_UNIQKEY is reserved for the broker: recall a message by its handle (RECALL_MESSAGE, 370)"
            )
        if "INNER_NUM" in pairs or "INNER_MULTI_DISPATCH" in pairs:
            raise IllegalMessage("INNER_NUM and INNER_MULTI_DISPATCH need settings that this broker does not have")

    # -- one message -------------------------------------------------------------------------------------------------------

    def send(self, sent: Sent) -> Stored:
        """Store one message. Raises the KappaError that its sender should hear."""
        header, target = sent.header, self.target(sent.header)
        topic, queue_id = target.topic, target.queue_id
        draft = self.draft(sent, topic, queue_id)
        if names.is_retry_topic(topic.name):
            self._retries.place(draft, header, sent.version)
            queue_id = draft.queue_id
        waits, unique = draft.waits_for_disk, draft.properties["UNIQ_KEY"]
        if is_half(draft.properties, draft.reconsume_times):
            placed = self._transactions.prepare(draft, header.producer_group)
        else:
            self._take_for_plain(draft)
            placed = self._appender.append(draft)
        handle = recall_handle(draft, self._config.name) if draft.topic == names.TIMER_TOPIC else None
        ids = self.offset_id(placed.log_offset)
        return Stored(ids, queue_id, placed.queue_offset, unique, placed.end, waits, target.is_fresh, handle)

    def _take_for_plain(self, draft: Draft) -> None:
        if draft.sys_flag & SYS_TRANSACTION:
            if properties.TRANSACTION_PREPARED not in draft.properties:
                raise IllegalMessage(
                    f"sysFlag {draft.sys_flag:#x} says that a transaction begins, but the property "
                    f"{properties.TRANSACTION_PREPARED} does not: set both or none"
                )
            draft.sys_flag &= ~SYS_TRANSACTION  # it was committed long ago, and a consumer has sent it back

    def draft(self, sent: Sent, topic: TopicConfig, queue_id: int) -> Draft:
        """Check a client's message, and add the broker's properties."""
        header, body = sent.header, sent.body
        body_max = self._store.config.message_bytes_max
        if not body:
            raise IllegalMessage("the message has no body")
        if len(body) > body_max:
            raise IllegalMessage(
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {body_max}B, got {len(body)}B"
            )
        pairs = _properties(header)
        self._check_properties(pairs)
        for name in _OURS:
            pairs.pop(name, None)
        if "UNIQ_KEY" not in pairs:
            pairs["UNIQ_KEY"] = self._unique_ids.next(self._clock.message_ms())
        self._add_ours(pairs)
        sys_flag = header.sys_flag | (_SYS_MULTI_TAGS if topic.filter_type == "MULTI_TAG" else 0)
        return Draft(
            topic.name,
            queue_id,
            body,
            pairs,
            header.flag,
            sys_flag,
            header.born_ms,
            sent.born,
            header.reconsume_times or 0,
        )

    def _add_ours(self, pairs: dict[str, str]) -> None:
        """Add the broker's properties, which a sender cannot set, to a message."""
        pairs.update(self.ours())

    def ours(self) -> dict[str, str]:
        """Properties that every message gets."""
        return {
            "MSG_REGION": self._config.region,
            "TRACE_ON": "true" if self._config.trace_on else "false",
            "CLUSTER": self._config.cluster,
        }

    def offset_id(self, log_offset: int) -> str:
        return (self._store.host + log_offset.to_bytes(8, "big")).hex().upper()

    # -- a batch -----------------------------------------------------------------------------------------------------------

    def batch_target(self, sent: Sent) -> Target:
        """Where a batch goes: what can be said about it without reading it. Raises the KappaError that its sender should hear."""
        header, target = sent.header, self.target(sent.header)
        if names.is_retry_topic(target.topic.name):
            raise IllegalMessage(
                f"batch request does not support retry group {target.topic.name}: send them one by one"
            )
        if header.sys_flag & SYS_TRANSACTION:
            raise IllegalMessage("a batch cannot be part of a transaction: send its messages one by one")
        limit = self._store.config.message_bytes_max
        if len(sent.body) > limit:
            raise IllegalMessage(f"the batch has {len(sent.body)} bytes, the limit is {limit}: split it")
        _not_delayed(_properties(header))
        return target

    def read_batch(self, sent: Sent, target: Target) -> ReadBatch:
        """What is in a batch, checked. Raises IllegalMessage. Any thread may call it."""
        members = []
        wait: str | None = None
        for draft in self.drafts(sent, target.topic, target.queue_id):
            _not_delayed(draft.properties)
            wait = draft.properties.get("WAIT", wait)
            members.append(member(draft))
        return ReadBatch(members, target, (wait or "true").lower() != "false")

    def drafts(self, sent: Sent, topic: TopicConfig, queue_id: int) -> list[Draft]:
        """The messages of a batch, each checked as one that is sent alone. Raises IllegalMessage. Any thread may call it."""
        header, body = sent.header, sent.body
        try:
            split = batch.split(body, self._config.batch_members_max)
        except ProtocolError as error:
            raise IllegalMessage(f"the batch cannot be read: {error}") from error
        if not split:
            raise IllegalMessage("the batch is empty")
        inherited = _inherited(header)
        limit = self._store.config.message_bytes_max
        size = len(body) + len(split) * len(properties.encode(inherited).encode())
        if size > limit:
            raise IllegalMessage(
                f"the batch has {size} bytes, since each member gets the batch's own properties; the limit is {limit}: split it"
            )
        drafts = []
        for one in split:
            pairs = properties.decode(one.properties)
            if not one.body:
                raise IllegalMessage("a message of the batch has no body")
            for name, value in inherited.items():
                pairs.setdefault(name, value)
            self._check_properties(pairs)
            if is_half(pairs, 0):
                raise IllegalMessage("a batch cannot be part of a transaction: send its messages one by one")
            for name in _OURS:
                pairs.pop(name, None)
            self._add_ours(pairs)
            drafts.append(
                Draft(
                    topic.name,
                    queue_id,
                    one.body,
                    pairs,
                    one.flag,
                    header.sys_flag,
                    header.born_ms,
                    sent.born,
                    header.reconsume_times or 0,
                )
            )
        return drafts

    def check_again(self, header: SendMessage) -> None:
        """Between reading a batch beside the loop and appending it: its topic may have changed, or gone."""
        self.queue_of(header, self._topics.for_send(header, self._retries.topic_for_send))

    def append_batch(self, read: ReadBatch) -> Stored:
        """Store all messages of a batch or, with an error, none."""
        placed = self._appender.append_members(read.members)
        ids = ",".join(self.offset_id(place.log_offset) for place in placed)
        target = read.target
        return Stored(ids, target.queue_id, placed[0].queue_offset, None, placed[-1].end, read.waits, target.is_fresh)


def _properties(header: SendMessage) -> dict[str, str]:
    """The properties in the header of a send. Raises IllegalMessage if they are too long to be read, or stored."""
    text = header.properties or ""
    if len(text) > properties.TEXT_BYTES_MAX:
        raise IllegalMessage(
            f"the message is illegal: its properties have {len(text)} characters; msg properties length limit 32768"
        )
    return properties.decode(text)


def _inherited(header: SendMessage) -> dict[str, str]:
    """The batch's own properties, which are those of each member that does not say otherwise; but ids are not shared."""
    pairs = _properties(header)
    return {name: value for name, value in pairs.items() if name != "UNIQ_KEY" and name not in _OURS}


def _not_delayed(pairs: dict[str, str]) -> None:
    for name in ("DELAY", *properties.TIMER_NAMES):
        if pairs.get(name, "0") != "0":
            raise IllegalMessage(f"a batch cannot be delayed ({name}): send delayed messages one by one")

"""The slow path of sending: what the kernel does not take as plain. It ends in the same append."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import SYS_PREPARED, Appender, Draft, Placed, member
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.timers.placing import recall_handle
from kappamq.broker.transactions.half_records import is_half
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import IllegalMessage, InvalidParameter, NotSupported, ProtocolError
from kappamq.native.layout import SYS_PLAIN, SYS_TRANSACTION
from kappamq.native.pure_record import GroupMember
from kappamq.net.requests.beside import Beside
from kappamq.net.requests.reader import InOrder
from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.client import SendMessage, SendMessageResponse
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
"""What only a broker may say about a message: a sender's claims are dropped."""
_TAIL_CRC = properties.TAIL_CRC + properties.NAME_END
_SYS_MULTI_TAGS = 0x2


class Stored(NamedTuple):
    """What the answer to a send says, and what it waits for."""

    ids: str
    queue_id: int
    queue_offset: int
    unique: str | None
    end: int
    waits: bool  # for the disk, where the broker syncs
    recall_handle: str | None = None  # of a message that waits for a time


class _Batch(NamedTuple):
    """A batch that was read: what the kernel appends."""

    members: list[GroupMember]
    queue_id: int
    waits: bool


class Sends:
    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        clock: Clock,
        topics: Topics,
        writer: LogWriter,
        beside: Beside,
        appender: Appender,
        unique_ids: UniqueIds,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._topics = topics
        self._writer = writer
        self._appender = appender
        self._unique_ids = unique_ids
        self._beside = beside
        self.check_gate: Callable[[], None] = lambda: None
        self.run: Callable[[Coroutine[Any, Any, None]], None]
        self.told: Callable[[], Awaitable[None]]  # the name servers know of every topic
        self.prepare: Callable[[Draft, str], Placed]  # store the first half of a transaction of these producers
        self.place_retried: Callable[[Draft, SendMessage, int], None]  # a message for a retry topic may end elsewhere

    def handlers(self) -> dict[int, Handler]:
        codes = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return dict.fromkeys(codes, self.handle)

    def handle(self, request: Request[SendMessage]) -> InOrder | None:
        header = request.header
        self.check_gate()
        fresh = self._topics.get(header.topic) is None
        topic = self._topics.for_send(header)
        queue_id = self.queue_of(header, topic)
        self.check_supported(header, topic)
        if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            self._check_batch(request, topic)
            if len(request.body) > BESIDE_BYTES:
                return InOrder(self._batch_beside(request, topic, queue_id, fresh))
            stored = self._batch(request, topic, queue_id)
        else:
            stored = self._single(request, topic, queue_id)
        if fresh:
            # Who made a topic by sending to it asks for its route next: the name servers should know it by then.
            self._writer.set_turn()
            self.run(self._answer_when_told(request, stored))
        else:
            self._answer(request, stored)
        return None

    async def _answer_when_told(self, request: Request[SendMessage], stored: Stored) -> None:
        await self.told()
        self._answer(request, stored)

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
        """What would need delivery features that are not built yet is refused, never stored as if it were plain."""
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
                "TIMER_DEL_UNIQKEY is the broker's: recall a message by its handle (RECALL_MESSAGE, 370)"
            )
        if "INNER_NUM" in pairs or "INNER_MULTI_DISPATCH" in pairs:
            raise IllegalMessage("INNER_NUM and INNER_MULTI_DISPATCH need settings that this broker does not have")

    # -- one message -------------------------------------------------------------------------------------------------------

    def _single(self, request: Request[SendMessage], topic: TopicConfig, queue_id: int) -> Stored:
        header = request.header
        draft = self.draft(request, topic, queue_id)
        if names.is_retry_topic(topic.name):
            self.place_retried(draft, header, request.version)
            queue_id = draft.queue_id
        waits, unique = draft.waits_for_disk, draft.properties["UNIQ_KEY"]
        if is_half(draft.properties, draft.reconsume_times):
            placed = self.prepare(draft, header.producer_group)
        else:
            self._take_for_plain(draft)
            placed = self._appender.append(draft)
        handle = recall_handle(draft, self._config.name) if draft.topic == names.TIMER_TOPIC else None
        offset_id = self.offset_id(placed.log_offset)
        return Stored(offset_id, queue_id, placed.queue_offset, unique, placed.end, waits, handle)

    def _take_for_plain(self, draft: Draft) -> None:
        if draft.sys_flag & SYS_TRANSACTION:
            if properties.TRANSACTION_PREPARED not in draft.properties:
                raise IllegalMessage(
                    f"sysFlag {draft.sys_flag:#x} says that a transaction begins, but the property "
                    f"{properties.TRANSACTION_PREPARED} does not: set both or none"
                )
            draft.sys_flag &= ~SYS_TRANSACTION  # it was committed long ago, and a consumer has sent it back

    def draft(self, request: Request[SendMessage], topic: TopicConfig, queue_id: int) -> Draft:
        """What a client sent, checked, and with what the broker adds to it."""
        header, body = request.header, request.body
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
            topic.name, queue_id, body, pairs, header.flag, sys_flag, header.born_ms, request.connection.born, header.reconsume_times or 0
        )  # fmt: skip

    def _add_ours(self, pairs: dict[str, str]) -> None:
        """What the broker says about every message; its sender cannot have said it before."""
        pairs["MSG_REGION"], pairs["TRACE_ON"] = self._config.region, "true" if self._config.trace_on else "false"
        pairs["CLUSTER"] = self._config.cluster

    def offset_id(self, log_offset: int) -> str:
        host: bytes = self._store.kernel.store_host
        return (host + log_offset.to_bytes(8, "big")).hex().upper()

    def _answer(self, request: Request[SendMessage], stored: Stored) -> None:
        header = SendMessageResponse(
            message_id=stored.ids, queue_id=stored.queue_id, queue_offset=stored.queue_offset, transaction_id=stored.unique,
            recall_handle=stored.recall_handle, region=self._config.region, trace_on="true" if self._config.trace_on else "false",
        )  # fmt: skip
        response = request.reply(header=header)
        answer_when_stored(self._writer, request, response, stored.end, flushed=stored.waits)

    # -- a batch -----------------------------------------------------------------------------------------------------------

    def _check_batch(self, request: Request[SendMessage], topic: TopicConfig) -> None:
        """What can be said about a batch without reading it."""
        header, body = request.header, request.body
        if names.is_retry_topic(topic.name):
            raise IllegalMessage(f"batch request does not support retry group {topic.name}: send them one by one")
        if header.sys_flag & SYS_TRANSACTION:
            raise IllegalMessage("a batch cannot be part of a transaction: send its messages one by one")
        limit = self._store.config.message_bytes_max
        if len(body) > limit:
            raise IllegalMessage(f"the batch has {len(body)} bytes, the limit is {limit}: split it")
        _not_delayed(_properties(header))

    def _batch(self, request: Request[SendMessage], topic: TopicConfig, queue_id: int) -> Stored:
        read = self._read_batch(request, topic, queue_id)
        placed = self._appender.append_members(read.members)
        return self._stored_batch(read, placed, self._ids(placed))

    async def _batch_beside(
        self, request: Request[SendMessage], topic: TopicConfig, queue_id: int, fresh: bool
    ) -> None:
        """A large batch is read beside the loop. What was appended is answered at once: its sender waits for nobody else's work."""
        header, size = request.header, len(request.body)
        read = await self._beside.run(request.connection, self._read_batch, request, topic, queue_id, size=size)
        self.queue_of(header, self._topics.for_send(header))  # it may have changed, or gone
        placed = self._appender.append_members(read.members)
        if fresh:
            await self.told()
        self._answer(request, self._stored_batch(read, placed, self._ids(placed)))

    def _read_batch(self, request: Request[SendMessage], topic: TopicConfig, queue_id: int) -> _Batch:
        """What is in a batch, checked. Raises IllegalMessage. Any thread may call it."""
        header, body = request.header, request.body
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
        members = []
        wait: str | None = None
        for one in split:
            pairs = properties.decode(one.properties)
            if not one.body:
                raise IllegalMessage("a message of the batch has no body")
            for name, value in inherited.items():
                pairs.setdefault(name, value)
            self._check_properties(pairs)
            _not_delayed(pairs)
            if is_half(pairs, 0):
                raise IllegalMessage("a batch cannot be part of a transaction: send its messages one by one")
            for name in _OURS:
                pairs.pop(name, None)
            self._add_ours(pairs)
            wait = pairs.get("WAIT", wait)
            draft = Draft(
                topic.name, queue_id, one.body, pairs, one.flag, header.sys_flag, header.born_ms, request.connection.born,
                header.reconsume_times or 0,
            )  # fmt: skip
            members.append(member(draft))
        return _Batch(members, queue_id, (wait or "true").lower() != "false")

    def _ids(self, placed: list[Placed]) -> str:
        return ",".join(self.offset_id(place.log_offset) for place in placed)

    def _stored_batch(self, read: _Batch, placed: list[Placed], ids: str) -> Stored:
        return Stored(ids, read.queue_id, placed[0].queue_offset, None, placed[-1].end, read.waits)


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

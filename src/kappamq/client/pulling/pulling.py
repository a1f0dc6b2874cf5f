"""One pull: the request, its answer, and decoding the records into messages."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Required, TypedDict, Unpack

from kappamq.client.core.core import ClientCore
from kappamq.client.pulling import unpacking
from kappamq.client.pulling.damage import DamageReports
from kappamq.errors import ProtocolError
from kappamq.message import (
    DamagedMessage,
    MessageQueue,
    PulledBytes,
    PullResult,
    PullStatus,
    ReceivedMessage,
    SqlFilter,
)
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessage,
    PullMessageResponse,
)
from kappamq.protocol.records import properties
from kappamq.protocol.records.batch import unwrap
from kappamq.protocol.records.compression import BODY_BYTES_MAX, BodyTooLong
from kappamq.protocol.records.messages import MessageBlock, messages_in_place
from kappamq.protocol.records.record import SYS_COMPRESSED, SYS_INNER_BATCH, Record
from kappamq.protocol.records.salvage import Spoiled, out_of_order, salvage
from kappamq.protocol.records.tags import EVERYTHING, Subscription
from kappamq.protocol.records.view import RecordView

log = logging.getLogger(__name__)

PULL_BYTES_MAX: Final = 256 << 10
UNPACKED_BYTES_MAX: Final = 64 << 20
"""Limit of decompressed bytes per answer, except for a single body; the rest is pulled again: 2 KB may expand to 64 MiB."""
MESSAGE_BYTES: Final = 1 << 10
"""Memory that a message of a batch counts for beside its body: a hundred thousand empty ones take memory, too."""
TAG: Final = "TAG"
SQL92: Final = "SQL92"

Wanted = str | SqlFilter
"""The filter of a subscription: tags ("new || paid", "*" for all), or sql("price > 100")."""

_MULTI_DISPATCH: Final = properties.MULTI_DISPATCH.encode()
_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class Interest:
    """A consumer's subscription to a topic. The version tells a broker which of two subscriptions is newer."""

    topic: str
    wanted: Wanted
    version: int

    @property
    def expression(self) -> str:
        return self.wanted.expression if isinstance(self.wanted, SqlFilter) else self.wanted

    @property
    def expression_type(self) -> str:
        return SQL92 if isinstance(self.wanted, SqlFilter) else TAG

    @property
    def tags(self) -> Subscription:
        """The tags to compare here, because the broker compares only hashes; an SQL filter is exact at the broker."""
        return EVERYTHING if isinstance(self.wanted, SqlFilter) else Subscription.parse(self.wanted)

    def to_body(self) -> SubscriptionData:
        tags = self.tags
        return SubscriptionData(
            topic=self.topic,
            expression=self.expression,
            expression_type=self.expression_type,
            tags=set(tags.tags),
            codes=set(tags.codes),
            version=self.version,
        )


@dataclass(slots=True)
class PullStyle:
    """How a consumer pulls its queues."""

    commits: bool = True  # pulls also commit the group's offset
    introduced: bool = True  # the broker knows our subscription from heartbeats; else each pull carries it
    lite: bool = False  # use the request code of lite pull consumers, with fallback
    waiting_max: int | None = None  # messages in the inbox, over all queues, at which pulling pauses


class PullOptions(TypedDict, total=False):
    """The keyword arguments of `pull_bytes`, which documents them."""

    count: Required[int]
    hold_ms: Required[int]
    timeout: Required[float]
    commit_offset: int | None
    broker_id: int
    introduced: bool
    lite: bool


async def pull_bytes(
    core: ClientCore,
    group: str,
    queue: MessageQueue,
    offset: int,
    interest: Interest,
    *,
    count: int,
    hold_ms: int,
    timeout: float,
    commit_offset: int | None = None,
    broker_id: int = 0,
    introduced: bool = True,
    lite: bool = False,
) -> PulledBytes:
    """Pull the records of one queue from `offset` on. If there are none, the broker may hold the request for `hold_ms`.

    `introduced`: the broker knows our subscription from heartbeats; else the request carries it. `lite`: use the request
    code of lite pull consumers, which a broker may not know (NotSupported) or have disabled (NoPermission).
    `commit_offset`: also commit this as the group's offset. Damaged messages are not among the result's messages but listed
    in `damaged`: the caller reports them. Raises what `ClientCore.ask` raises.
    """
    flags = PULL_SUSPEND if hold_ms else 0
    if commit_offset is not None:
        flags |= PULL_COMMIT_OFFSET
    if not introduced:
        flags |= PULL_SUBSCRIPTION
    if lite:
        flags |= PULL_LITE
    header = PullMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        count_max=count,
        sys_flag=flags,
        commit_offset=commit_offset or 0,
        hold_ms=hold_ms,
        subscription=None if introduced else interest.expression,
        subscription_version=interest.version,
        expression_type=interest.expression_type,
        bytes_max=PULL_BYTES_MAX,
        logical_broker=queue.broker,
    )
    code = RequestCode.LITE_PULL_MESSAGE if lite else None
    answer = await core.ask_queue(
        queue,
        header,
        timeout=timeout,
        accept=_STATUS,
        broker_id=broker_id,
        code=code,
        again=commit_offset is None,  # a repetition might carry an outdated offset
    )
    told = PullMessageResponse.decode(answer.ext)
    status = _STATUS[answer.code]
    return PulledBytes(
        status=status,
        next_offset=told.next_offset,
        min_offset=told.min_offset,
        max_offset=told.max_offset,
        data=answer.body if status is PullStatus.FOUND else b"",
        suggested_broker_id=told.suggested_broker_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """Like PullResult, but messages become objects only when they are accessed."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: Sequence[ReceivedMessage]
    suggested_broker_id: int
    damaged: Sequence[DamagedMessage] = ()
    missing: int = 0


async def pull(
    core: ClientCore, group: str, queue: MessageQueue, offset: int, interest: Interest, **how: Unpack[PullOptions]
) -> PullResult:
    """Like `pull_bytes`, decoded; without messages whose tag only shares its hash with a wanted one."""
    pulled = await pull_block(core, group, queue, offset, interest, **how)
    return PullResult(
        status=pulled.status,
        next_offset=pulled.next_offset,
        min_offset=pulled.min_offset,
        max_offset=pulled.max_offset,
        messages=tuple(pulled.messages),
        suggested_broker_id=pulled.suggested_broker_id,
        damaged=tuple(pulled.damaged),
        missing=pulled.missing,
    )


async def pull_block(
    core: ClientCore,
    group: str,
    queue: MessageQueue,
    offset: int,
    interest: Interest,
    *,
    original_topics: bool = False,
    **how: Unpack[PullOptions],
) -> Pulled:
    """Like `pull`, for callers that keep messages for a while. `original_topics`: redelivered messages have the topic they were first
    sent to."""
    pulled = await pull_bytes(core, group, queue, offset, interest, **how)
    stored = messages_in_place(pulled.data, queue.broker, offset, pulled.next_offset, original_topics=original_topics)
    if stored is None:
        return await unpacking.beside(_unpack_all, pulled, queue, offset, interest, original_topics)
    chosen = stored.matching(interest.tags)
    return Pulled(
        status=pulled.status,
        next_offset=pulled.next_offset,
        min_offset=pulled.min_offset,
        max_offset=pulled.max_offset,
        messages=MessageBlock(chosen, 0, chosen.count),
        suggested_broker_id=pulled.suggested_broker_id,
        missing=_missing(pulled, interest, offset, pulled.next_offset, stored.count),
    )


def _unpack_all(
    pulled: PulledBytes, queue: MessageQueue, offset: int, interest: Interest, original_topics: bool
) -> Pulled:
    """Record by record: some are compressed, batches, damaged, or of other queues."""
    found = _Answer(pulled.data, queue, offset, pulled.next_offset)
    tags = interest.tags
    messages = [message for message in found.messages if tags.matches(message.tags or None)]
    number = len(found.messages) + len(found.damaged)
    return Pulled(
        status=pulled.status,
        next_offset=found.next_offset,
        min_offset=pulled.min_offset,
        max_offset=pulled.max_offset,
        messages=[original(message) for message in messages] if original_topics else messages,
        suggested_broker_id=pulled.suggested_broker_id,
        damaged=found.damaged,
        missing=0 if found.holds_batches else _missing(pulled, interest, offset, found.next_offset, number),
    )


def _missing(pulled: PulledBytes, interest: Interest, offset: int, next_offset: int, found: int) -> int:
    """Return how many messages the broker left out because it could not read them: its answer does not say so."""
    if interest.expression_type != TAG or not interest.tags.everything:
        return 0
    looked_at = next_offset - offset if pulled.status in (PullStatus.FOUND, PullStatus.NO_MATCH) else 0
    return max(0, looked_at - found)


def original(message: ReceivedMessage) -> ReceivedMessage:
    """Return the message with the topic it was first sent to, in case it is a redelivery."""
    topic = message.properties.get(properties.RETRY_TOPIC)
    return replace(message, topic=topic) if topic else message


class _Answer:
    """The records of a pull's answer, with damaged ones separated, and the offset to continue at.

    Records whose messages would take too much memory are left for the next pull, which begins with the first of them.
    """

    def __init__(self, body: bytes, queue: MessageQueue, offset: int, next_offset: int) -> None:
        self.messages: list[ReceivedMessage] = []
        self.damaged: list[DamagedMessage] = []
        self.next_offset = next_offset
        self.holds_batches = False
        self._unpacked = 0  # decompressed bytes beyond the answer itself
        items = _judged(list(salvage(body)), offset, next_offset)
        before, log_before = offset - 1, -1
        for number, item in enumerate(items):
            if isinstance(item, RecordView):
                try:
                    messages = self._unpack(item, queue.broker)
                except ProtocolError as error:
                    item = _spoiled(item, str(error))
                else:
                    if messages is None:
                        self.next_offset = before + 1
                        return
                    self.messages += messages
                    before = min(max(before, _last_offset(item, messages, queue, before)), next_offset - 1)
                    log_before = item.log_offset
                    continue
            if item.last:  # pull the rest again: the length in a damaged record might skip intact ones
                self.next_offset = min(next_offset, before + 2)
            # Trust its own offset if it fits between its neighbours; otherwise assume the one after the last.
            following = next(
                (one.queue_offset for one in items[number + 1 :] if isinstance(one, RecordView)), next_offset
            )
            before = item.queue_offset if before < item.queue_offset < following else before + 1
            self.damaged.append(
                DamagedMessage(
                    queue=queue,
                    queue_offset=before,
                    log_offset=item.log_offset if item.log_offset > log_before else None,
                    reason=item.why,
                    fingerprint=item.fingerprint,
                )
            )

    def _unpack(self, view: RecordView, broker: str) -> list[ReceivedMessage] | None:
        """Return the messages in a record, None if they must wait for the next pull. Raises ProtocolError."""
        if not view.sys_flag & (SYS_COMPRESSED | SYS_INNER_BATCH):
            return [_message(view, broker)]
        # The first is always decoded: a pull without a result would be repeated for ever.
        room = UNPACKED_BYTES_MAX - self._unpacked if self._unpacked else BODY_BYTES_MAX
        if room <= 0:
            return None
        try:
            record = Record.of(view)
            unwrapped = unwrap(record, room)
            messages = [_message(one, broker, room) for one in unwrapped]
        except BodyTooLong:
            if self._unpacked:
                return None
            raise
        if unwrapped != [record]:
            self.holds_batches = True
            self._unpacked += MESSAGE_BYTES * len(messages)
        self._unpacked += sum(len(message.body) for message in messages)
        return messages


def _last_offset(record: RecordView, messages: list[ReceivedMessage], queue: MessageQueue, before: int) -> int:
    """Return the last queue offset that `record` covers; `before` is that of the previous record."""
    if (record.topic, record.queue_id) != (queue.topic, queue.queue_id) and _is_dispatched(record):
        return before + 1  # it is in several queues, and its offset is that of another one
    return messages[-1].queue_offset if messages else record.queue_offset


def _is_dispatched(record: RecordView) -> bool:
    return _MULTI_DISPATCH in record.property_bytes


def _judged(items: list[RecordView | Spoiled], offset: int, next_offset: int) -> list[RecordView | Spoiled]:
    """A record without a checksum over its header may carry any queue offset: one that does not ascend is damaged."""
    plain = [
        number
        for number, item in enumerate(items)
        if isinstance(item, RecordView) and not item.sys_flag & SYS_INNER_BATCH and not _is_dispatched(item)
    ]
    offsets = {number: item.queue_offset for number in plain if isinstance(item := items[number], RecordView)}
    inside = [number for number in plain if offset <= offsets[number] < next_offset]
    wrong = {inside[position] for position in out_of_order([offsets[number] for number in inside])}
    for number in plain:
        item = items[number]
        if isinstance(item, RecordView) and (number in wrong or number not in inside):
            items[number] = _spoiled(item, f"it claims queue offset {item.queue_offset}")
    return items


def _spoiled(record: RecordView, why: str) -> Spoiled:
    return Spoiled(why, record.queue_offset, record.log_offset, zlib.crc32(record.data))


def messages_in(body: bytes, broker: str, reports: DamageReports, topic: str = "?") -> Iterator[ReceivedMessage]:
    """Yield the messages in an answer that is not about one queue; damaged ones are reported."""
    for item in salvage(body):
        if isinstance(item, RecordView):
            try:
                unwrapped = unwrap(Record.of(item))
            except ProtocolError as error:
                item = _spoiled(item, str(error))
            else:
                for record in unwrapped:
                    yield _message(record, broker)
                continue
        reports.report(
            DamagedMessage(
                queue=MessageQueue(topic, broker, -1),  # only the damaged record itself would name its queue
                queue_offset=item.queue_offset,
                log_offset=item.log_offset,
                reason=item.why,
                fingerprint=item.fingerprint,
            )
        )


def _message(record: Record | RecordView, broker: str, bytes_max: int = BODY_BYTES_MAX) -> ReceivedMessage:
    """Return the message for the application. Raises BodyTooLong only if a larger `bytes_max` might do."""
    try:
        return record.to_message(broker, bytes_max=bytes_max)
    except ProtocolError as error:
        if isinstance(error, BodyTooLong) and bytes_max < BODY_BYTES_MAX:
            raise
        # A body that cannot be decompressed must not block its queue for ever: deliver it as stored, with its flag.
        log.warning(
            "topic %s queue %d: the message body at offset %d, log offset %d, cannot be decompressed (%s); it is delivered as stored",
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.log_offset,
            error,
        )
        if isinstance(record, RecordView):
            record = Record.of(record)
        plain = replace(record, sys_flag=record.sys_flag & ~SYS_COMPRESSED).to_message(broker)
        return replace(plain, sys_flag=record.sys_flag)

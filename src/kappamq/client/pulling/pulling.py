"""One pull: the request, its answer, the records in it as messages."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Required, TypedDict, Unpack

from kappamq.client.core.core import ClientCore
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
from kappamq.protocol.records.record import SYS_COMPRESSED, SYS_INNER_BATCH, Record
from kappamq.protocol.records.salvage import Spoiled, out_of_order, salvage
from kappamq.protocol.records.tags import EVERYTHING, Subscription

log = logging.getLogger(__name__)

PULL_BYTES_MAX: Final = 256 << 10
UNPACKED_BYTES_MAX: Final = 64 << 20
"""So much is unpacked of one answer; a single body may need more. The rest is asked for again: 2 KB may unpack to 64 MiB."""
MESSAGE_BYTES: Final = 1 << 10
"""What a message of a batch counts for beside its body: a hundred thousand empty ones take memory, too."""
TAG: Final = "TAG"
SQL92: Final = "SQL92"

Wanted = str | SqlFilter
"""What a consumer wants of a topic: tags ("new || paid", "*" for all), or sql("price > 100")."""

_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class Interest:
    """What a consumer wants of a topic. The version tells a broker which of two subscriptions is the newer."""

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
        """What to compare here, too, because the broker compares hashes only; an SQL filter is exact there."""
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

    commits: bool = True  # a pull also tells how far the group is
    introduced: bool = True  # the broker knows our subscription from heartbeats; else it travels with each pull
    lite: bool = False  # with the request code of lite pull consumers; falls back by itself
    waiting_max: int | None = None  # messages in the inbox, of all queues together, beyond which nothing is pulled


class PullOptions(TypedDict, total=False):
    """What `pull_bytes` takes by name; it says what each means."""

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
    """Ask one queue for the records from `offset` on. Without any, the broker may hold the question for `hold_ms`.

    `introduced`: the broker knows our subscription from heartbeats; else it travels with the request. `lite`: with the
    code of lite pull consumers, which a broker may not know (NotSupported) or have switched off (NoPermission).
    `commit_offset`: store this as the group's offset on the way. Damaged messages are left out of the result's messages and
    named in `damaged`: the caller reports them. Raises what `ClientCore.ask` raises.
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
        again=commit_offset is None,  # a second one would carry an offset of yesterday
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


async def pull(
    core: ClientCore, group: str, queue: MessageQueue, offset: int, interest: Interest, **how: Unpack[PullOptions]
) -> PullResult:
    """The same, with the records as messages; those are left out whose tag only has the hash of a wanted one."""
    pulled = await pull_bytes(core, group, queue, offset, interest, **how)
    found = _Answer(pulled.data, queue, offset, pulled.next_offset)
    # A broker that could not read what it looked for says so only by leaving it out.
    looked_at = found.next_offset - offset if pulled.status in (PullStatus.FOUND, PullStatus.NO_MATCH) else 0
    tags = interest.tags
    everything = interest.expression_type == TAG and tags.everything and not found.holds_batches
    return PullResult(
        status=pulled.status,
        next_offset=found.next_offset,
        min_offset=pulled.min_offset,
        max_offset=pulled.max_offset,
        messages=tuple(message for message in found.messages if tags.matches(message.tags or None)),
        suggested_broker_id=pulled.suggested_broker_id,
        damaged=tuple(found.damaged),
        missing=max(0, looked_at - len(found.messages) - len(found.damaged)) if everything else 0,
    )


class _Answer:
    """The records of a pull's answer, damaged ones told apart from good ones, and from where to go on.

    Records whose messages would take too much memory are left for the next pull, which begins with the first of them.
    """

    def __init__(self, body: bytes, queue: MessageQueue, offset: int, next_offset: int) -> None:
        self.messages: list[ReceivedMessage] = []
        self.damaged: list[DamagedMessage] = []
        self.next_offset = next_offset
        self.holds_batches = False
        self._unpacked = 0  # bytes that are not in the answer itself
        items = _judged(list(salvage(body)), offset, next_offset)
        before, log_before = offset - 1, -1
        for number, item in enumerate(items):
            if isinstance(item, Record):
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
            if item.last:  # what lies behind it is asked for again; its own word might lead beyond good ones
                self.next_offset = min(next_offset, before + 2)
            # Its own word counts if it fits between its neighbours; else it is the one behind the last.
            following = next((one.queue_offset for one in items[number + 1 :] if isinstance(one, Record)), next_offset)
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

    def _unpack(self, record: Record, broker: str) -> list[ReceivedMessage] | None:
        """Return the messages in a record, None if they have to wait for the next pull. Raises ProtocolError."""
        if not record.sys_flag & (SYS_COMPRESSED | SYS_INNER_BATCH):
            return [_message(record, broker)]
        # The first always finds room: a pull that brings nothing would be repeated for ever.
        room = UNPACKED_BYTES_MAX - self._unpacked if self._unpacked else BODY_BYTES_MAX
        if room <= 0:
            return None
        try:
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


def _last_offset(record: Record, messages: list[ReceivedMessage], queue: MessageQueue, before: int) -> int:
    """Return the queue offset up to which `record` brings us; `before` is that of the record before it."""
    if (record.topic, record.queue_id) != (queue.topic, queue.queue_id) and _is_dispatched(record):
        return before + 1  # it lies in several queues, and the offset in it is that of another one
    return messages[-1].queue_offset if messages else record.queue_offset


def _is_dispatched(record: Record) -> bool:
    return properties.MULTI_DISPATCH in record.properties


def _judged(items: list[Record | Spoiled], offset: int, next_offset: int) -> list[Record | Spoiled]:
    """A record without a checksum over its head may carry any queue offset: one that does not ascend is damaged."""
    plain = [
        number
        for number, item in enumerate(items)
        if isinstance(item, Record) and not item.sys_flag & SYS_INNER_BATCH and not _is_dispatched(item)
    ]
    offsets = {number: item.queue_offset for number in plain if isinstance(item := items[number], Record)}
    inside = [number for number in plain if offset <= offsets[number] < next_offset]
    wrong = {inside[position] for position in out_of_order([offsets[number] for number in inside])}
    for number in plain:
        item = items[number]
        if isinstance(item, Record) and (number in wrong or number not in inside):
            items[number] = _spoiled(item, f"it claims queue offset {item.queue_offset}")
    return items


def _spoiled(record: Record, why: str) -> Spoiled:
    return Spoiled(why, record.queue_offset, record.log_offset, zlib.crc32(record.encode()))


def messages_in(body: bytes, broker: str, reports: DamageReports, topic: str = "?") -> Iterator[ReceivedMessage]:
    """Yield the messages among the records of an answer that is not about one queue; damaged ones are reported."""
    for item in salvage(body):
        if isinstance(item, Record):
            try:
                unwrapped = unwrap(item)
            except ProtocolError as error:
                item = _spoiled(item, str(error))
            else:
                for record in unwrapped:
                    yield _message(record, broker)
                continue
        reports.report(
            DamagedMessage(
                queue=MessageQueue(topic, broker, -1),  # which queue it is from stands in the damaged record only
                queue_offset=item.queue_offset,
                log_offset=item.log_offset,
                reason=item.why,
                fingerprint=item.fingerprint,
            )
        )


def _message(record: Record, broker: str, bytes_max: int = BODY_BYTES_MAX) -> ReceivedMessage:
    """Return what an application sees. Raises BodyTooLong only if a larger `bytes_max` might do."""
    try:
        return record.to_message(broker, bytes_max=bytes_max)
    except ProtocolError as error:
        if isinstance(error, BodyTooLong) and bytes_max < BODY_BYTES_MAX:
            raise
        # One body that cannot be unpacked must not stop its queue for ever: hand it out as it is, flag and all.
        log.warning(
            "topic %s queue %d: the body of the message at offset %d, log offset %d, cannot be unpacked (%s): it is handed out as it is",
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.log_offset,
            error,
        )
        plain = replace(record, sys_flag=record.sys_flag & ~SYS_COMPRESSED).to_message(broker)
        return replace(plain, sys_flag=record.sys_flag)

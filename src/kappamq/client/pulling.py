"""One pull: the request, its answer, the records in it as messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kappamq.client.core import ClientCore
from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue, PullResult, PullStatus, ReceivedMessage, SqlFilter
from kappamq.protocol.batch import unwrap
from kappamq.protocol.bodies_clients import SubscriptionData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers_client import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessage,
    PullMessageResponse,
)
from kappamq.protocol.record import SYS_COMPRESSED, Record, iter_records
from kappamq.protocol.tags import EVERYTHING, Subscription

log = logging.getLogger(__name__)

PULL_BYTES_MAX: Final = 256 << 10
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


async def pull(
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
) -> PullResult:
    """Ask one queue for messages from `offset` on. Without any, the broker may hold the question for `hold_ms`.

    `introduced`: the broker knows our subscription from heartbeats; else it travels with the request. `lite`: with the
    code of lite pull consumers, which a broker may not know (NotSupported) or have switched off (NoPermission).
    `commit_offset`: store this as the group's offset on the way. Raises what `ClientCore.ask` raises.
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
    return PullResult(
        status=status,
        next_offset=told.next_offset,
        min_offset=told.min_offset,
        max_offset=told.max_offset,
        messages=tuple(messages_in(answer.body, queue.broker, interest.tags)) if status is PullStatus.FOUND else (),
        suggested_broker_id=told.suggested_broker_id,
    )


def messages_in(body: bytes, broker: str, wanted: Subscription | None = None) -> Iterator[ReceivedMessage]:
    """Yield the messages among the records of an answer that carry a wanted tag; the broker compared only hashes."""
    for stored in iter_records(body):
        for record in unwrap(stored):
            message = _message(record, broker)
            if wanted is None or wanted.matches(message.tags or None):
                yield message


def _message(record: Record, broker: str) -> ReceivedMessage:
    try:
        return record.to_message(broker)
    except ProtocolError as error:
        # One body that cannot be unpacked must not stop its queue for ever: hand it out as it is, flag and all.
        log.warning("message at %s of %s/%d: %s", record.queue_offset, record.topic, record.queue_id, error)
        plain = replace(record, sys_flag=record.sys_flag & ~SYS_COMPRESSED).to_message(broker)
        return replace(plain, sys_flag=record.sys_flag)

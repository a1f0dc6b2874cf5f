"""JSON bodies about clients: heartbeats, subscriptions, locks, offsets, and the settings of groups."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any, Self

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.body import Body, wire
from kappamq.protocol.bodies.topics import DataVersion


class ConsumeType(Enum):
    CONSUME_ACTIVELY = 0  # pull
    CONSUME_PASSIVELY = 1  # push
    CONSUME_POP = 2


class MessageModel(Enum):
    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(Enum):
    """The initial position of a group without offsets; the middle three are long deprecated and mean the first."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


class SubscriptionData(Body):
    topic: str = ""
    expression: str = wire("subString", default="*")
    expression_type: str = "TAG"
    tags: set[str] = wire("tagsSet", default_factory=set)
    codes: set[int] = wire("codeSet", default_factory=set)
    version: int = wire("subVersion", default=0)
    class_filter: bool = wire("classFilterMode", default=False)


class ProducerData(Body):
    group: str = wire("groupName", default="")


class ConsumerData(Body):
    group: str = wire("groupName", default="")
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = wire("consumeFromWhere", default=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    subscriptions: list[SubscriptionData] = wire("subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body):
    client_id: str = wire("clientID", default="")
    producers: list[ProducerData] = wire("producerDataSet", default_factory=list)
    consumers: list[ConsumerData] = wire("consumerDataSet", default_factory=list)
    fingerprint: int = wire("heartbeatFingerprint", default=0)  # not 0: heartbeat V2
    without_subscriptions: bool = wire("withoutSub", default=False)  # V2: keep the stored subscriptions


class CheckClientBody(Body):
    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription: SubscriptionData | None = wire("subscriptionData", default=None)


class ConsumerList(Body):
    consumer_ids: list[str] = wire("consumerIdList", default_factory=list)


class LockBatch(Body):
    """The queues to lock, or to unlock."""

    consumer_group: str = ""
    client_id: str = ""
    queues: set[MessageQueue] = wire("mqSet", default_factory=set)
    only_this_broker: bool = False


class LockBatchResponse(Body):
    locked: set[MessageQueue] = wire("lockOKMQSet", default_factory=set)


class ResetOffset(Body):
    offsets: dict[MessageQueue, int] = wire("offsetTable", default_factory=dict)

    def encode_list(self) -> bytes:
        """Return the form that C++ clients expect."""
        rows = [
            {"brokerName": queue.broker, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in self.offsets.items()
        ]
        return fastjson.dumps({"offsetTable": rows})

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        rows = value.get("offsetTable") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            return super().from_json(value, where)
        result = cls()
        for row in rows:
            offset = row.get("offset") if isinstance(row, dict) else None
            if not isinstance(offset, int):
                raise ProtocolError(f"ResetOffset.offsetTable has a row without an offset: {str(row)[:60]!r}")
            result.offsets[fastjson.queue_of(row)] = offset
        return result


class SubscriptionGroupConfig(Body):
    name: str = wire("groupName", default="")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_orderly: bool = wire("consumeMessageOrderly", default=False)
    retry_queues: int = wire("retryQueueNums", default=1)
    retry_times_max: int = wire("retryMaxTimes", default=16)
    retry_policy: dict[str, Any] = wire("groupRetryPolicy", default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    broker_when_slow: int = wire("whichBrokerWhenConsumeSlowly", default=1)
    notify_changed_enable: bool = wire("notifyConsumerIdsChangedEnable", default=True)
    sys_flag: int = wire("groupSysFlag", default=0)
    consume_timeout_minutes: int = wire("consumeTimeoutMinute", default=15)
    subscriptions: list[Any] | None = wire("subscriptionDataSet", default=None)
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(Body):
    """All groups of a broker: the answer to 201, and the content of subscriptionGroup.json."""

    groups: dict[str, SubscriptionGroupConfig] = wire("subscriptionGroupTable", default_factory=dict)
    forbidden: dict[str, dict[str, int]] = wire("forbiddenTable", default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class GroupConfigList(Body):
    groups: list[SubscriptionGroupConfig] = wire("groupConfigList", default_factory=list)

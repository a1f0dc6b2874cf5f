"""JSON bodies for administration: connections, consumer progress, statistics."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from kappamq.message import MessageQueue
from kappamq.protocol.bodies.body import Body, wire
from kappamq.protocol.bodies.clients import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from kappamq.protocol.bodies.topics import DataVersion


class Connection(Body):
    client_id: str = ""
    client_address: str = wire("clientAddr", default="")
    language: str = "OTHER"
    version: int = 0


class ConsumerConnection(Body):
    connections: list[Connection] = wire("connectionSet", default_factory=list)
    subscriptions: dict[str, SubscriptionData] = wire("subscriptionTable", default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = wire("consumeFromWhere", default=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    # Our extension. None: all members have the same subscriptions.
    conflicts: list[str] | None = wire("kappamqConflicts", default=None)


class ProducerConnection(Body):
    connections: list[Connection] = wire("connectionSet", default_factory=list)


class ProducerInfo(Body):
    client_id: str = ""
    remote_ip: str = wire("remoteIP", default="")
    language: str = "OTHER"
    version: int = 0
    last_update_ms: int = wire("lastUpdateTimestamp", default=0)


class ProducerTable(Body):
    groups: dict[str, list[ProducerInfo]] = wire("data", default_factory=dict)


class TopicOffset(Body):
    min_offset: int = 0
    max_offset: int = 0
    last_update_ms: int = wire("lastUpdateTimestamp", default=0)


class TopicStatsTable(Body):
    offsets: dict[MessageQueue, TopicOffset] = wire("offsetTable", default_factory=dict)
    put_tps: float = wire("topicPutTps", default=0.0)


class ConsumeOffset(Body):
    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_ms: int = wire("lastTimestamp", default=0)


class ConsumeStats(Body):
    offsets: dict[MessageQueue, ConsumeOffset] = wire("offsetTable", default_factory=dict)
    tps: float = wire("consumeTps", default=0.0)

    @property
    def total_lag(self) -> int:
        return sum(offset.broker_offset - offset.consumer_offset for offset in self.offsets.values())


class ConsumeStatsList(Body):
    broker_address: str = wire("brokerAddr", default="")
    stats: list[dict[str, list[ConsumeStats]]] = wire("consumeStatsList", default_factory=list)
    total_lag: int = wire("totalDiff", default=0)
    total_inflight: int = wire("totalInflightDiff", default=0)


class ProcessQueueInfo(Body):
    """The state of one queue at a consumer."""

    commit_offset: int = 0
    cached_min_offset: int = wire("cachedMsgMinOffset", default=0)
    cached_max_offset: int = wire("cachedMsgMaxOffset", default=0)
    cached_count: int = wire("cachedMsgCount", default=0)
    cached_mib: int = wire("cachedMsgSizeInMiB", default=0)
    transaction_min_offset: int = wire("transactionMsgMinOffset", default=0)
    transaction_max_offset: int = wire("transactionMsgMaxOffset", default=0)
    transaction_count: int = wire("transactionMsgCount", default=0)
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_ms: int = wire("lastLockTimestamp", default=0)
    dropped: bool = wire("droped", default=False)  # spelled like this on the wire
    last_pull_ms: int = wire("lastPullTimestamp", default=0)
    last_consume_ms: int = wire("lastConsumeTimestamp", default=0)


class ConsumeStatus(Body):
    pull_rt: float = wire("pullRT", default=0.0)
    pull_tps: float = wire("pullTPS", default=0.0)
    consume_rt: float = wire("consumeRT", default=0.0)
    consume_ok_tps: float = wire("consumeOKTPS", default=0.0)
    consume_failed_tps: float = wire("consumeFailedTPS", default=0.0)
    consume_failed: int = wire("consumeFailedMsgs", default=0)


class ConsumerRunningInfo(Body):
    """A consumer's report about itself (307)."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: list[SubscriptionData] = wire("subscriptionSet", default_factory=list)
    queues: dict[MessageQueue, ProcessQueueInfo] = wire("mqTable", default_factory=dict)
    pop_queues: dict[MessageQueue, dict[str, Any]] = wire("mqPopTable", default_factory=dict)
    statuses: dict[str, ConsumeStatus] = wire("statusTable", default_factory=dict)
    user_info: dict[str, str] = wire("userConsumerInfo", default_factory=dict)
    stack: str | None = wire("jstack", default=None)


class ConsumerStatus(Body):
    """Offsets of one client (221), and of several clients (223)."""

    offsets: dict[MessageQueue, int] = wire("messageQueueTable", default_factory=dict)
    clients: dict[str, dict[MessageQueue, int]] = wire("consumerTable", default_factory=dict)


class ConsumeDirectlyResult(Body):
    order: bool = False
    auto_commit: bool = True
    result: str = wire("consumeResult", default="CR_SUCCESS")
    remark: str | None = None
    spent_ms: int = wire("spentTimeMills", default=0)


class GroupList(Body):
    groups: list[str] = wire("groupList", default_factory=list)


class QuerySubscriptionResponse(Body):
    group: str = ""
    topic: str | None = None
    subscription: SubscriptionData | None = wire("subscriptionData", default=None)


class QueueTimeSpan(Body):
    queue: MessageQueue | None = wire("messageQueue", default=None)
    min_ms: int = wire("minTimeStamp", default=0)
    min_text: str | None = wire("minTimeStampStr", default=None)
    max_ms: int = wire("maxTimeStamp", default=0)
    max_text: str | None = wire("maxTimeStampStr", default=None)
    consume_ms: int = wire("consumeTimeStamp", default=0)
    consume_text: str | None = wire("consumeTimeStampStr", default=None)
    delay_ms: int = wire("delayTime", default=0)


class ConsumeTimeSpans(Body):
    spans: list[QueueTimeSpan] = wire("consumeTimeSpanSet", default_factory=list)


class CorrectionOffsets(Body):
    offsets: dict[int, int] = wire("correctionOffsets", default_factory=dict)


class ConsumerOffsets(Body):
    """Committed offsets by `topic@group`: the answer to 43, and the content of consumerOffset.json."""

    offsets: dict[str, dict[int, int]] = wire("offsetTable", default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class DelayOffsets(Body):
    """The delivery offset of each delay level: the answer to 45, and the content of delayOffset.json."""

    offsets: dict[int, int] = wire("offsetTable", default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class StatsItem(Body):
    sum: int = 0
    tps: float = 0.0
    average: float = wire("avgpt", default=0.0)


class BrokerStatsData(Body):
    minute: StatsItem = wire("statsMinute", default_factory=StatsItem)
    hour: StatsItem = wire("statsHour", default_factory=StatsItem)
    day: StatsItem = wire("statsDay", default_factory=StatsItem)


class ConsumeQueueData(Body):
    log_offset: int = wire("physicOffset", default=0)
    record_bytes: int = wire("physicSize", default=0)
    tag_code: int = wire("tagsCode", default=0)
    extend_data: str | None = wire("extendDataJson", default=None)
    bit_map: str | None = wire("bitMap", default=None)
    matched: bool = wire("eval", default=False)
    message: str | None = wire("msg", default=None)


class QueryConsumeQueueResponse(Body):
    subscription: SubscriptionData | None = wire("subscriptionData", default=None)
    filter_data: str | None = None
    entries: list[ConsumeQueueData] = wire("queueData", default_factory=list)
    max_index: int = wire("maxQueueIndex", default=0)
    min_index: int = wire("minQueueIndex", default=0)


class GroupForbidden(Body):
    group: str = ""
    topic: str = ""
    readable: bool = True

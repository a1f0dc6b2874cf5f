"""Headers between clients and brokers: sending, consuming, and requests from brokers to clients."""

from __future__ import annotations

from enum import Enum
from typing import Final

from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.header import Header, Int32, RpcHeader, TopicHeader, wire

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16

TRANSACTION_COMMIT: Final = 8
TRANSACTION_ROLLBACK: Final = 12
TRANSACTION_UNKNOWN: Final = 0


class BoundaryType(Enum):
    """Which of several messages with the same store time a search returns."""

    LOWER = "lower"
    UPPER = "upper"


class SendMessage(TopicHeader, code=RequestCode.SEND_MESSAGE):
    """Store one message; the body of the frame is its body."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32 = wire("defaultTopicQueueNums")
    queue_id: Int32
    sys_flag: Int32
    born_ms: int = wire("bornTimestamp")
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None

    def plain(self) -> SendMessage:
        return self

    def short(self) -> SendMessageV2:
        """Return the same with the short names that Java clients use."""
        return SendMessageV2.like(self)


class SendMessageV2(TopicHeader, code=RequestCode.SEND_MESSAGE_V2):
    """The same with one-letter names; batches (320) and replies (325) use it too."""

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queues: Int32 = wire("d")
    queue_id: Int32 = wire("e")
    sys_flag: Int32 = wire("f")
    born_ms: int = wire("g")
    flag: Int32 = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: Int32 | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: Int32 | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    broker_name: str | None = wire("n", default=None)

    def plain(self) -> SendMessage:
        """Return the same with long names, for code that is independent of the form."""
        return SendMessage.like(self)


class SendMessageResponse(Header):
    message_id: str = wire("msgId")  # offset ids; several, joined by commas, for a batch
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None
    batch_unique_id: str | None = wire("batchUniqId", default=None)
    recall_handle: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: str | None = wire("TRACE_ON", default=None)


class EndTransaction(RpcHeader, code=RequestCode.END_TRANSACTION):
    topic: str | None = None
    producer_group: str
    transaction_offset: int = wire("tranStateTableOffset")  # queue offset of the half message
    log_offset: int = wire("commitLogOffset")
    decision: Int32 = wire("commitOrRollback")  # one of TRANSACTION_*
    from_check: bool | None = wire("fromTransactionCheck", default=None)
    message_id: str = wire("msgId")
    transaction_id: str | None = None


class RecallMessage(TopicHeader, code=RequestCode.RECALL_MESSAGE):
    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponse(Header):
    message_id: str = wire("msgId")
    region: str | None = wire("MSG_REGION", default=None)  # without it Java's clients trace no recall


class HeartBeat(RpcHeader, code=RequestCode.HEART_BEAT):
    """Body: HeartbeatData."""


class HeartBeatResponse(Header):
    heartbeat_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


class UnregisterClient(RpcHeader, code=RequestCode.UNREGISTER_CLIENT):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class PullMessage(TopicHeader, code=RequestCode.PULL_MESSAGE):
    """Pull records of one queue from an offset on; the broker holds the request up to hold_ms if there are none yet."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    count_max: Int32 = wire("maxMsgNums")
    sys_flag: Int32  # PULL_* bits
    commit_offset: int
    hold_ms: int = wire("suspendTimeoutMillis")
    subscription: str | None = None
    subscription_version: int = wire("subVersion")
    expression_type: str | None = None
    bytes_max: Int32 | None = wire("maxMsgBytes", default=None)
    request_source: Int32 | None = None
    proxy_client_id: str | None = wire("proxyFrowardClientId", default=None)  # spelled like this on the wire


class PullMessageResponse(Header):
    suggested_broker_id: int = wire("suggestWhichBrokerId")
    next_offset: int = wire("nextBeginOffset")
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class GetConsumerList(RpcHeader, code=RequestCode.GET_CONSUMER_LIST_BY_GROUP):
    consumer_group: str


class QueryConsumerOffset(TopicHeader, code=RequestCode.QUERY_CONSUMER_OFFSET):
    consumer_group: str
    topic: str
    queue_id: Int32
    zero_if_not_found: bool | None = wire("setZeroIfNotFound", default=None)


class OffsetResponse(Header):
    """Answers QueryConsumerOffset, SearchOffset, GetMaxOffset and GetMinOffset."""

    offset: int


class UpdateConsumerOffset(TopicHeader, code=RequestCode.UPDATE_CONSUMER_OFFSET):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int
    forward: bool | None = wire("kappamqForward", default=None)  # ours: never moves the offset back


class SendBack(RpcHeader, code=RequestCode.CONSUMER_SEND_MSG_BACK):
    """Redeliver a message later, because its consumer failed."""

    log_offset: int = wire("offset")
    group: str
    delay_level: Int32
    origin_message_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class LockQueues(RpcHeader, code=RequestCode.LOCK_BATCH_MQ):
    """Body: LockBatch."""


class UnlockQueues(RpcHeader, code=RequestCode.UNLOCK_BATCH_MQ):
    """Body: LockBatch."""


class SearchOffset(TopicHeader, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
    topic: str
    queue_id: Int32
    timestamp: int
    boundary: BoundaryType | None = wire("boundaryType", default=None)


class GetMaxOffset(TopicHeader, code=RequestCode.GET_MAX_OFFSET):
    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(TopicHeader, code=RequestCode.GET_MIN_OFFSET):
    topic: str
    queue_id: Int32


class GetEarliestStoreTime(TopicHeader, code=RequestCode.GET_EARLIEST_MSG_STORETIME):
    topic: str
    queue_id: Int32


class TimestampResponse(Header):
    timestamp: int  # -1: there is none


class CheckClientConfig(Header, code=RequestCode.CHECK_CLIENT_CONFIG):
    """Body: CheckClientBody."""


class QueryAssignment(Header, code=RequestCode.QUERY_ASSIGNMENT):
    """Body: a JSON object that names client, group, topic, strategy and model."""


class SetMessageRequestMode(Header, code=RequestCode.SET_MESSAGE_REQUEST_MODE):
    """Body: a JSON object that names group, topic and mode."""


class QueryMessage(TopicHeader, code=RequestCode.QUERY_MESSAGE):
    topic: str
    key: str
    count_max: Int32 = wire("maxNum")
    begin_ms: int = wire("beginTimestamp")
    end_ms: int = wire("endTimestamp")
    unique_key: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponse(Header):
    index_ms: int = wire("indexLastUpdateTimestamp")
    index_log_offset: int = wire("indexLastUpdatePhyoffset")


class ViewMessage(RpcHeader, code=RequestCode.VIEW_MESSAGE_BY_ID):
    topic: str | None = None
    log_offset: int = wire("offset")


# --- broker -> client, on the connection that the client opened ---


class CheckTransaction(RpcHeader, code=RequestCode.CHECK_TRANSACTION_STATE):
    topic: str | None = None
    transaction_offset: int = wire("tranStateTableOffset")
    log_offset: int = wire("commitLogOffset")
    message_id: str | None = wire("msgId", default=None)  # the unique key
    transaction_id: str | None = None
    offset_id: str | None = wire("offsetMsgId", default=None)


class NotifyConsumersChanged(RpcHeader, code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED):
    consumer_group: str


class ResetClientOffset(TopicHeader, code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
    """Body: ResetOffset."""

    topic: str
    group: str
    queue_id: Int32 | None = None
    timestamp: int
    force: bool = wire("isForce")
    offset: int | None = None


class GetClientStatus(TopicHeader, code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT):
    topic: str
    group: str
    client_address: str | None = wire("clientAddr", default=None)


class GetRunningInfo(RpcHeader, code=RequestCode.GET_CONSUMER_RUNNING_INFO):
    consumer_group: str
    client_id: str
    stack: bool | None = wire("jstackEnable", default=None)


class ConsumeDirectly(TopicHeader, code=RequestCode.CONSUME_MESSAGE_DIRECTLY):
    consumer_group: str
    client_id: str | None = None
    message_id: str | None = wire("msgId", default=None)
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class PushReply(TopicHeader, code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT):
    """Push the reply of a request-reply call to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32 = wire("defaultTopicQueueNums")
    queue_id: Int32
    sys_flag: Int32
    born_ms: int = wire("bornTimestamp")
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_ms: int = wire("storeTimestamp")

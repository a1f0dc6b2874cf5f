"""Headers of `mqadmin` and of other brokers: topics, groups, statistics, settings."""

from __future__ import annotations

from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.header import Header, Int32, RpcHeader, TopicHeader, wire


class UpdateTopic(TopicHeader, code=RequestCode.UPDATE_AND_CREATE_TOPIC):
    topic: str
    default_topic: str
    read_queues: Int32 = wire("readQueueNums")
    write_queues: Int32 = wire("writeQueueNums")
    permission: Int32 = wire("perm")
    filter_type: str = wire("topicFilterType")
    sys_flag: Int32 | None = wire("topicSysFlag", default=None)
    order: bool = False
    attributes: str | None = None  # +key=value and -key, joined by commas
    force: bool | None = None


class UpdateTopicList(TopicHeader, code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST):
    """Body: {"topicConfigList": [TopicConfig]}."""


class UpdateStaticTopic(TopicHeader, code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC):
    topic: str
    default_topic: str
    read_queues: Int32 = wire("readQueueNums")
    write_queues: Int32 = wire("writeQueueNums")
    permission: Int32 = wire("perm")
    filter_type: str = wire("topicFilterType")
    sys_flag: Int32 | None = wire("topicSysFlag", default=None)
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopic(TopicHeader, code=RequestCode.DELETE_TOPIC_IN_BROKER):
    topic: str


class GetTopicConfig(TopicHeader, code=RequestCode.GET_TOPIC_CONFIG):
    topic: str


class GetAllTopicConfig(RpcHeader, code=RequestCode.GET_ALL_TOPIC_CONFIG):
    start: Int32 | None = wire("topicSeq", default=None)
    data_version: str | None = None
    count_max: Int32 | None = wire("maxTopicNum", default=None)


class GetAllTopicConfigResponse(Header):
    total: Int32 | None = wire("totalTopicNum", default=None)


class GetSystemTopicsFromBroker(RpcHeader, code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER):
    pass


class GetTopicStats(TopicHeader, code=RequestCode.GET_TOPIC_STATS_INFO):
    topic: str


class UpdateBrokerConfig(Header, code=RequestCode.UPDATE_BROKER_CONFIG):
    """Body: properties text."""


class GetBrokerConfig(Header, code=RequestCode.GET_BROKER_CONFIG):
    pass


class GetBrokerConfigResponse(Header):
    version: str  # DataVersion as JSON


class TriggerDeleteFiles(Header, code=RequestCode.TRIGGER_DELETE_FILES):
    pass


class GetBrokerRuntimeInfo(Header, code=RequestCode.GET_BROKER_RUNTIME_INFO):
    pass


class TransferLeader(Header, code=RequestCode.TRANSFER_LEADER):
    """Have another member of this broker's Raft group lead."""

    member: str | None = None  # None: the one that has most of the log


class ChangeMembers(Header, code=RequestCode.CHANGE_MEMBERS):
    """Add a member to this broker's Raft group, remove one, or say that one is at another address."""

    action: str  # add, remove, replace
    member: str
    address: str | None = None  # host:port of its copies; not to remove one


class GetAllConsumerOffsets(Header, code=RequestCode.GET_ALL_CONSUMER_OFFSET):
    pass


class GetAllDelayOffsets(Header, code=RequestCode.GET_ALL_DELAY_OFFSET):
    pass


class GetTimerCheckpoint(Header, code=RequestCode.GET_TIMER_CHECK_POINT):
    pass


class GetTimerMetrics(Header, code=RequestCode.GET_TIMER_METRICS):
    pass


class UpdateGroup(RpcHeader, code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP):
    """Body: SubscriptionGroupConfig."""


class UpdateGroupList(RpcHeader, code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST):
    """Body: {"groupConfigList": [SubscriptionGroupConfig]}."""


class GetAllGroups(RpcHeader, code=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
    start: Int32 | None = wire("groupSeq", default=None)
    data_version: str | None = None
    count_max: Int32 | None = wire("maxGroupNum", default=None)


class GetAllGroupsResponse(Header):
    total: Int32 | None = wire("totalGroupNum", default=None)


class GetGroup(RpcHeader, code=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
    group: str


class DeleteGroup(RpcHeader, code=RequestCode.DELETE_SUBSCRIPTIONGROUP):
    group: str = wire("groupName")
    clean_offset: bool | None = None


class ForbidGroup(TopicHeader, code=RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN):
    group: str
    topic: str
    readable: bool | None = None


class GetConsumerConnections(RpcHeader, code=RequestCode.GET_CONSUMER_CONNECTION_LIST):
    consumer_group: str


class GetProducerConnections(RpcHeader, code=RequestCode.GET_PRODUCER_CONNECTION_LIST):
    producer_group: str


class GetAllProducers(RpcHeader, code=RequestCode.GET_ALL_PRODUCER_INFO):
    pass


class GetConsumeStats(TopicHeader, code=RequestCode.GET_CONSUME_STATS):
    consumer_group: str
    topic: str | None = None
    topics: str | None = wire("topicList", default=None)  # joined by ';'


class GetBrokerConsumeStats(Header, code=RequestCode.GET_BROKER_CONSUME_STATS):
    order: bool = wire("isOrder")


class ResetOffsetByBroker(TopicHeader, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET):
    topic: str
    group: str
    queue_id: Int32 | None = None  # -1: all
    offset: int | None = None  # -1 or absent: by time
    timestamp: int  # negative: to the end
    force: bool = wire("isForce")


class GetConsumerStatusByBroker(TopicHeader, code=RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS):
    topic: str
    group: str
    client_address: str | None = wire("clientAddr", default=None)


class QueryGroupsOfTopic(TopicHeader, code=RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
    topic: str


class QueryTopicsOfGroup(RpcHeader, code=RequestCode.QUERY_TOPICS_BY_CONSUMER):
    group: str


class QuerySubscription(TopicHeader, code=RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER):
    group: str
    topic: str | None = None


class QueryConsumeTimeSpan(TopicHeader, code=RequestCode.QUERY_CONSUME_TIME_SPAN):
    topic: str
    group: str


class CleanExpiredQueues(Header, code=RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
    pass


class CleanUnusedTopics(Header, code=RequestCode.CLEAN_UNUSED_TOPIC):
    pass


class DeleteExpiredLog(Header, code=RequestCode.DELETE_EXPIRED_COMMITLOG):
    pass


class QueryCorrectionOffset(TopicHeader, code=RequestCode.QUERY_CORRECTION_OFFSET):
    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupOffset(RpcHeader, code=RequestCode.CLONE_GROUP_OFFSET):
    source_group: str = wire("srcGroup")
    target_group: str = wire("destGroup")
    topic: str | None = None
    offline: bool | None = None


class ViewBrokerStats(Header, code=RequestCode.VIEW_BROKER_STATS_DATA):
    name: str = wire("statsName")
    key: str = wire("statsKey")


class QueryConsumeQueue(TopicHeader, code=RequestCode.QUERY_CONSUME_QUEUE):
    topic: str | None = None
    queue_id: Int32 = 0
    index: int = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ResumeCheckHalfMessage(TopicHeader, code=RequestCode.RESUME_CHECK_HALF_MESSAGE):
    topic: str | None = None
    message_id: str | None = wire("msgId", default=None)


class GetAllMessageRequestModes(Header, code=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE):
    pass


# --- broker <-> broker ---


class ExchangeHaInfo(Header, code=RequestCode.EXCHANGE_BROKER_HA_INFO):
    """All absent: a question. The answer has the same fields."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


class GetHaStatus(Header, code=RequestCode.GET_BROKER_HA_STATUS):
    pass


class ResetMasterFlushOffset(Header, code=RequestCode.RESET_MASTER_FLUSH_OFFSET):
    master_flush_offset: int


class GetBrokerEpochs(Header, code=RequestCode.GET_BROKER_EPOCH_CACHE):
    pass

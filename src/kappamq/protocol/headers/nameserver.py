"""Headers of requests to the name server, and the one it sends to brokers."""

from __future__ import annotations

from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.header import Header, Int32, RpcHeader, TopicHeader, wire


class PutKv(Header, code=RequestCode.PUT_KV_CONFIG):
    namespace: str
    key: str
    value: str


class GetKv(Header, code=RequestCode.GET_KV_CONFIG):
    namespace: str
    key: str


class GetKvResponse(Header):
    value: str | None = None


class DeleteKv(Header, code=RequestCode.DELETE_KV_CONFIG):
    namespace: str
    key: str


class GetKvNamespace(Header, code=RequestCode.GET_KVLIST_BY_NAMESPACE):
    namespace: str


class RegisterBroker(Header, code=RequestCode.REGISTER_BROKER):
    """Body: RegisterBrokerBody, plain or compressed."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    ha_address: str = wire("haServerAddr")
    broker_id: int
    timeout_ms: int | None = wire("heartbeatTimeoutMillis", default=None)
    acting_master: bool | None = wire("enableActingMaster", default=None)
    compressed: bool = wire("compressed", default=False)
    body_crc: Int32 = wire("bodyCrc32", default=0)  # 0: do not check
    zone: str | None = wire("__ZONE_NAME", default=None)


class RegisterBrokerResponse(Header):
    """Also in our answer to a beat. Where the master of a slave's group is; the last field is not RocketMQ's."""

    ha_address: str | None = wire("haServerAddr", default=None)
    master_address: str | None = wire("masterAddr", default=None)
    master_version: int | None = wire("masterStateVersion", default=None)


class UnregisterBroker(Header, code=RequestCode.UNREGISTER_BROKER):
    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    broker_id: int


class GetRoute(TopicHeader, code=RequestCode.GET_ROUTEINFO_BY_TOPIC):
    topic: str
    standard_json: bool | None = wire("acceptStandardJsonOnly", default=None)
    zone: str | None = wire("__ZONE_NAME", default=None)
    zone_mode: bool | None = wire("__ZONE_MODE", default=None)


class GetClusterInfo(Header, code=RequestCode.GET_BROKER_CLUSTER_INFO):
    pass


class WipeWritePermission(Header, code=RequestCode.WIPE_WRITE_PERM_OF_BROKER):
    broker_name: str


class WipeWritePermissionResponse(Header):
    topics: Int32 = wire("wipeTopicCount")


class AddWritePermission(Header, code=RequestCode.ADD_WRITE_PERM_OF_BROKER):
    broker_name: str


class AddWritePermissionResponse(Header):
    topics: Int32 = wire("addTopicCount")


class GetAllTopics(Header, code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
    pass


class DeleteTopicInNameServer(Header, code=RequestCode.DELETE_TOPIC_IN_NAMESRV):
    topic: str
    cluster: str | None = wire("clusterName", default=None)


class RegisterTopic(TopicHeader, code=RequestCode.REGISTER_TOPIC_IN_NAMESRV):
    """Body: TopicRouteData, of which only the queue data is used."""

    topic: str


class GetTopicsByCluster(Header, code=RequestCode.GET_TOPICS_BY_CLUSTER):
    cluster: str


class GetSystemTopics(Header, code=RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS):
    pass


class GetUnitTopics(Header, code=RequestCode.GET_UNIT_TOPIC_LIST):
    pass


class GetUnitSubscribedTopics(Header, code=RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST):
    pass


class GetUnitSubscribedOnlyTopics(Header, code=RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST):
    pass


class UpdateNameServerConfig(Header, code=RequestCode.UPDATE_NAMESRV_CONFIG):
    """Body: properties text."""


class GetNameServerConfig(Header, code=RequestCode.GET_NAMESRV_CONFIG):
    pass


class QueryDataVersion(Header, code=RequestCode.QUERY_DATA_VERSION):
    """Body: DataVersion."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster: str = wire("clusterName")
    broker_id: int


class QueryDataVersionResponse(Header):
    changed: bool


class GetBrokerMembers(Header, code=RequestCode.GET_BROKER_MEMBER_GROUP):
    cluster: str = wire("clusterName")
    broker_name: str


class BrokerHeartbeat(Header, code=RequestCode.BROKER_HEARTBEAT):
    cluster: str = wire("clusterName")
    broker_address: str = wire("brokerAddr")
    broker_name: str
    broker_id: int | None = None
    epoch: Int32 | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    timeout_ms: int | None = wire("heartbeatTimeoutMills", default=None)  # spelled like this on the wire
    election_priority: Int32 | None = None


class NotifyMinBrokerId(RpcHeader, code=RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE):
    """Name server -> broker, one-way: which broker of the group now has the smallest id."""

    min_broker_id: int | None = None
    broker_name: str | None = None
    min_broker_address: str | None = wire("minBrokerAddr", default=None)
    offline_broker_address: str | None = wire("offlineBrokerAddr", default=None)
    ha_broker_address: str | None = wire("haBrokerAddr", default=None)

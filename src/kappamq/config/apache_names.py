"""RocketMQ's properties that set a field of ours. Those that set nothing are in `apache_features`; no name is in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kappamq.config.client import split_addresses
from kappamq.errors import ConfigError

Part = Literal["broker", "store", "net", "copies", "nameserver"]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is parsed from text and formatted as text."""

    name: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]


def _integer(text: str) -> int:
    if not text.lstrip("+-").isdecimal() or not text.isascii():
        raise ValueError("an integer")
    return int(text)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("true or false")
    return lowered == "true"


def _percent(text: str) -> float:
    value = _integer(text)
    if not 1 <= value <= 100:
        raise ValueError("an integer percentage from 1 to 100")
    return value / 100


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(_integer(part.strip()) for part in text.split(";") if part.strip())
    if not hours or not all(0 <= hour <= 23 for hour in hours):
        raise ValueError("hours of the day from 00 to 23, separated by ;")
    return hours


def _addresses(text: str) -> tuple[str, ...]:
    found = split_addresses(text)
    if not found:
        raise ValueError("host:port, several separated by ;")
    return found


def _address(text: str) -> str | None:
    return None if text.strip() in ("", "null") else text.strip()  # Java tools write null for unset values


def _members(text: str) -> dict[str, str]:
    """`n0-10.0.0.1:10912;n1-10.0.0.2:10912`: an id ends at the first -, so that a host name may have more of them."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        member, separator, place = part.partition("-")
        if not separator or not member or not place:
            raise ValueError("id-host:port, several separated by ;")
        if member in found:
            raise ValueError(f"id-host:port with a different id each; {member} is there twice")
        found[member] = place
    return found


def _shown_members(members: Mapping[str, str]) -> str:
    return ";".join(f"{member}-{place}" for member, place in members.items())


def _choice(**names: str) -> Kind:
    def read(text: str) -> str:
        value = names.get(text.strip().upper())
        if value is None:
            raise ValueError(" or ".join(names))
        return value

    back = {ours: theirs for theirs, ours in names.items()}
    return Kind("/".join(names), read, lambda value: back[value])


def _scaled(factor: int) -> Kind:
    """A size in bytes that we store as a count of units."""

    def read(text: str) -> int:
        return -(-_integer(text) // factor)

    return Kind("bytes", read, lambda value: str(value * factor))


def _text(text: str) -> str:
    return text.strip()


def _path(text: str) -> Path:
    try:
        return Path(text.strip()).expanduser()
    except RuntimeError:
        raise ValueError("a path; no home directory is known for its ~ prefix") from None


TEXT = Kind("text", _text, str)
INTEGER = Kind("number", _integer, str)
BOOLEAN = Kind("true/false", _boolean, lambda value: "true" if value else "false")
PERCENT = Kind("percent", _percent, lambda value: str(round(value * 100)))
HOURS = Kind("hours", _hours, lambda value: ";".join(f"{hour:02}" for hour in value))
SECONDS = Kind("seconds", _integer, lambda value: str(round(value)))
ADDRESSES = Kind("addresses", _addresses, ";".join)
PATH = Kind("path", _path, str)
ADDRESS = Kind("address", _address, str)
MEMBERS = Kind("members", _members, _shown_members)

# RocketMQ configures the file, we the directory; a file with another name would not be found again.
_KV_PATH = Kind("path", lambda text: _directory_of(text, "kvConfig.json"), lambda root: str(root / "kvConfig.json"))


def _directory_of(text: str, file_name: str) -> Path:
    path = _path(text)
    if path.name != file_name:
        raise ValueError(f"a path that ends in /{file_name}")
    return path.parent


@dataclass(frozen=True, slots=True)
class Setting:
    """One RocketMQ property that sets one field. `live`: may be changed at run time (request 25)."""

    name: str
    part: Part
    field: str
    kind: Kind
    live: bool = False

    def read(self, text: str) -> Any:
        try:
            return self.kind.read(text)
        except ValueError as error:
            raise ConfigError(f"{self.name} must be {error}; got {text!r}") from None


_BROKER: list[Setting] = [
    Setting("brokerClusterName", "broker", "cluster", TEXT),
    Setting("brokerName", "broker", "name", TEXT),
    Setting("brokerId", "broker", "broker_id", INTEGER),
    Setting("bindAddress", "broker", "listen_host", TEXT),
    Setting("listenPort", "broker", "port", INTEGER),
    Setting("brokerIP1", "broker", "advertise", TEXT),
    Setting("namesrvAddr", "broker", "nameservers", ADDRESSES, live=True),
    Setting("brokerPermission", "broker", "permission", INTEGER, live=True),
    Setting("autoCreateTopicEnable", "broker", "auto_create_topic", BOOLEAN, live=True),
    Setting("defaultTopicQueueNums", "broker", "default_topic_queues", INTEGER, live=True),
    Setting("autoCreateSubscriptionGroup", "broker", "auto_create_group", BOOLEAN, live=True),
    Setting("regionId", "broker", "region", TEXT),
    Setting("traceOn", "broker", "trace_on", BOOLEAN),
    Setting("msgTraceTopicName", "broker", "trace_topic", TEXT),
    Setting("rejectTransactionMessage", "broker", "reject_transactions", BOOLEAN, live=True),
    Setting("transactionTimeOut", "broker", "transaction_timeout_ms", INTEGER, live=True),
    Setting("transactionCheckInterval", "broker", "transaction_check_interval_ms", INTEGER, live=True),
    Setting("transactionCheckMax", "broker", "transaction_check_max", INTEGER, live=True),
    Setting("traceTopicEnable", "broker", "trace_topic_enabled", BOOLEAN),
    Setting("storeReplyMessageEnable", "broker", "store_replies", BOOLEAN, live=True),
    Setting("notifyConsumerIdsChangedEnable", "broker", "notify_consumer_changes", BOOLEAN, live=True),
    Setting("validateSystemTopicWhenUpdateTopic", "broker", "refuse_system_topics", BOOLEAN, live=True),
    Setting("registerNameServerPeriod", "broker", "register_period_ms", INTEGER, live=True),
    Setting("registerBrokerTimeoutMills", "broker", "register_timeout_ms", INTEGER, live=True),
    Setting("flushConsumerOffsetInterval", "broker", "offsets_flush_ms", INTEGER, live=True),
    Setting("enablePropertyFilter", "broker", "sql_filters", BOOLEAN, live=True),
    Setting("filterSupportRetry", "broker", "sql_filters_retries", BOOLEAN),
    Setting("filterDataCleanTimeSpan", "broker", "filter_keep_ms", INTEGER, live=True),
    Setting("longPollingEnable", "broker", "long_polling", BOOLEAN, live=True),
    Setting("shortPollingTimeMills", "broker", "short_polling_ms", INTEGER, live=True),
    Setting("messageDelayLevel", "broker", "delay_levels", TEXT),
    Setting("timerWheelEnable", "broker", "timers", BOOLEAN, live=True),
    Setting("timerMaxDelaySec", "broker", "timer_delay_max_s", INTEGER, live=True),
    Setting("recallMessageEnable", "broker", "recall", BOOLEAN, live=True),
    Setting("channelExpiredTimeout", "broker", "client_expiry_ms", INTEGER, live=True),
    Setting("subscriptionExpiredTimeout", "broker", "group_expiry_ms", INTEGER, live=True),
    Setting("useServerSideResetOffset", "broker", "reset_on_server", BOOLEAN, live=True),
    Setting("lockInStrictMode", "broker", "lock_strictly", BOOLEAN, live=True),
]

_STORE: list[Setting] = [
    Setting("storePathRootDir", "store", "root", PATH),
    Setting("mappedFileSizeCommitLog", "store", "segment_bytes", INTEGER),
    Setting("mappedFileSizeConsumeQueue", "store", "queue_file_entries", _scaled(20)),
    Setting("mappedFileSizeTimerLog", "store", "timer_file_bytes", INTEGER),
    Setting("maxHashSlotNum", "store", "index_slots", INTEGER),
    Setting("maxIndexNum", "store", "index_entries", INTEGER),
    Setting("messageIndexEnable", "store", "index_enabled", BOOLEAN),
    Setting("maxMessageSize", "store", "message_bytes_max", INTEGER),
    Setting("flushDiskType", "store", "flush", _choice(ASYNC_FLUSH="async", SYNC_FLUSH="sync")),
    Setting("flushIntervalCommitLog", "store", "flush_interval_ms", INTEGER, live=True),
    Setting("syncFlushTimeout", "store", "sync_flush_timeout_ms", INTEGER, live=True),
    Setting("flushIntervalConsumeQueue", "store", "queue_flush_interval_ms", INTEGER, live=True),
    Setting("enabledAppendPropCRC", "store", "tail_crc", BOOLEAN),
    Setting("checkCRCOnRecover", "store", "check_crc_on_recovery", BOOLEAN),
    Setting("fileReservedTime", "store", "retention_hours", INTEGER, live=True),
    Setting("deleteWhen", "store", "delete_hours", HOURS, live=True),
    Setting("cleanResourceInterval", "store", "clean_interval_ms", INTEGER, live=True),
    Setting("deleteFileBatchMax", "store", "delete_files_max", INTEGER, live=True),
    Setting("diskMaxUsedSpaceRatio", "store", "disk_clean_ratio", PERCENT, live=True),
    Setting("diskSpaceWarningLevelRatio", "store", "disk_refuse_ratio", PERCENT, live=True),
    Setting("diskSpaceCleanForciblyRatio", "store", "delete_unexpired_ratio", PERCENT, live=True),
    Setting("maxTransferBytesOnMessageInMemory", "store", "transfer_bytes_max", INTEGER, live=True),
    Setting("maxTransferCountOnMessageInMemory", "store", "transfer_count_max", INTEGER, live=True),
    Setting("defaultQueryMaxNum", "store", "query_max", INTEGER, live=True),
]

_NET: list[Setting] = [
    Setting("serverChannelMaxIdleTimeSeconds", "net", "idle_s", SECONDS),
    Setting("serverSocketBacklog", "net", "listen_backlog", INTEGER),
    Setting(
        "tls.server.mode",
        "net",
        "tls_mode",
        _choice(DISABLED="disabled", PERMISSIVE="permissive", ENFORCING="enforcing"),
    ),
    Setting("tls.server.certPath", "net", "tls_cert", PATH),
    Setting("tls.server.keyPath", "net", "tls_key", PATH),
    Setting("tls.server.keyPassword", "net", "tls_key_password", TEXT),
    Setting("tls.server.trustCertPath", "net", "tls_trust", PATH),
    Setting("tls.enable", "net", "tls_outgoing", BOOLEAN),
    Setting("useTLS", "net", "tls_outgoing", BOOLEAN),
    Setting("tls.client.trustCertPath", "net", "tls_outgoing_trust", PATH),
    Setting(
        "tls.server.need.client.auth",
        "net",
        "tls_client_auth",
        _choice(NONE="none", OPTIONAL="optional", REQUIRE="require"),
    ),
]

_COPIES: list[Setting] = [
    Setting(
        "brokerRole",
        "copies",
        "role",
        _choice(ASYNC_MASTER="async_master", SYNC_MASTER="sync_master", SLAVE="slave"),
    ),
    Setting("inSyncReplicas", "copies", "in_sync", INTEGER),
    Setting("haListenPort", "copies", "port", INTEGER),
    Setting("haMasterAddress", "copies", "master_address", ADDRESS),
    Setting("slaveTimeout", "copies", "slave_timeout_ms", INTEGER),
    Setting("slaveReadEnable", "copies", "read_from_slaves", BOOLEAN),
    Setting("accessMessageInMemoryMaxRatio", "copies", "memory_percent", INTEGER),
    Setting("haMaxGapNotInSync", "copies", "lag_bytes_max", INTEGER),
    Setting("replicationSecret", "copies", "secret", TEXT),
    Setting("dLegerGroup", "copies", "group", TEXT),
    Setting("dLegerPeers", "copies", "members", MEMBERS),
    Setting("dLegerSelfId", "copies", "member", TEXT),
]
RAFT_SWITCH = "enableDLegerCommitLog"
"""Without it the names that begin with dLeger have no effect, in RocketMQ as here."""

_NAMESERVER: list[Setting] = [
    Setting("listenPort", "nameserver", "port", INTEGER),
    Setting("bindAddress", "nameserver", "listen_host", TEXT),
    Setting("kvConfigPath", "nameserver", "root", _KV_PATH),
    Setting("productEnvName", "nameserver", "environment", TEXT),
    Setting("clusterTest", "nameserver", "cluster_test", BOOLEAN),
    Setting("orderMessageEnable", "nameserver", "order_messages", BOOLEAN, live=True),
    Setting("returnOrderTopicConfigToBroker", "nameserver", "order_topics_to_brokers", BOOLEAN, live=True),
    Setting("scanNotActiveBrokerInterval", "nameserver", "scan_ms", INTEGER),
    Setting("supportActingMaster", "nameserver", "acting_master", BOOLEAN),
    Setting("enableAllTopicList", "nameserver", "list_topics", BOOLEAN, live=True),
    Setting("notifyMinBrokerIdChanged", "nameserver", "notify_min_broker_id", BOOLEAN),
    Setting("deleteTopicWithBrokerRegistration", "nameserver", "delete_topics_on_registration", BOOLEAN, live=True),
]

BROKER_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (*_BROKER, *_STORE, *_NET, *_COPIES)}
NAMESERVER_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (*_NAMESERVER, *_NET)}

# Secrets are never shown, neither by request 26 nor in errors; by whichever of their names they were given.
SECRET = frozenset(
    {
        *("tls.server.keyPassword", "net.tls_key_password", "replicationSecret", "copies.secret"),
        *("initAuthenticationUser", "innerClientAuthenticationCredentials"),
    }
)

"""Names of topics, groups, brokers and clusters: which are valid, and which are reserved for the system."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from kappamq.errors import InvalidParameter

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
KAPPAMQ_TOPIC_PREFIX: Final = "rmq_sys_kappamq_"
"""Topics of our own metadata records; clients cannot write to them."""
METADATA_TOPIC: Final = "rmq_sys_kappamq_metadata"
STAGED_TOPIC: Final = "rmq_sys_kappamq_staged"
"""Chunks of batch transactions, in one queue."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"

TOPIC_CHARACTERS_MAX: Final = 127
RETRY_TOPIC_CHARACTERS_MAX: Final = 255
GROUP_CHARACTERS_MAX: Final = 120
BROKER_CHARACTERS_MAX: Final = 127

AUTO_CREATE_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        TRACE_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
NOT_SENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Clients cannot send to these, as in RocketMQ, except to the timer topic; our metadata topics are added in `is_sendable`."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group under which a broker stores its own positions in the two transaction queues among the consumer offsets."""
BUILT_IN_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that exist on every broker."""
RESERVED_GROUPS: Final = frozenset(
    {
        *BUILT_IN_GROUPS,
        "SELF_TEST_P_GROUP",
        "CLIENT_INNER_PRODUCER",
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "SCHEDULE_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_BROKER_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic(topic: str) -> str:
    """Return `topic` if it is a valid topic name, else raise InvalidParameter."""
    _check_text(topic, "topic")
    retried = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    # In a POP retry topic with these prefixes a '+' separates group and topic.
    name = topic.replace("+", "") if topic.startswith(RETRY_PREFIX) else topic
    return _check(topic, name, "topic", RETRY_TOPIC_CHARACTERS_MAX if retried else TOPIC_CHARACTERS_MAX)


def check_group(group: str) -> str:
    """Return `group` if it is a valid group name, else raise InvalidParameter."""
    _check_text(group, "group")
    return _check(group, group, "group", GROUP_CHARACTERS_MAX)


def check_broker(name: str) -> str:
    """Return `name` if it is a valid broker or cluster name, else raise InvalidParameter."""
    if not name or len(name) > BROKER_CHARACTERS_MAX or not _BROKER_ALLOWED.fullmatch(name):
        raise InvalidParameter(
            f"the broker or cluster name {name[:140]!r} is not allowed: use 1 to {BROKER_CHARACTERS_MAX} letters, "
            "digits, '.', '_' or '-'"
        )
    return name


def _check_text(name: object, kind: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} must be a str; got {name!r}")


def _check(name: str, plain: str, kind: str, characters_max: int) -> str:
    if not name or name.isspace():
        raise InvalidParameter(f"the {kind} is empty")
    if len(name) > characters_max:
        raise InvalidParameter(f"the {kind} has {len(name)} characters, the limit is {characters_max}")
    if not _ALLOWED.fullmatch(plain):
        raise InvalidParameter(
            f"the {kind} {name!r} contains characters that are not allowed: use only letters, digits and % | _ -"
        )
    return name


def is_system_topic(topic: str, own: Collection[str] = ()) -> bool:
    """`own`: the names that this broker adds: its cluster, its own name, its reply topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic in own


def is_sendable(topic: str) -> bool:
    """Return whether a client may send to this topic."""
    return topic not in NOT_SENDABLE_TOPICS and not topic.startswith(KAPPAMQ_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in RESERVED_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    return cluster + REPLY_TOPIC_SUFFIX


def with_namespace(namespace: str, name: str) -> str:
    """Add a namespace to a topic or group; system names and names that have it already stay unchanged."""
    if not namespace or is_system_topic(name) or is_system_group(name):
        return name
    prefix, plain = _split_prefix(name)
    return name if plain.startswith(namespace + "%") else f"{prefix}{namespace}%{plain}"


def without_namespace(name: str) -> str:
    """Remove the namespace from a topic or group, keeping a retry or dead-letter prefix."""
    if is_system_topic(name) or is_system_group(name):
        return name
    prefix, plain = _split_prefix(name)
    namespace, separator, rest = plain.partition("%")
    return prefix + rest if separator and namespace and rest else name


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name

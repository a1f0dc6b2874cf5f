"""Configuration of a broker: its names, its addresses, and its handling of topics, groups and clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from kappamq.config.checks import address, at_least, between, durations_ms, not_empty
from kappamq.errors import ConfigError

PERMISSION_WRITE, PERMISSION_READ = 2, 4


def host_name() -> str:
    """Return this machine's name, reduced to the characters allowed in a broker name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:60].strip("-") or "kappamq"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    cluster: str = "DefaultCluster"  # brokers of one cluster share their topics
    name: str = field(default_factory=host_name)  # the master and the slaves of one broker share it
    broker_id: int = 0  # 0: master; slaves of the same name have other ids

    listen_host: str = "0.0.0.0"  # "127.0.0.1": reachable from this machine only
    port: int = 10911  # also listens on port-2, and on port+1 for copies. 0: any free ones
    advertise: str | None = None  # host or host:port for clients; None: the local address towards the name server
    nameservers: tuple[str, ...] = ()  # none: not registered, so clients cannot find it by route

    permission: int = PERMISSION_READ | PERMISSION_WRITE  # 4 read, 2 write; without write, clients send elsewhere
    auto_create_topic: bool = True  # a send to an unknown topic creates it; off: only operators create topics
    default_topic_queues: int = 8  # limit for automatically created topics; more: more consumers in parallel
    auto_create_group: bool = True  # an unknown group is created when it first appears
    region: str = "DefaultRegion"  # written into every message
    trace_on: bool = True  # tells clients that they may trace; written into every message
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where clients send their traces
    trace_topic_enabled: bool = False  # create that topic at the start
    store_replies: bool = True  # replies of request-reply calls are stored as messages, besides being delivered
    notify_consumer_changes: bool = True  # off: consumers notice each other only at their next rebalance (20 s)
    refuse_system_topics: bool = True  # operators cannot change system topics

    reject_transactions: bool = False  # refuse transactional messages
    transaction_timeout_ms: int = 6000  # a transaction is not checked before this age
    transaction_check_interval_ms: int = 30_000  # between two checks of the same transaction
    transaction_check_max: int = 15  # after this many checks without a decision it is given up
    transaction_checks_per_s: int = 1000  # larger: settled sooner, but producers get more checks at once
    transaction_keep_ms: int = 30 * 86_400_000  # given up after this, even if no producer was connected to check
    batch_transaction_timeout_ms: int = 3_600_000  # a batch transaction that nobody decides is aborted after this
    staged_bytes_max: int = 1 << 30  # undecided and unpublished chunks of batch transactions; beyond it: busy

    register_period_ms: int = 30_000  # smaller: name servers learn sooner of changes they missed
    register_timeout_ms: int = 24_000  # smaller: a slow name server counts as down sooner
    offsets_flush_ms: int = 1000  # writes consumer offsets to the log. larger: more redeliveries after a crash
    long_polling: bool = True  # off: consumers poll every short_polling_ms, which delays messages by up to that
    short_polling_ms: int = 1000  # how long a pull waits when long polling is off
    poll_hold_ms_max: int = 60_000  # an empty pull waits no longer, whatever the client requests
    parked_pulls_max: int = 200_000  # more: about 300 bytes of memory each; beyond it pulls are answered at once
    client_expiry_ms: int = 120_000  # a client is removed this long after its last heartbeat
    group_expiry_ms: int = 600_000  # a subscription without members is removed after this
    sql_filters: bool = True  # consumers may filter by SQL conditions. off: by tags only
    sql_filters_retries: bool = False  # conditions apply to redelivered messages, too: each costs some microseconds
    filter_keep_ms: int = 86_400_000  # a group's condition is kept this long after its last consumer left
    queue_lock_ms: int = 60_000  # an ordered consumer that dies holds its queue locks no longer than this
    lock_strictly: bool = False  # a queue lock is granted only when it is on disk, also with async flush
    reset_on_server: bool = True  # off: resets are left to connected clients, whose commits may then go back
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # the delays of levels 1, 2, ...
    timers: bool = True  # messages may have a delivery time; off: such sends are refused
    timer_delay_max_s: int = 259_200  # how far ahead that may be. larger: they are stored again every two days
    recall: bool = True  # such a message can be recalled before it is due (RocketMQ's default is not)
    batch_members_max: int = 16_384  # messages of one batch. larger: each 1,000 more delay others by a millisecond
    scopes_max: int = 10_000  # of batch transactions. larger: a broken client can fill more memory
    topics_max: int = 100_000  # larger: a broken client can fill more memory
    topic_queues_max: int = 65_536  # at most; name servers and clients refuse more
    groups_max: int = 100_000  # larger: a broken client can fill more memory
    stop_timeout_ms: int = 10_000  # how long a stop waits for parked replies and the last flush

    # The Apache properties this configuration was created from, for the answer to getBrokerConfig.
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        not_empty("cluster", self.cluster)
        if not re.fullmatch(r"[A-Za-z0-9_%|.-]{1,127}", self.name, re.ASCII):
            raise ConfigError(
                f"name must be 1 to 127 letters, digits or any of _ - % | . (it is part of every route); got {self.name!r}"
            )
        between("broker_id", self.broker_id, 0, (1 << 31) - 1)
        not_empty("listen_host", self.listen_host)
        between("port", self.port, 0, 65_534)
        if 0 < self.port <= 2:
            raise ConfigError(f"port must be at least 3, because port-2 is used as well; got {self.port}")
        if self.advertise is not None:
            not_empty("advertise", self.advertise)
        for nameserver in self.nameservers:
            address("nameservers", nameserver)
        between("permission", self.permission, 0, 7)
        between("topic_queues_max", self.topic_queues_max, 1, 65_536)
        between("default_topic_queues", self.default_topic_queues, 1, self.topic_queues_max)
        between("register_period_ms", self.register_period_ms, 100, 600_000)
        between("register_timeout_ms", self.register_timeout_ms, 100, 600_000)
        between("offsets_flush_ms", self.offsets_flush_ms, 1, 3_600_000)
        between("short_polling_ms", self.short_polling_ms, 1, 600_000)
        between("poll_hold_ms_max", self.poll_hold_ms_max, 1, 3_600_000)
        between("client_expiry_ms", self.client_expiry_ms, 100, 86_400_000)
        between("group_expiry_ms", self.group_expiry_ms, 100, 86_400_000)
        between("filter_keep_ms", self.filter_keep_ms, 1000, 30 * 86_400_000)
        between("queue_lock_ms", self.queue_lock_ms, 100, 86_400_000)
        between("transaction_timeout_ms", self.transaction_timeout_ms, 0, 86_400_000)
        between("transaction_check_interval_ms", self.transaction_check_interval_ms, 100, 86_400_000)
        between("transaction_check_max", self.transaction_check_max, 1, 1_000_000)
        between("transaction_checks_per_s", self.transaction_checks_per_s, 1, 1_000_000)
        at_least("transaction_keep_ms", self.transaction_keep_ms, 1000)
        between("batch_transaction_timeout_ms", self.batch_transaction_timeout_ms, 1000, 7 * 86_400_000)
        at_least("staged_bytes_max", self.staged_bytes_max, 1 << 20)
        durations_ms("delay_levels", self.delay_levels)
        between("timer_delay_max_s", self.timer_delay_max_s, 1, 100 * 366 * 86_400)
        for name in (
            "parked_pulls_max",
            "batch_members_max",
            "scopes_max",
            "topics_max",
            "groups_max",
            "stop_timeout_ms",
        ):
            at_least(name, getattr(self, name), 1)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level, level 1 first."""
        return durations_ms("delay_levels", self.delay_levels)

    @property
    def writable(self) -> bool:
        return bool(self.permission & PERMISSION_WRITE)

    @property
    def readable(self) -> bool:
        return bool(self.permission & PERMISSION_READ)

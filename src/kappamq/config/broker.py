"""What a broker is told about itself: its names, its place, and how it treats topics, groups and clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from kappamq.config.checks import address, at_least, between, durations_ms, not_empty
from kappamq.errors import ConfigError

PERMISSION_WRITE, PERMISSION_READ = 2, 4


def host_name() -> str:
    """This machine's name, reduced to what a broker name may hold."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:60].strip("-") or "kappamq"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    cluster: str = "DefaultCluster"  # brokers of one cluster share their topics
    name: str = field(default_factory=host_name)  # the master and the slaves of one broker share it
    broker_id: int = 0  # 0: master. Slaves are not built yet, so another number is refused

    listen_host: str = "0.0.0.0"  # "127.0.0.1": reachable from this machine only
    port: int = 10911  # also listens on port-2; port+1 is kept for copies. 0: any free ones
    advertise: str | None = None  # host or host:port for clients; None: our local address towards the name server
    nameservers: tuple[str, ...] = ()  # none: runs alone, nobody finds it by route

    permission: int = PERMISSION_READ | PERMISSION_WRITE  # 4 read, 2 write; without write, clients send elsewhere
    auto_create_topic: bool = True  # a send to an unknown topic makes it; off: topics are made by an operator
    default_topic_queues: int = 8  # at most this many for a topic made by a send; more: more consumers in parallel
    auto_create_group: bool = True  # a group nobody made is made when it first appears
    region: str = "DefaultRegion"  # written into every message
    trace_on: bool = True  # tells clients that they may trace; written into every message
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where clients send their traces
    trace_topic_enabled: bool = False  # make that topic at the start
    store_replies: bool = True  # replies of request-reply calls are kept as messages, besides being handed over
    notify_consumer_changes: bool = True  # off: consumers notice each other only at their next rebalance (20 s)
    refuse_system_topics: bool = True  # an operator cannot change topics the system lives on

    reject_transactions: bool = False  # transactional messages are refused
    transaction_timeout_ms: int = 6000  # a producer is not asked about a transaction that is younger than this
    transaction_check_interval_ms: int = 30_000  # between two questions about the same transaction
    transaction_check_max: int = 15  # after so many questions without a decision it is given up
    transaction_checks_per_s: int = 1000  # larger: settled sooner, but producers are asked more at once
    transaction_keep_ms: int = 30 * 86_400_000  # given up after this, although nobody was there to be asked

    register_period_ms: int = 30_000  # smaller: name servers learn of changes they missed sooner
    register_timeout_ms: int = 24_000  # smaller: a slow name server counts as gone sooner
    offsets_flush_ms: int = 1000  # consumer offsets into the log. larger: more is delivered again after a crash
    long_polling: bool = True  # off: consumers ask every short_polling_ms, and messages arrive that much later
    short_polling_ms: int = 1000  # how long a pull waits when long polling is off
    poll_hold_ms_max: int = 60_000  # an empty pull waits no longer, whatever the client asks for
    parked_pulls_max: int = 200_000  # more: memory for about 300 bytes each; beyond it pulls are answered at once
    client_expiry_ms: int = 120_000  # a client is forgotten this long after its last heartbeat
    group_expiry_ms: int = 600_000  # a subscription nobody holds is forgotten after this
    sql_filters: bool = True  # consumers may ask for messages by SQL conditions. off: by tags only
    sql_filters_retries: bool = False  # conditions hold for messages that come again, too: each costs some microseconds
    filter_keep_ms: int = 86_400_000  # a group's condition is remembered this long after its last consumer has gone
    queue_lock_ms: int = 60_000  # an ordered consumer that dies holds its queues no longer than this
    lock_strictly: bool = False  # who locks a queue is told so only when the disk has it, also with async flush
    reset_on_server: bool = True  # off: resets are left to clients that are online, whose commits may then go back
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # what DELAY=1, 2, ... stand for
    timers: bool = True  # messages may name the time of their delivery; off: such sends are refused
    timer_delay_max_s: int = 259_200  # how far ahead that may be. larger: they are stored again every two days
    recall: bool = True  # such a message can be taken back before its time (RocketMQ's default is not)
    batch_members_max: int = (
        16_384  # messages of one batch. larger: 1,000 more keep everybody waiting for a millisecond
    )
    topics_max: int = 100_000  # larger: a broken client can fill more memory
    topic_queues_max: int = 65_536  # larger: one topic can take more memory
    groups_max: int = 100_000  # larger: a broken client can fill more memory
    stop_timeout_ms: int = 10_000  # how long a stop waits for parked replies and the last flush

    # The Apache properties this configuration was made from, for the answer to getBrokerConfig.
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        not_empty("cluster", self.cluster)
        if not re.fullmatch(r"[A-Za-z0-9_%|.-]{1,127}", self.name, re.ASCII):
            raise ConfigError(
                f"name is part of every route: 1 to 127 letters, digits or any of _ - % | . please; got {self.name!r}"
            )
        if self.broker_id != 0:
            # A name server routes nobody to a broker whose name has no master.
            raise ConfigError(
                f"broker_id must be 0, the master: slaves are not built yet, and nobody would be routed to a broker with "
                f"another id; got {self.broker_id}"
            )
        not_empty("listen_host", self.listen_host)
        between("port", self.port, 0, 65_534)
        if 0 < self.port <= 2:
            raise ConfigError(f"port must be at least 3, because port-2 is used as well; got {self.port}")
        if self.advertise is not None:
            not_empty("advertise", self.advertise)
        for nameserver in self.nameservers:
            address("nameservers", nameserver)
        between("permission", self.permission, 0, 7)
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
        durations_ms("delay_levels", self.delay_levels)
        between("timer_delay_max_s", self.timer_delay_max_s, 1, 100 * 366 * 86_400)
        for name in (
            "parked_pulls_max",
            "batch_members_max",
            "topics_max",
            "topic_queues_max",
            "groups_max",
            "stop_timeout_ms",
        ):
            at_least(name, getattr(self, name), 1)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """How long messages of each delay level wait, level 1 first."""
        return durations_ms("delay_levels", self.delay_levels)

    @property
    def writable(self) -> bool:
        return bool(self.permission & PERMISSION_WRITE)

    @property
    def readable(self) -> bool:
        return bool(self.permission & PERMISSION_READ)

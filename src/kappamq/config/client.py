"""Configuration shared by producers, consumers and admins. Defaults are those of RocketMQ's clients where they have one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from kappamq.clock import Clock
from kappamq.config.checks import KIB, MIB, address, at_least, between, not_empty, of_declared_types, one_of, with_port
from kappamq.errors import ConfigError

NAMESERVER_PORT = 9876


def default_nameservers() -> tuple[str, ...]:
    """`$KAPPAMQ_NAMESERVER`, else `$NAMESRV_ADDR` as for RocketMQ's clients (separated by `;`), else this machine."""
    for variable in ("KAPPAMQ_NAMESERVER", "NAMESRV_ADDR"):
        found = split_addresses(os.environ.get(variable, ""))
        if found:
            return found
    return (f"127.0.0.1:{NAMESERVER_PORT}",)


def split_addresses(text: str) -> tuple[str, ...]:
    """`a:1;b:2` or `a:1,b:2` -> ("a:1", "b:2"). A host alone means the default port of a name server."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    return tuple(with_port(part, NAMESERVER_PORT) for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    nameservers: tuple[str, ...] = field(default_factory=default_nameservers)  # host:port, or host alone for port 9876
    instance: str = "DEFAULT"  # distinguishes clients of one process; DEFAULT becomes pid + start time
    unit: str = ""  # RocketMQ's unit name, part of the client id; rarely needed

    # Times.
    connect_timeout_ms: int = 3000  # smaller: dead servers are noticed sooner, but slow networks look dead
    request_timeout_ms: int = 3000  # all requests except sends and pulls
    send_timeout_ms: int = 3000  # over all attempts of one send
    route_poll_ms: int = 30_000  # smaller: new queues are found sooner, more requests to the name server
    heartbeat_ms: int = 30_000  # must stay well below the broker's client expiry (120 s)
    commit_ms: int = 5000  # commits consumer offsets. larger: more redeliveries after a crash
    rebalance_ms: int = 20_000  # how often a group rebalances without being notified

    # Producer.
    send_retries: int = 2  # on another broker, within send_timeout_ms
    send_try_timeout_ms: int = 0  # for one attempt; 0: all that is left. smaller: moves on from silent brokers sooner
    latency_faults: bool = False  # avoid brokers that answer slowly for a while
    retry_not_stored_ok: bool = False  # also retry when stored but not flushed or replicated: may store twice
    default_topic: str = "TBW102"  # its route says where a new topic may be created
    default_topic_queues: int = 4  # of an automatically created topic; the broker may allow fewer
    message_bytes_max: int = 4 * MIB  # larger ones are refused here; the broker has its own limit
    compress_over_bytes: int = 4 * KIB  # smaller: less traffic, more CPU
    compress_level: int = 5  # of zlib (up to 9) and zstd (up to 22). larger: smaller bodies, more CPU
    compress_kind: Literal["zlib", "lz4", "zstd"] = "zlib"  # lz4 is fastest; lz4 and zstd need 5.0 consumers
    inflight_max: int = 65_535  # requests in flight per connection
    inflight_bytes_max: int = 100 * MIB  # bytes of sends in flight
    linger_ms: int = 0  # how long messages wait for others to leave with. larger: larger batches, later. 0: only for a request in flight
    inflight_full: Literal["wait", "raise"] = "wait"  # what a send does when these limits are reached
    check_threads: int = 4  # transaction checks processed concurrently
    checks_waiting_max: int = 2000  # beyond it checks are dropped, and the broker repeats them

    # Consumer.
    pull_batch: int = 32  # messages per pull
    pull_hold_ms: int = 15_000  # how long the broker may hold an empty pull
    pull_timeout_ms: int = 30_000  # must be longer than pull_hold_ms
    pull_pause_on_error_ms: int = 1000  # before a failed pull is retried
    cached_messages_max: int = 1000  # per queue, pulled but not acknowledged
    cached_bytes_max: int = 100 * MIB  # per queue
    consume_span_max: int = 2000  # between the smallest and largest unacknowledged offset of a queue
    cached_all_max: int = 10_000  # lite pull: pulled but not polled, over all queues
    topic_messages_max: int | None = None  # like cached_messages_max, for all our queues of a topic together
    topic_bytes_max: int | None = None  # like cached_bytes_max, for all our queues of a topic together
    consume_threads: int = 20  # concurrent listener calls: threads, or tasks of an async function
    consume_batch: int = 1  # above 1 the listener gets a list of up to this many messages of one queue
    consume_timeout_ms: int = 15 * 60_000  # a listener that takes longer has failed; it is no longer waited for
    reconsume_max: int = -1  # redeliveries before the dead-letter queue; -1: 16, when ordered: no limit
    again_ms: int = 5000  # pause before a failed message that no broker takes back is retried locally

    # Ordered consumers.
    suspend_ms: int = 1000  # how long a queue is blocked after its message failed
    lock_renew_ms: int = 20_000  # how often queue locks are renewed
    lock_lease_ms: int = 30_000  # without renewal the lock counts as lost; must stay well below the broker's 60 s

    # Broadcasting consumers.
    offsets_dir: Path | None = None  # where offsets are stored; None: ~/.rocketmq_offsets, as RocketMQ's clients

    # Message trace.
    trace: bool = False  # write a trace of every message sent and consumed
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where traces go
    trace_batch: int = 10  # entries in one trace message
    trace_flush_ms: int = 5000  # a trace is sent after this even if the message is not full
    trace_waiting_max: int = 4096  # beyond it traces are dropped and counted. larger: more memory if brokers are slow

    clock: Clock | None = None  # None: the machine's clock; the testing kit passes its own

    # TLS.
    tls: bool = False  # use TLS with name servers and brokers
    tls_verify: bool = True  # off: encrypted, but anyone may pose as the server
    tls_trust: Path | None = None  # None: the system's certificates
    tls_cert: Path | None = None  # our own certificate (PEM), for servers that require one
    tls_key: Path | None = None  # its key (PEM)
    tls_key_password: str | None = None  # of an encrypted key

    def __post_init__(self) -> None:
        of_declared_types(self)
        if isinstance(self.nameservers, str):
            object.__setattr__(self, "nameservers", split_addresses(self.nameservers))
        elif isinstance(self.nameservers, bytes) or not isinstance(self.nameservers, Iterable):
            raise ConfigError(f"nameservers must be host:port, or several of them; got {self.nameservers!r}")
        else:
            whole = (with_port(str(nameserver), NAMESERVER_PORT) for nameserver in self.nameservers)
            object.__setattr__(self, "nameservers", tuple(whole))
        if not self.nameservers:
            raise ConfigError("nameservers is empty: set at least one host:port")
        for nameserver in self.nameservers:
            address("nameservers", nameserver)
        not_empty("instance", self.instance)
        not_empty("default_topic", self.default_topic)
        for name in ("connect_timeout_ms", "request_timeout_ms", "send_timeout_ms", "pull_timeout_ms"):
            between(name, getattr(self, name), 1, 3_600_000)
        for name in (
            *("route_poll_ms", "heartbeat_ms", "commit_ms", "rebalance_ms", "pull_pause_on_error_ms", "again_ms"),
            *("lock_renew_ms", "lock_lease_ms"),
        ):
            between(name, getattr(self, name), 1, 86_400_000)
        between("send_retries", self.send_retries, 0, 100)
        between("send_try_timeout_ms", self.send_try_timeout_ms, 0, 3_600_000)
        between("linger_ms", self.linger_ms, 0, 60_000)
        one_of("inflight_full", self.inflight_full, ("wait", "raise"))
        between("default_topic_queues", self.default_topic_queues, 1, 65_536)
        between("message_bytes_max", self.message_bytes_max, 1, 512 * MIB)
        at_least("compress_over_bytes", self.compress_over_bytes, 0)
        between("compress_level", self.compress_level, 0, 22)
        one_of("compress_kind", self.compress_kind, ("zlib", "lz4", "zstd"))
        for name in (
            "inflight_max",
            "inflight_bytes_max",
            "cached_messages_max",
            "cached_bytes_max",
            "consume_span_max",
            "cached_all_max",
        ):
            at_least(name, getattr(self, name), 1)
        between("pull_batch", self.pull_batch, 1, 1024)
        between("pull_hold_ms", self.pull_hold_ms, 0, 3_600_000)
        if self.pull_timeout_ms <= self.pull_hold_ms:
            raise ConfigError(
                f"pull_timeout_ms={self.pull_timeout_ms} must be longer than pull_hold_ms={self.pull_hold_ms}, "
                "else every empty pull looks like a lost connection"
            )
        between("check_threads", self.check_threads, 1, 1000)
        at_least("checks_waiting_max", self.checks_waiting_max, 1)
        between("consume_threads", self.consume_threads, 1, 1000)
        between("consume_batch", self.consume_batch, 1, 1024)
        at_least("consume_timeout_ms", self.consume_timeout_ms, 1)
        not_empty("trace_topic", self.trace_topic)
        between("trace_batch", self.trace_batch, 1, 100)
        between("trace_flush_ms", self.trace_flush_ms, 1, 3_600_000)
        at_least("trace_waiting_max", self.trace_waiting_max, 1)
        at_least("reconsume_max", self.reconsume_max, -1)
        at_least("suspend_ms", self.suspend_ms, 0)
        if self.lock_renew_ms >= self.lock_lease_ms:
            raise ConfigError(
                f"lock_renew_ms={self.lock_renew_ms} must be shorter than lock_lease_ms={self.lock_lease_ms}, "
                "else every lock is lost before it is renewed"
            )
        for name in ("topic_messages_max", "topic_bytes_max"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: set both, or none")


class ClientOptions(TypedDict, total=False):
    """The fields of ClientConfig as keyword arguments of every client, for type checkers; a test keeps both in sync."""

    nameservers: tuple[str, ...]
    instance: str
    unit: str
    connect_timeout_ms: int
    request_timeout_ms: int
    send_timeout_ms: int
    route_poll_ms: int
    heartbeat_ms: int
    commit_ms: int
    rebalance_ms: int
    send_retries: int
    send_try_timeout_ms: int
    latency_faults: bool
    retry_not_stored_ok: bool
    default_topic: str
    default_topic_queues: int
    message_bytes_max: int
    compress_over_bytes: int
    compress_level: int
    compress_kind: Literal["zlib", "lz4", "zstd"]
    inflight_max: int
    inflight_bytes_max: int
    linger_ms: int
    inflight_full: Literal["wait", "raise"]
    check_threads: int
    checks_waiting_max: int
    pull_batch: int
    pull_hold_ms: int
    pull_timeout_ms: int
    pull_pause_on_error_ms: int
    cached_messages_max: int
    cached_bytes_max: int
    consume_span_max: int
    cached_all_max: int
    topic_messages_max: int | None
    topic_bytes_max: int | None
    consume_threads: int
    consume_batch: int
    consume_timeout_ms: int
    reconsume_max: int
    again_ms: int
    suspend_ms: int
    lock_renew_ms: int
    lock_lease_ms: int
    offsets_dir: Path | None
    trace: bool
    trace_topic: str
    trace_batch: int
    trace_flush_ms: int
    trace_waiting_max: int
    clock: Clock | None
    tls: bool
    tls_verify: bool
    tls_trust: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_key_password: str | None

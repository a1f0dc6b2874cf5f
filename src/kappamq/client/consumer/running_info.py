"""The running info of a consumer, sent to administrators on request (code 307, `mqadmin consumerStatus`)."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable
from typing import Final

from kappamq.client.consumer.consume_stats import ConsumeStats
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.client.pulling.pulling import Interest
from kappamq.clock import Clock
from kappamq.config.client import ClientConfig
from kappamq.protocol.bodies.admin import ConsumerRunningInfo, ProcessQueueInfo
from kappamq.protocol.bodies.clients import ConsumeType

VERSION_NAME: Final = "V5_3_3"
"""RocketMQ's name for the version number we put into every header."""


def running_info(
    config: ClientConfig,
    clock: Clock,
    started_ms: int,
    interests: Iterable[Interest],
    queues: Iterable[ProcessQueue],
    stats: ConsumeStats,
    *,
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    ordered: bool = False,
    locked: bool = False,
    with_stack: bool = False,
) -> ConsumerRunningInfo:
    listed, now = list(interests), clock.liveness()
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(config.nameservers),
            "PROP_THREADPOOL_CORE_SIZE": str(config.consume_threads),
            "PROP_CONSUMEORDERLY": "true" if ordered else "false",
            "PROP_CONSUME_TYPE": consume_type.name,
            "PROP_CLIENT_VERSION": VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            **({"damagedMessagesSkipped": str(stats.damage.count)} if stats.damage.count else {}),
        },
        subscriptions=[interest.to_body() for interest in listed],
        queues={queue.queue: _queue_info(queue, clock, config, locked) for queue in queues},
        statuses={interest.topic: stats.status(interest.topic, now) for interest in listed},
        stack=stacks() if with_stack else None,
    )


def _queue_info(queue: ProcessQueue, clock: Clock, config: ClientConfig, locked: bool) -> ProcessQueueInfo:
    low, high = queue.range
    left = queue.lease_until - clock.liveness() if locked else 0.0
    return ProcessQueueInfo(
        commit_offset=queue.committable,
        cached_min_offset=low,
        cached_max_offset=high,
        cached_count=queue.count,
        cached_mib=queue.bytes >> 20,
        locked=left > 0,
        last_lock_ms=int(clock.message_ms() + left * 1000 - config.lock_lease_ms) if left > 0 else 0,
        dropped=queue.dropped,
        last_pull_ms=queue.pulled_ms,
        last_consume_ms=queue.consumed_ms,
    )


def stacks() -> str:
    """Return the stack traces of all threads of the process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)

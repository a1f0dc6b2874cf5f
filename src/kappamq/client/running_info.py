"""What a consumer tells an administrator who asks (code 307, `mqadmin consumerStatus`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kappamq.client.process_queue import ProcessQueue
from kappamq.client.pulling import Interest
from kappamq.config.client import ClientConfig
from kappamq.protocol.bodies_admin import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo

VERSION_NAME: Final = "V5_3_3"
"""What RocketMQ calls the version we put into every header."""


def running_info(
    config: ClientConfig, started_ms: int, interests: Iterable[Interest], queues: Iterable[ProcessQueue]
) -> ConsumerRunningInfo:
    listed = list(interests)
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(config.nameservers),
            "PROP_THREADPOOL_CORE_SIZE": str(config.consume_threads),
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": VERSION_NAME,
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        },
        subscriptions=[interest.to_body() for interest in listed],
        queues={
            queue.queue: ProcessQueueInfo(
                commit_offset=queue.committable,
                cached_min_offset=queue.committable if queue.count else 0,
                cached_max_offset=queue.next_offset - 1 if queue.count else 0,
                cached_count=queue.count,
                cached_mib=queue.bytes >> 20,
                dropped=queue.dropped,
            )
            for queue in queues
        },
        statuses={interest.topic: ConsumeStatus() for interest in listed},
    )

"""The client: producers, consumers and admins, for asyncio and for blocking programs.

Names are imported on first use; nothing here requires uvloop, the compiled kernel or the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kappamq.client.admin.admin import AsyncAdmin as AsyncAdmin
    from kappamq.client.admin.dead_letters import AsyncDeadLetters as AsyncDeadLetters
    from kappamq.client.admin.dead_letters import DeadLetter as DeadLetter
    from kappamq.client.admin.dead_letters import DeadLetters as DeadLetters
    from kappamq.client.blocking.clients import Admin as Admin
    from kappamq.client.blocking.clients import Producer as Producer
    from kappamq.client.blocking.consumers import Consumer as Consumer
    from kappamq.client.blocking.consumers import LitePullConsumer as LitePullConsumer
    from kappamq.client.blocking.consumers import PullConsumer as PullConsumer
    from kappamq.client.blocking.transaction import TransactionProducer as TransactionProducer
    from kappamq.client.consumer.consumer import AsyncConsumer as AsyncConsumer
    from kappamq.client.consumer.idempotence import idempotent as idempotent
    from kappamq.client.consumer.lite_pull import AsyncLitePullConsumer as AsyncLitePullConsumer
    from kappamq.client.consumer.pull_consumer import AsyncPullConsumer as AsyncPullConsumer
    from kappamq.client.producer.producer import AsyncProducer as AsyncProducer
    from kappamq.client.producer.requesting import replying as replying
    from kappamq.client.producer.transaction import AsyncTransactionProducer as AsyncTransactionProducer

_HOME = {
    "Producer": "blocking.clients",
    "Consumer": "blocking.consumers",
    "PullConsumer": "blocking.consumers",
    "LitePullConsumer": "blocking.consumers",
    "AsyncLitePullConsumer": "consumer.lite_pull",
    "Admin": "blocking.clients",
    "AsyncProducer": "producer.producer",
    "AsyncConsumer": "consumer.consumer",
    "AsyncPullConsumer": "consumer.pull_consumer",
    "AsyncAdmin": "admin.admin",
    "AsyncDeadLetters": "admin.dead_letters",
    "DeadLetter": "admin.dead_letters",
    "DeadLetters": "admin.dead_letters",
    "TransactionProducer": "blocking.transaction",
    "AsyncTransactionProducer": "producer.transaction",
    "replying": "producer.requesting",
    "idempotent": "consumer.idempotence",
}

__all__ = [*_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kappamq.client' has no attribute {name!r}")
    return getattr(import_module(f"kappamq.client.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

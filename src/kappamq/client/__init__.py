"""The client: producers, consumers and admins, for asyncio and for plain programs.

Names are loaded when they are first used; nothing here needs uvloop, the compiled kernel or the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kappamq.client.admin import AsyncAdmin as AsyncAdmin
    from kappamq.client.blocking import Admin as Admin
    from kappamq.client.blocking import Producer as Producer
    from kappamq.client.blocking_consumers import Consumer as Consumer
    from kappamq.client.blocking_consumers import LitePullConsumer as LitePullConsumer
    from kappamq.client.blocking_consumers import PullConsumer as PullConsumer
    from kappamq.client.blocking_transaction import TransactionProducer as TransactionProducer
    from kappamq.client.consumer import AsyncConsumer as AsyncConsumer
    from kappamq.client.dead_letters import AsyncDeadLetters as AsyncDeadLetters
    from kappamq.client.dead_letters import DeadLetter as DeadLetter
    from kappamq.client.dead_letters import DeadLetters as DeadLetters
    from kappamq.client.idempotence import idempotent as idempotent
    from kappamq.client.lite_pull import AsyncLitePullConsumer as AsyncLitePullConsumer
    from kappamq.client.producer import AsyncProducer as AsyncProducer
    from kappamq.client.pull_consumer import AsyncPullConsumer as AsyncPullConsumer
    from kappamq.client.requesting import replying as replying
    from kappamq.client.transaction import AsyncTransactionProducer as AsyncTransactionProducer

_HOME = {
    "Producer": "blocking",
    "Consumer": "blocking_consumers",
    "PullConsumer": "blocking_consumers",
    "LitePullConsumer": "blocking_consumers",
    "AsyncLitePullConsumer": "lite_pull",
    "Admin": "blocking",
    "AsyncProducer": "producer",
    "AsyncConsumer": "consumer",
    "AsyncPullConsumer": "pull_consumer",
    "AsyncAdmin": "admin",
    "AsyncDeadLetters": "dead_letters",
    "DeadLetter": "dead_letters",
    "DeadLetters": "dead_letters",
    "TransactionProducer": "blocking_transaction",
    "AsyncTransactionProducer": "transaction",
    "replying": "requesting",
    "idempotent": "idempotence",
}

__all__ = [*_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kappamq.client' has no attribute {name!r}")
    return getattr(import_module(f"kappamq.client.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

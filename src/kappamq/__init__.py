"""KappaMQ: a message broker that does what Apache RocketMQ does, and its client.

Public names are imported on first use, so that `import kappamq` loads only what a program needs.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers assume True; importing it from `typing` would take a third of our import time
if TYPE_CHECKING:
    from typing import Any

    from kappamq.client import Admin as Admin
    from kappamq.client import AsyncAdmin as AsyncAdmin
    from kappamq.client import AsyncConsumer as AsyncConsumer
    from kappamq.client import AsyncDeadLetters as AsyncDeadLetters
    from kappamq.client import AsyncLitePullConsumer as AsyncLitePullConsumer
    from kappamq.client import AsyncProducer as AsyncProducer
    from kappamq.client import AsyncPullConsumer as AsyncPullConsumer
    from kappamq.client import AsyncTransactionProducer as AsyncTransactionProducer
    from kappamq.client import Consumer as Consumer
    from kappamq.client import DeadLetter as DeadLetter
    from kappamq.client import DeadLetters as DeadLetters
    from kappamq.client import LitePullConsumer as LitePullConsumer
    from kappamq.client import Producer as Producer
    from kappamq.client import PullConsumer as PullConsumer
    from kappamq.client import TransactionProducer as TransactionProducer
    from kappamq.client import idempotent as idempotent
    from kappamq.client import replying as replying
    from kappamq.errors import KappaError as KappaError
    from kappamq.errors import Retry as Retry
    from kappamq.message import RETRY as RETRY
    from kappamq.message import Decision as Decision
    from kappamq.message import Message as Message
    from kappamq.message import MessageQueue as MessageQueue
    from kappamq.message import PulledBytes as PulledBytes
    from kappamq.message import PullResult as PullResult
    from kappamq.message import PullStatus as PullStatus
    from kappamq.message import ReceivedMessage as ReceivedMessage
    from kappamq.message import Redeliver as Redeliver
    from kappamq.message import SendResult as SendResult
    from kappamq.message import SendStatus as SendStatus
    from kappamq.message import sql as sql

_HOME = {
    "Message": "message",
    "MessageQueue": "message",
    "ReceivedMessage": "message",
    "SendResult": "message",
    "SendStatus": "message",
    "PullResult": "message",
    "PulledBytes": "message",
    "PullStatus": "message",
    "Redeliver": "message",
    "Decision": "message",
    "RETRY": "message",
    "sql": "message",
    "Producer": "client",
    "Consumer": "client",
    "PullConsumer": "client",
    "LitePullConsumer": "client",
    "Admin": "client",
    "AsyncProducer": "client",
    "AsyncConsumer": "client",
    "AsyncPullConsumer": "client",
    "AsyncLitePullConsumer": "client",
    "AsyncAdmin": "client",
    "AsyncDeadLetters": "client",
    "DeadLetter": "client",
    "DeadLetters": "client",
    "TransactionProducer": "client",
    "AsyncTransactionProducer": "client",
    "replying": "client",
    "idempotent": "client",
    "KappaError": "errors",
    "Retry": "errors",
    "errors": "errors",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kappamq' has no attribute {name!r}")
    module = import_module(f"kappamq.{home}")
    return module if name == home else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

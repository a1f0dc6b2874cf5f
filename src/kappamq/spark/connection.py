"""One client per process, name server list and TLS settings, created on first use and kept between tasks.

Spark forks its workers from a daemon and reuses them; a client created before the fork would not work in the child.
"""

from __future__ import annotations

import os
from typing import Final

from kappamq.client.blocking.clients import Admin, Producer
from kappamq.client.blocking.consumers import PullConsumer
from kappamq.config.client import ClientOptions
from kappamq.spark.tls import Tls

WRITER_GROUP: Final = "kappamq-spark-writer"
READER_GROUP: Final = "kappamq-spark"
"""The group in pulls without a group option; nothing is committed for it."""

_clients: dict[tuple[int, str, Tls | None, str], PullConsumer] = {}
_admins: dict[tuple[int, str, Tls | None], Admin] = {}
_producers: dict[tuple[int, str, Tls | None, str], Producer] = {}


def reader(nameservers: str, group: str = READER_GROUP, *, tls: Tls | None = None) -> PullConsumer:
    """Return this process's client for reading queues."""
    key = (os.getpid(), nameservers, tls, group)
    if key not in _clients:
        _clients[key] = PullConsumer(nameservers, group=group, **_options(tls))
    return _clients[key]


def admin(nameservers: str, *, tls: Tls | None = None) -> Admin:
    """Return this process's client for queries about topics and queues."""
    key = (os.getpid(), nameservers, tls)
    if key not in _admins:
        _admins[key] = Admin(nameservers, **_options(tls))
    return _admins[key]


def producer(nameservers: str, group: str = WRITER_GROUP, *, tls: Tls | None = None) -> Producer:
    """Return this process's client for sending."""
    key = (os.getpid(), nameservers, tls, group)
    if key not in _producers:
        _producers[key] = Producer(nameservers, group=group, **_options(tls))
    return _producers[key]


def _options(tls: Tls | None) -> ClientOptions:
    return ClientOptions() if tls is None else tls.client_options()


def close_all() -> None:
    """Close the clients of this process; the next task that needs one creates a new one."""
    for kept in (_clients, _admins, _producers):
        while kept:
            kept.popitem()[1].close()  # type: ignore[attr-defined]

"""One client per process, name server list and TLS settings, made when it is first needed and kept between tasks.

Spark forks its workers from a daemon and uses them again; a client made before the fork would be dead in the child.
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
"""Named in pulls where no group is given; nothing is committed under it."""

_clients: dict[tuple[int, str, Tls | None, str], PullConsumer] = {}
_admins: dict[tuple[int, str, Tls | None], Admin] = {}
_producers: dict[tuple[int, str, Tls | None, str], Producer] = {}


def reader(nameservers: str, group: str = READER_GROUP, *, tls: Tls | None = None) -> PullConsumer:
    """This process' client for reading queues."""
    key = (os.getpid(), nameservers, tls, group)
    if key not in _clients:
        _clients[key] = PullConsumer(nameservers, group=group, **_options(tls))
    return _clients[key]


def admin(nameservers: str, *, tls: Tls | None = None) -> Admin:
    """This process' client for questions about topics and queues."""
    key = (os.getpid(), nameservers, tls)
    if key not in _admins:
        _admins[key] = Admin(nameservers, **_options(tls))
    return _admins[key]


def producer(nameservers: str, group: str = WRITER_GROUP, *, tls: Tls | None = None) -> Producer:
    """This process' client for sending."""
    key = (os.getpid(), nameservers, tls, group)
    if key not in _producers:
        _producers[key] = Producer(nameservers, group=group, **_options(tls))
    return _producers[key]


def _options(tls: Tls | None) -> ClientOptions:
    return ClientOptions() if tls is None else tls.client_options()


def close_all() -> None:
    """Close what this process has open; the next task that needs a client makes a new one."""
    for kept in (_clients, _admins, _producers):
        while kept:
            kept.popitem()[1].close()  # type: ignore[attr-defined]

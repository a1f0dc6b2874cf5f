"""A producer process that writes orders into a database and tells of them in transactions, until somebody kills it.

`python -m tests.crash.ordering nameserver database name`
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path

from kappamq import Message, ReceivedMessage, TransactionProducer
from kappamq.errors import KappaError

TOPIC, GROUP = "orders", "order-desk"
QUICK = {"route_poll_ms": 200, "heartbeat_ms": 200, "send_timeout_ms": 500, "request_timeout_ms": 500}
"""A broker that comes back is found soon."""


class Database:
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._connect() as own:
            own.execute("CREATE TABLE IF NOT EXISTS orders (message_id TEXT PRIMARY KEY, body TEXT)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def insert(self, message_id: str, body: bytes) -> None:
        with self._connect() as own:
            own.execute("INSERT INTO orders VALUES (?, ?)", (message_id, body.decode()))

    def has(self, message: ReceivedMessage) -> bool:
        with self._connect() as own:
            return (
                own.execute("SELECT 1 FROM orders WHERE message_id = ?", (message.message_id,)).fetchone() is not None
            )

    def bodies(self) -> list[str]:
        with self._connect() as own:
            return sorted(body for (body,) in own.execute("SELECT body FROM orders"))


def work(nameserver: str, path: str, name: str) -> None:
    database = Database(Path(path))
    with TransactionProducer(nameserver, group=GROUP, check=database.has, **QUICK) as producer:
        print("{}", flush=True)
        number = 0
        while True:
            number += 1
            body = f"{name}-{number}".encode()
            try:
                with producer.transaction(Message(TOPIC, body)) as transaction:
                    if number % 5 == 0:
                        raise LookupError("sold out")
                    database.insert(transaction.message_id, body)
            except LookupError:
                pass
            except KappaError:
                time.sleep(0.05)  # the broker is away just now


if __name__ == "__main__":
    work(*sys.argv[1:])

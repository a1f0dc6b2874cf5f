"""Consumers that are killed between their work and its acknowledgement, again and again; run by test_idempotence.py.

python -m tests.client.killing nameserver database kills: prints how often a consumer was killed before and after the commit.
Each is a process of its own, forked from this one so that it need not import everything again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import NoReturn

from kappamq.client import Consumer
from kappamq.client.consumer.idempotence import idempotent
from kappamq.message import ReceivedMessage

EARLY_EACH = 10  # every so many times the consumer dies before the commit, too


def consumer(nameserver: str, database: str, *, early: bool) -> NoReturn:
    @idempotent(database, scope="billing")
    def bill(message: ReceivedMessage, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO bills VALUES (?)", (message.text,))
        if early:
            os.kill(os.getpid(), signal.SIGKILL)

    def listen(message: ReceivedMessage) -> None:
        bill(message)
        if bill.done:
            os.kill(os.getpid(), signal.SIGKILL)  # the work is done and committed; the broker does not know it yet

    Consumer(
        nameserver, group="billing", topics="orders", listener=listen, consume_from="first", consume_threads=1
    ).start()
    while True:
        signal.pause()


def main() -> None:
    nameserver, database, kills = sys.argv[1:]
    with Consumer(nameserver, group="rehearsal", topics="orders"):
        pass  # what is imported and compiled on first use is there for all children
    before = after = number = 0
    while after < int(kills):
        early = number % EARLY_EACH == EARLY_EACH - 1
        number += 1
        child = os.fork()
        if not child:
            consumer(nameserver, database, early=early)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), status
        assert os.WTERMSIG(status) == signal.SIGKILL
        before, after = before + early, after + (not early)
    print(before, after)


if __name__ == "__main__":
    main()

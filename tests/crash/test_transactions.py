"""Broker and producer are killed in turn: what is in the database is delivered, once, and nothing else ever is."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from benchmarks.process import Child
from benchmarks.servers import Broker, nameserver
from kappamq import Admin, PullConsumer, TransactionProducer
from kappamq.errors import KappaError
from tests.crash.ordering import GROUP, QUICK, TOPIC, Database
from tests.waiting import eventually

ROUNDS = 1
LIFE_ROWS = (5, 60)


def delivered(names: str) -> list[str]:
    """Everything that consumers can see."""
    with PullConsumer(names, group="reader", **QUICK) as consumer:
        queues = consumer.queues(TOPIC)
        return sorted(m.text for queue in queues for m in consumer.read(queue, consumer.min_offset(queue)))


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_was_written_is_delivered_once(tmp_path: Path, flush: str) -> None:
    dice = random.Random(flush)
    database = Database(tmp_path / "orders.db")
    # So soon that questions and decisions meet.
    impatient = {"transactionTimeOut": 50, "transactionCheckInterval": 300, "flushDiskType": flush}
    small = {"mappedFileSizeCommitLog": 256 << 10, "maxMessageSize": 64 << 10, "transactionCheckMax": 1000}
    with nameserver(tmp_path / "names") as names:
        server = Broker(tmp_path / "broker", names, properties={**impatient, **small})
        try:
            server.start()
            with Admin(names) as admin:
                admin.create_topic(TOPIC, queues=2)
            for number in range(ROUNDS):
                command = [
                    sys.executable,
                    "-m",
                    "tests.crash.ordering",
                    names,
                    str(tmp_path / "orders.db"),
                    f"p{number}",
                ]
                with Child(command, tmp_path / f"producer-{number}") as producer:
                    producer.wait_for_json()
                    for victim in (server, producer):
                        rows = len(database.bodies()) + dice.randint(*LIFE_ROWS)
                        eventually(lambda rows=rows: len(database.bodies()) >= rows, timeout=60, pause=0.001)
                        victim.kill()
                        if victim is server:
                            server.start()
            # Another process of the group answers for those that died.
            with TransactionProducer(names, group=GROUP, check=database.has, topics=[TOPIC], **QUICK):
                eventually(
                    lambda: _all_of(names, database), timeout=60, pause=0.2, text="all that was written is there"
                )
                server.kill()
                server.start()
            eventually(lambda: _all_of(names, database), timeout=60, pause=0.2)
            assert delivered(names) == database.bodies(), "once, and nothing that was rolled back"
        finally:
            if hasattr(server, "process"):
                server.kill()


def _all_of(names: str, database: Database) -> bool:
    try:
        seen = delivered(names)
    except KappaError:
        return False  # the broker is not found yet
    assert len(seen) == len(set(seen)), "delivered twice"
    assert set(seen) <= set(database.bodies()), "delivered, though it was never written"
    return seen == database.bodies()

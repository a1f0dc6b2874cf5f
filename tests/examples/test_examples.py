"""Every example runs, against a broker of its own, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappamq.local import Local, LocalThread
from tests.cli.conftest import small_local

FOLDER = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "quickstart.py": "received first flush with keys cup-1",
    "async_listener.py": "received 100 messages",
    "order_by_key.py": "cleo -> ordered, paid, packed, sent",
    "batch_transaction.py": "the same again, as after a crash, day 1: 2 messages, written before: True",
    "batches.py": "1000 messages in 5 requests; the topic holds 1000",
    "find_messages.py": "by key  a cup of oolong",
    "send.py": "5 messages stored",
    "async_send.py": "1000 messages stored",
    "oneway.py": "100 of 100 arrived",
    "consume.py": "tea 9",
    "push_consumer.py": "10 paid orders billed",
    "consumer_group.py": "ann alone:",
    "ordered_consumer.py": "in order, though one step failed at first",
    "broadcast_consumer.py": "bar has heard 3 announcements",
    "lite_pull_consumer.py": "read again from the start: entry at offset 0",
    "start_positions.py": "after the reset: 5 pages were read twice",
    "asyncio_consumer.py": "cake 9",
    "pull_consumer.py": "20 credits found",
    "request_reply.py": "sencha: 6.80",
    "testing_kit.py": "in two hours: [b'the tea is ready']",
    "testing_asyncio.py": "a day later: ['call mum', 'water the tea bush']",
    "idempotent.py": "3 payments, delivered 6 times; booked 3, left alone 3: 875 cents",
    "filters.py": "refused  , the SQL92 filter is wrong at column 9",
    "message_trace.py": "2 deliveries; consumed by shipping: True",
    "compressed_bodies.py": "zstd: 84000 bytes in a record of",
    "resize.py": "nothing was lost",
    "dead_letters.py": "sent again: 2 orders, each billed once",
    "transaction.py": "shipping heard of: order 1, order 3",
    "delay.py": "in the order of their times: half a second, at a time, level 1",
    "admin.py": "deleted: topic 'example-admin-",
}
ON_SPARK = {
    "spark_copies.py": "22 payments were sent, 20 of them are different\n19 are replayed, and the second time 0",
    "spark_exactly_once.py": "30 orders, 30 bills\n60 orders, 60 bills\n61 bills and totals",
    "spark_read.py": "green: 3\nblack: 1\noolong: 1",
    "spark_write.py": "34 paid orders are in the topic",
    "spark_stream.py": "first run: 30 events\nsecond run: 50 events",
    "spark_store.py": "coffee: 10 messages\ntea: 20 messages",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with LocalThread(small_local(tmp_path_factory.mktemp("examples"))) as local:
        yield local


def test_every_example_is_tested() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {*EXPECTED, *ON_SPARK}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str, cluster: Local) -> None:
    assert EXPECTED[name] in said_by(name, cluster, 60)


@pytest.mark.spark
@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_example_on_spark(name: str, cluster: Local) -> None:
    pytest.importorskip("pyspark")
    assert ON_SPARK[name] in said_by(name, cluster, 240)


def said_by(name: str, cluster: Local, timeout: float) -> str:
    command = [sys.executable, str(FOLDER / name), cluster.nameserver]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""Our Spark formats where strangers run them: a standalone cluster, Apache's broker, Spark Connect, a Declarative Pipeline."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq import Admin, Message, Producer, PullConsumer
from kappamq.errors import NotSupported
from kappamq.spark import connection
from kappamq.spark.columns.schema import STORE_COLUMNS
from kappamq.spark.sink import scopes
from kappamq.spark.sink.options import ExactlyOnce, WriteOptions
from kappamq.spark.store.options import StoreOptions
from kappamq.spark.store.source import LogTableReader
from tests.interop import spark_servers
from tests.interop.targets import ApacheTarget, KappaTarget, Target

pytestmark = pytest.mark.spark

COUNT = 1000
FOUND = {
    "rows": COUNT, "distinct": COUNT, "bodies": COUNT, "tags": COUNT // 2, "keys": 2, "filter": 10, "until": COUNT, "since": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KappaTarget]:
    target = KappaTarget(tmp_path_factory.mktemp("kappamq")).start()
    yield target
    target.kill()


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheTarget]:
    target = ApacheTarget(tmp_path_factory.mktemp("apache")).start()
    yield target
    target.kill()


def fill(target: Target, topic: str) -> None:
    with Admin(target.nameserver) as admin:
        for name in (topic, f"{topic}_copy"):
            admin.create_topic(name, queues=3)
    with Producer(target.nameserver, group="orders") as producer:
        for first in range(0, COUNT, 50):
            producer.send_batch([order(topic, number) for number in range(first, first + 50)])


def order(topic: str, number: int) -> Message:
    tag = "even" if number % 2 == 0 else "odd"
    return Message(topic, b"order %d" % number, tags=tag, keys=(f"k{number}",), properties={"number": str(number)})


def scenario(place: str, target: Target, topic: str, folder: Path) -> Any:
    fill(target, topic)
    command = [sys.executable, "-m", "tests.interop.spark_scenario", place, target.nameserver, topic, str(folder)]
    environment = {**os.environ, **spark_servers.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def bodies(target: Target, topic: str) -> Counter[bytes]:
    with PullConsumer(target.nameserver, group="look") as consumer:
        return Counter(
            message.body
            for queue in consumer.queues(topic)
            for message in consumer.read(queue, consumer.min_offset(queue))
        )


def check_copies(target: Target, topic: str) -> None:
    """A batch and a stream have written every order, and nothing failed: each is there twice."""
    assert bodies(target, f"{topic}_copy") == {b"order %d" % number: 2 for number in range(COUNT)}


def test_a_standalone_cluster(ours: KappaTarget, tmp_path: Path) -> None:
    """Two workers on two hosts; a task of which two attempts are alive at once; and what the doctor says about the executors."""
    with spark_servers.cluster(tmp_path) as master:
        found = scenario(master, ours, "cluster", tmp_path)
        assert found == {
            "batch": FOUND,
            "streamed": COUNT,
            "streamed twice": COUNT,
            "two attempts": True,
            "hosts": list(spark_servers.HOSTS),
        }
        check_copies(ours, "cluster")
        code, findings = doctor(master)
        assert code == 0, findings
        assert {one["health"] for one in findings if one["what"].startswith("executor on ")} == {"ok"}
        bare = os.path.realpath(sys.executable)
        code, findings = doctor(master, PYSPARK_PYTHON=bare)
        (executor,) = [one for one in findings if one["what"].startswith("executor on ")]
        assert (code, executor["health"]) == (1, "bad")
        assert "lacks kappamq" in executor["text"]
        assert "msgspec" in executor["text"]
    with Admin(ours.nameserver) as admin:
        progress = admin.consumer_progress("spark-scenario").values()
    assert sum(at.consumer_offset for at in progress) == COUNT
    assert all(at.consumer_offset == at.broker_offset for at in progress)


def doctor(master: str, **environment: str) -> tuple[int, list[dict[str, str]]]:
    command = [sys.executable, "-m", "kappamq", "doctor", "--offline", "--master", master, "-o", "json"]
    ran = subprocess.run(
        command,
        env={**os.environ, **spark_servers.environment(), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]


def test_apaches_broker(apache: ApacheTarget, tmp_path: Path) -> None:
    """Through the broker, and its data directory as a table while it runs."""
    found = scenario("local[2]", apache, "apache", tmp_path)
    assert found == {"batch": FOUND, "streamed": COUNT}
    check_copies(apache, "apache")
    options = StoreOptions.parse({"path": str(apache.store), "topic": "apache", "minPartitions": "4"})
    reader = LogTableReader(options, tuple(STORE_COLUMNS))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert Counter(row["body"] for row in rows) == {b"order %d" % number: 1 for number in range(COUNT)}
    assert all(row["damage"] is None for row in rows)


def test_spark_connect(ours: KappaTarget, tmp_path: Path) -> None:
    with spark_servers.connect_server(tmp_path) as server:
        assert scenario(server, ours, "connect", tmp_path) == {"batch": FOUND, "streamed": COUNT}
    check_copies(ours, "connect")


FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("copies", "kappamq", {{"nameservers": "{nameserver}", "topic": "{topic}_copy"}})


@dp.table(name="bronze")
def bronze():
    return spark.readStream.format("kappamq").option("nameservers", "{nameserver}").option("topic", "{topic}").load()


@dp.append_flow(target="copies", name="to_copies")
def to_copies():
    return spark.readStream.table("bronze").select("body", "tags")
"""


def test_a_declarative_pipeline(ours: KappaTarget, tmp_path: Path) -> None:
    """A topic becomes a streaming table, and that a topic."""
    fill(ours, "pipeline")
    printed = spark_servers.run_pipeline(tmp_path, FLOWS.format(nameserver=ours.nameserver, topic="pipeline"))
    assert bodies(ours, "pipeline_copy") == {b"order %d" % number: 1 for number in range(COUNT)}, printed


def test_exactly_once_is_refused_by_apaches_broker(apache: ApacheTarget) -> None:
    """At the start, soon, and with what to do instead."""
    options = WriteOptions(nameservers=apache.nameserver, topic="bills", exactly_once=ExactlyOnce("bills"))
    for owner in (None, "query"):
        began = time.monotonic()
        with pytest.raises(
            NotSupported, match=r"broker .* does not know batch transactions, .* write with at-least-once delivery"
        ):
            scopes.check_start(options, owner)
        assert time.monotonic() - began < 5
    connection.close_all()

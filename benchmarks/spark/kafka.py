"""Kafka and Spark's own connector for it, the same read and write side by side with ours."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure
from benchmarks.process import Child, ProcessFailed
from benchmarks.spark import once
from benchmarks.spark.lab import BODY, QUEUES, Filled, Lab, Took, compared
from tests.interop import jars
from tests.interop.process import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVER: Final = jars.Bundle(name="kafka", version="4.1.0", group="org.apache.kafka", artifacts=("kafka_2.13",))
# The newest that Maven Central has; PySpark may be newer. Its project names a mirror that is asked for what it depends on, so that
# is named here: Maven then asks Central alone.
CONNECTOR: Final = jars.Bundle(
    name="spark-kafka",
    version="4.2.0",
    group="org.apache.spark",
    artifacts=(
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    alone=True,
)
OURS, ONCE, KAFKA = "KappaMQ", "KappaMQ exactly once", f"Kafka {SERVER.version}"
GOAL: Final = 1.0
ONCE_GOAL: Final = 0.7
"""Spark's sink for Kafka writes at least once."""
READY_S_MAX: Final = 60.0
HEAP_MB: Final = 1024
FORMAT: Final = "kafka.tools.StorageTool"
PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions={queues}
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def run(lab: Lab) -> list[Figure]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not connected(lab):
        why = "this session has no spark-sql-kafka: `make bench-spark` starts one that has"
        return [Figure("kafka", f"read, {OURS} / {KAFKA}", None, at_least=GOAL, note=why)]
    figures: list[Figure] = []
    for body in lab.bodies:
        with lab.bench.folder(on_disk=True) as home, lab.filled(body) as filled, running(home) as kafka:
            try:
                figures += _compare(lab, filled, kafka, home, body)
            except (PySparkException, Py4JError) as error:  # what was measured before counts
                why = str(error).strip().splitlines()[-1][:200]
                figures.append(Figure("kafka", f"{body} B: FAILED", None, at_least=GOAL, note=why))
    return figures


def connected(lab: Lab) -> bool:
    return "spark-sql-kafka" in lab.spark.conf.get("spark.jars", "")


def connector_jars() -> str:
    """What `spark.jars` has to be. Raises jars.Missing."""
    return ",".join(str(path) for path in sorted(jars.directory(CONNECTOR).glob("*.jar")))


def _compare(lab: Lab, filled: Filled, kafka: Kafka, home: Path, body: int) -> list[Figure]:
    table = once.rows_of(lab, filled, home)
    pids = {OURS: filled.broker.process.pid, ONCE: filled.broker.process.pid, KAFKA: kafka.child.pid}

    def write(name: str, number: int) -> None:
        # A topic of its own each time: what is read later is what one write has written.
        topic = f"{'once' if name == ONCE else 'written'}-{body}-{number}"
        if name == KAFKA:
            values = table.withColumnRenamed("body", "value")
            values.write.format("kafka").options(**kafka.options).option("topic", topic).mode("append").save()
        else:
            _create(filled, topic)
            once.write(table, filled, once.ONCE if name == ONCE else once.PLAIN, topic, number)

    numbers = {OURS: 0, ONCE: 0, KAFKA: 0}

    def written(name: str) -> Took:
        numbers[name] += 1
        return lab.take(lambda: write(name, numbers[name]), pids[name])

    def read(name: str) -> Took:
        return lab.read(_table(lab, filled, kafka, name, f"written-{body}-1"), pids[name])

    rounds = lab.rounds((OURS, ONCE, KAFKA), written)
    figures = compared("kafka", f"write {body} B", rounds, OURS, KAFKA, filled.count, GOAL)
    figures += compared("kafka", f"write {body} B", rounds, ONCE, KAFKA, filled.count, ONCE_GOAL)[::2]
    rounds = lab.rounds((OURS, KAFKA), read)
    figures += compared("kafka", f"read {body} B", rounds, OURS, KAFKA, filled.count, GOAL)
    for name in (OURS, KAFKA):
        found = _table(lab, filled, kafka, name, f"written-{body}-1").count()
        assert found == filled.count, f"{filled.count} rows were written to {name}, {found} are there"
    return figures


def _table(lab: Lab, filled: Filled, kafka: Kafka, name: str, topic: str) -> DataFrame:
    """Body, queue and offset of a topic."""
    if name == KAFKA:
        table = lab.spark.read.format("kafka").options(**kafka.options).option("subscribe", topic).load()
        return table.select("value", "partition", "offset")
    return lab.table("kappamq", {**filled.source, "topic": topic}, BODY)


def _create(filled: Filled, topic: str) -> None:
    from kappamq.client import Admin

    with Admin(filled.nameservers) as admin:
        admin.create_topic(topic, queues=QUEUES)


class Kafka:
    """A running server and where it listens."""

    def __init__(self, child: Child, port: int) -> None:
        self.child, self.port = child, port

    @property
    def options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": f"127.0.0.1:{self.port}"}


@contextmanager
def running(home: Path) -> Iterator[Kafka]:
    """One node, broker and controller in one process (KRaft), with Kafka's defaults."""
    port, controller = free_port(), free_port()
    config = home / "server.properties"
    config.write_text(PROPERTIES.format(port=port, controller=controller, logs=home / "logs", queues=QUEUES))
    java = [
        jars.java_tool("java"),
        f"-Xms{HEAP_MB}m",
        f"-Xmx{HEAP_MB}m",
        "-XX:+UseG1GC",
        "-cp",
        jars.class_path(SERVER),
    ]
    formatting = [*java, FORMAT, "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(config)]
    done = subprocess.run(formatting, capture_output=True, text=True, timeout=READY_S_MAX, check=False)
    if done.returncode:
        raise ProcessFailed(f"Kafka could not prepare its folder:\n{done.stdout}{done.stderr}")
    with Child([*java, "kafka.Kafka", str(config)], home / "run") as child:
        _wait_for(port, child)
        yield Kafka(child, port)


def _wait_for(port: int, child: Child) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if not child.running or time.monotonic() > deadline:
                raise ProcessFailed(f"Kafka is not ready:\n{child.complaint()}") from None
            time.sleep(0.1)

"""Spark's own servers, as pip's pyspark brings them: a standalone master with workers, a Connect server, the pipelines command."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kappamq.spark import java
from tests.interop.process import Process, free_port

SECONDS_MAX = 120
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Two hosts, as far as Spark can see: it never runs two attempts of a task on the same one."""
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment(host: str = HOSTS[0], **more: str) -> dict[str, str]:
    return {
        "JAVA_HOME": str(java.home(java.find())),
        "SPARK_HOME": str(home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": host,
        **more,
    }


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers with a core each; yields the master's address."""
    port = free_port()
    spark_class, deploy = str(home() / "bin" / "spark-class"), "org.apache.spark.deploy"
    with ExitStack() as stack:

        def start(name: str, host: str, *arguments: str) -> Process:
            log = folder / f"{name}.log"
            command = [spark_class, f"{deploy}.{arguments[0]}", "--host", host, *arguments[1:]]
            options = {"SPARK_DAEMON_JAVA_OPTS": SMALL_JVM, "SPARK_DAEMON_MEMORY": "256m"}
            process = Process(command, log, env=environment(host, **options))
            stack.callback(process.kill)
            return process

        master = start("master", HOSTS[0], "master.Master", "--port", str(port), "--webui-port", str(free_port()))
        master.wait_until(lambda: is_open(HOSTS[0], port), "Spark's master", SECONDS_MAX)
        address = f"spark://{HOSTS[0]}:{port}"
        for number, host in enumerate(HOSTS):
            place = str(folder / f"work-{number}")
            web = str(free_port())
            start(
                f"worker-{number}", host, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", place,
                "--webui-port", web, address,
            )  # fmt: skip
        master.wait_until(lambda: master.tail(100_000).count("Registering worker") >= 2, "two workers", SECONDS_MAX)
        yield address


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Connect server on two threads; yields its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": HOSTS[0],
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [str(home() / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    process = Process([*command, "spark-internal"], folder / "connect.log", env=environment())
    try:
        process.wait_until(lambda: is_open(HOSTS[0], port), "Spark's Connect server", SECONDS_MAX)
        yield f"sc://{HOSTS[0]}:{port}"
    finally:
        process.kill()


def run_pipeline(folder: Path, definitions: str) -> str:
    """One run of a Declarative Pipeline with these definitions; returns what it printed."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "conf").mkdir()
    (folder / "transformations" / "flows.py").write_text(definitions)
    (folder / "spark-pipeline.yml").write_text(
        f"name: tea\nstorage: {(folder / 'storage').as_uri()}\ndatabase: default\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    # Static settings are taken from this file only: the specification and the command line come too late for them.
    (folder / "conf" / "spark-defaults.conf").write_text(
        f"spark.ui.enabled false\nspark.sql.warehouse.dir {folder / 'warehouse'}\n"
        f"spark.driver.extraJavaOptions {SMALL_JVM}\nspark.sql.shuffle.partitions 1\n"
    )
    ran = subprocess.run(
        [str(home() / "bin" / "spark-pipelines"), "run", "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder,
        env={**os.environ, **environment(SPARK_CONF_DIR=str(folder / "conf"))},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout + ran.stderr

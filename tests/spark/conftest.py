"""One Spark for all tests: starting the JVM takes longer than most of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from kappamq.spark import connection
from tests.needs import in_ci

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MISSING = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
if MISSING and os.environ.get("SPARK") != "0" and in_ci():
    raise RuntimeError(f"{', '.join(MISSING)} is not installed, so nothing of Spark is tested: make setup, or SPARK=0")
collect_ignore_glob = ["*"] if MISSING else []


@pytest.fixture(autouse=True, scope="module")
def clients_of_this_process_are_closed() -> Iterator[None]:
    """Tests that call readers and writers directly have made them in this process, not in a worker of Spark's."""
    yield
    connection.close_all()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads; a task that fails is tried again once, as on a cluster."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    yield session
    session.stop()

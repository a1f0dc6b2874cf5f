"""Starts Spark so that installing with the extra `spark` is all that is needed; for our commands and for applications.

from kappamq.spark.engine import session
spark = session()                                # this machine, all cores
spark = session("spark://host:7077")             # a cluster: see docs/PIPELINE.md for what its nodes need
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kappamq.errors import ConfigError, KappaError
from kappamq.spark import gateway, java
from kappamq.spark.failures import our_error, sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("pyspark", "pyarrow", "numpy")
"""Required packages, on the driver as on executors."""
PROGRAMS: Final = ("bash", "dirname")
"""Programs that Spark's start scripts need on the PATH."""
INSTALL: Final = java.INSTALL
LOCAL: Final = "local[*]"
PYSPARK_OLDEST: Final = (4, 2)
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


class SparkFailed(KappaError):
    """Spark failed for a reason outside of KappaMQ."""


def session(
    master: str | None = None, app_name: str = "kappamq", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session; one that is already running in this process is used unchanged. Raises ConfigError, which says what is missing.

    `config` overrides everything that is set here."""
    check_installed()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    place = master or os.environ.get("SPARK_MASTER") or LOCAL
    _set_environment(is_local(place))
    builder = SparkSession.builder.master(place).appName(app_name)
    for name, value in {**defaults(place), **(config or {})}.items():
        builder = builder.config(name, value)
    with told(), gateway.ended_if_interrupted():
        return builder.getOrCreate()


@contextmanager
def command_session(
    master: str | None = None, app_name: str = "kappamq", config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for one job of a program that then ends: Ctrl-C ends Spark with it, without a stack trace."""
    handler = signal.getsignal(signal.SIGINT)
    with gateway.without_py4j_tracebacks():
        spark = session(master, app_name, config)
        with gateway.stopped_at_end(spark, handler):
            yield spark


def check_installed() -> None:
    """Raise ConfigError, which names the missing packages and how to install them."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"Spark cannot be used here: {not_installed(missing)}. {INSTALL} installs everything that is needed"
        )
    import pyspark

    check_version(pyspark.__version__)


def not_installed(names: Sequence[str]) -> str:
    """`numpy is not installed`, `pyarrow, numpy are not installed`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not installed"


def check_version(version: str) -> None:
    """Raise ConfigError if this PySpark is too old."""
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < PYSPARK_OLDEST:
        oldest = ".".join(map(str, PYSPARK_OLDEST))
        raise ConfigError(f"PySpark {version} is too old: {oldest} or newer is needed. {INSTALL}")


def is_local(master: str) -> bool:
    return master.startswith("local")


def defaults(master: str) -> dict[str, str]:
    """Return our defaults: nothing listens beyond this machine, no web page, little output."""
    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Over TCP, Spark leaves Nagle's algorithm on: each task waits 40 ms for an acknowledgement that its peer delays.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if is_local(master):
        found |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
        # Spark's default of 200 is for clusters; a streaming aggregate would keep 200 stores of state on one machine.
        found["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    return found


def _set_environment(local: bool) -> None:
    """Set what Spark reads only from the environment. Otherwise it would start the first `python3` and `java` on the PATH."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # nodes may have another path: keep the user's setting
    os.environ["JAVA_HOME"] = str(java.home(java.find()))


@contextmanager
def told() -> Iterator[None]:
    """Turn errors from Spark into ours: the error of our source or sink, else Spark's own without Java's stack."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as failure:
        ours = our_error(failure)
        if ours is None:
            ours = SparkFailed(sentence(failure))
        raise ours from failure

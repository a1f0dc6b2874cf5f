"""The Java process behind PySpark, and how Ctrl-C ends it.

PySpark starts Java so that it ignores Ctrl-C. An interrupted start would leave it running for ever: Java cannot report its port to
PySpark any more. An interrupted job would print a stack trace for each pending call.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_PATIENCE_S: Final = 5.0
"""How long Java gets to remove its temporary directories before it is killed."""


@contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """Wraps the start of Spark: an interrupt ends the Java process that was started, so the next start begins afresh."""
    from pyspark import java_gateway as untyped

    java_gateway: Any = untyped
    started: list[subprocess.Popen[bytes]] = []
    real = java_gateway.Popen

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            started.append(self)  # before the process exists: an interrupt may come while it is being created
            super().__init__(*arguments, **options)

    java_gateway.Popen = Noted
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for process in started:
            end(process)
        if started:
            _forget()
        raise
    finally:
        java_gateway.Popen = real


@contextmanager
def stopped_at_end(spark: SparkSession, before: Any) -> Iterator[None]:
    """Wraps the work of a command: Ctrl-C ends Java at once and raises KeyboardInterrupt, whatever errors the calls under way raise.

    `before` is the signal handler to put back: the present one is PySpark's, which calls Java, also from within such a call."""
    process = _running()
    if process is None or threading.current_thread() is not threading.main_thread():
        try:
            yield
        finally:
            spark.stop()
        return
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        nonlocal interrupted
        interrupted = True
        process.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            yield
        finally:
            if not interrupted:
                spark.stop()
    except BaseException as error:
        if interrupted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        if interrupted:
            end(process)
            _forget()
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_py4j_tracebacks() -> Iterator[None]:
    """Silence py4j, which logs each interrupted call with its stack, although it also raises the error. PySpark does the same for a
    failed query."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != "py4j"

    # Some go through a logger of its own, some through the root.
    levels = {logger: logger.level for logger in map(logging.getLogger, ("py4j", *_QUERY_LOGGERS))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(is_wanted)
    try:
        yield
    finally:
        logging.root.removeFilter(is_wanted)
        for logger, level in levels.items():
            logger.setLevel(level)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that may not even have begun; a second Ctrl-C does not wait."""
    if getattr(process, "pid", None) is None:
        return
    try:
        process.terminate()
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()


def _running() -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def _forget() -> None:
    """Clear PySpark's references to its Java process: calls to one that is gone would fail."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    context._gateway = context._jvm = context._active_spark_context = None
    session: Any = SparkSession
    session._instantiatedSession = None

"""Errors without stack traces: when an error leaves one of Spark's Python processes, and when Spark raises it on the driver.

Spark turns an exception of a source into text: `[PYTHON_DATA_SOURCE_ERROR] ... Traceback ... kappamq.errors.ConfigError: our sentence`,
with Java's stack behind it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, Final, TypeVar

from kappamq import errors
from kappamq.errors import KappaError

_CALLED: Final = (
    "schema", "reader", "writer", "streamReader", "streamWriter", "partitions", "read", "initialOffset", "latestOffset",
    "prepareForTriggerAvailableNow", "reportLatestOffset", "getDefaultReadLimit", "write", "commit", "abort",
)  # fmt: skip
"""The methods of sources, readers and writers that Spark calls."""
_OURS: Final = re.compile(
    r"kappamq\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: |\n\s*at |\n\n|\nDriver stacktrace|\Z)", re.DOTALL
)
_JAVA: Final = re.compile(r"\n\s*(at |JVM stacktrace|=== Streaming Query)")

C = TypeVar("C", bound=type)


def without_traceback(kind: C) -> C:
    """Class decorator: a KappaError that leaves a method which Spark calls is reported as a sentence, without a traceback.

    Only in Spark's own Python processes, which end with it. Any other error is a bug and keeps its traceback."""
    for name in _CALLED:
        method = kind.__dict__.get(name)
        if callable(method):
            setattr(kind, name, _told(method))
    return kind


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        try:
            found = method(*arguments, **options)
        except KappaError:
            _hide_traceback()
            raise
        return _told_rows(found) if isinstance(found, GeneratorType) else found

    return wrapper


def _told_rows(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except KappaError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    if in_spark_process():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # PySpark looks at it when it writes the error for the JVM


def in_spark_process() -> bool:
    """Return whether this is a planner or worker that Spark started, not a user's program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def our_error(failure: BaseException) -> KappaError | None:
    """Return the error that our source or sink raised inside Spark; None if it was not one of ours."""
    at: BaseException | None = failure
    while at is not None:
        if isinstance(at, KappaError):
            return at
        found = _OURS.search(str(at))
        if found is not None:
            kind = getattr(errors, found[1], KappaError)
            return kind(found[2].strip()) if issubclass(kind, KappaError) else KappaError(found[2].strip())
        at = at.__cause__
    return None


def sentence(failure: BaseException) -> str:
    """Return Spark's text about a failure that is not ours, without Java's stack."""
    text = str(failure) or type(failure).__name__
    return _JAVA.split(text, maxsplit=1)[0].strip()

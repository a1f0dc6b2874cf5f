"""The error of a failed pipeline: the dataset, our text, and the row if the data is at fault."""

from __future__ import annotations

import re
from typing import Final

from kappamq.errors import ConfigError, KappaError
from kappamq.spark.failures import our_error

ROW_REFUSED: Final = "cannot be a message"
"""Appears in the error text of a sink that refuses a row."""
_FLOW: Final = re.compile(r"flow:? '?([\w.`]+)'? has FAILED|resolve flow:? '?([\w.`]+)'?", re.IGNORECASE)
_PREFIX: Final = re.compile(r"^.*?terminated with exception: ", re.DOTALL)
_END: Final = re.compile(
    r"\s+SQLSTATE: |\n\s*at |\n== |\n=== |\nJVM stacktrace|\nDriver stacktrace|\nError:|\n  File \"", re.DOTALL
)
_DATA_STATE: Final = re.compile(r"SQLSTATE: 22")
_PYTHON: Final = re.compile(r"\n(\w*(?:Error|Exception): [^\n]+)")


class PipelineFailed(KappaError):
    """A dataset of a pipeline could not be computed."""


def failed_flow(event: str) -> str | None:
    """Return the flow that an event of Spark Declarative Pipelines reports as failed."""
    found = _FLOW.search(event)
    return (found[1] or found[2]) if found is not None else None


def short(text: str) -> str:
    """Return the relevant sentence of Spark's text about a failure, without Java's stack."""
    inner = _PREFIX.sub("", text, count=1)
    if "Traceback (most recent call last)" in inner and (raised := _PYTHON.findall(inner)):
        return str(raised[-1]).strip()
    return " ".join(_END.split(inner, maxsplit=1)[0].split()) or "it failed without an explanation"


def is_about_data(text: str) -> bool:
    """Return whether a row may be at fault: a value that cannot be computed, an exception in the user's code, a row that a sink refuses."""
    ours = our_error(Exception(text))
    if ours is not None:
        return ROW_REFUSED in str(ours)
    return _DATA_STATE.search(text) is not None or "PythonException" in text or "UDF" in text


def explained(dataset: str | None, text: str, row: str | None = None) -> KappaError:
    """Return the error to raise. Ours keeps its class, and so its exit code, unless a row is at fault: then nothing else is wrong."""
    ours = our_error(Exception(text))
    where = f"dataset {dataset}: " if dataset else ""
    if row is None and ours is not None and not (isinstance(ours, ConfigError) and ROW_REFUSED in str(ours)):
        try:
            return type(ours)(f"{where}{ours}")
        except TypeError:
            return PipelineFailed(f"{where}{ours}")
    sentence = str(ours) if ours is not None else short(text)
    return PipelineFailed(f"{where}{row}: {sentence}" if row else f"{where}{sentence}")

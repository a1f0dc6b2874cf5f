"""What is said of a pipeline that failed: the dataset, our sentence, and the row where the data is at fault."""

from __future__ import annotations

import re
from typing import Final

from kappamq.errors import ConfigError, KappaError
from kappamq.spark.failures import our_error

ROW_REFUSED: Final = "cannot be a message"
"""In the sentence of a sink that refuses a row."""
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
    """Return the flow of which an event of Spark Declarative Pipelines says that it failed."""
    found = _FLOW.search(event)
    return (found[1] or found[2]) if found is not None else None


def short(text: str) -> str:
    """Return the sentence of Spark's text about a failure: what went wrong, without where in Java."""
    inner = _PREFIX.sub("", text, count=1)
    if "Traceback (most recent call last)" in inner and (raised := _PYTHON.findall(inner)):
        return str(raised[-1]).strip()
    return " ".join(_END.split(inner, maxsplit=1)[0].split()) or "it failed without an explanation"


def is_about_data(text: str) -> bool:
    """Whether a row may be at fault: a value that cannot be computed, code of the user that raised, a row that a sink refuses."""
    ours = our_error(Exception(text))
    if ours is not None:
        return ROW_REFUSED in str(ours)
    return _DATA_STATE.search(text) is not None or "PythonException" in text or "UDF" in text


def explained(dataset: str | None, text: str, row: str | None = None) -> KappaError:
    """Return the error to raise. Ours keeps its class, and so its exit code, unless a row is at fault: then nothing is wrong outside."""
    ours = our_error(Exception(text))
    where = f"dataset {dataset}: " if dataset else ""
    if row is None and ours is not None and not (isinstance(ours, ConfigError) and ROW_REFUSED in str(ours)):
        try:
            return type(ours)(f"{where}{ours}")
        except TypeError:
            return PipelineFailed(f"{where}{ours}")
    sentence = str(ours) if ours is not None else short(text)
    return PipelineFailed(f"{where}{row}: {sentence}" if row else f"{where}{sentence}")

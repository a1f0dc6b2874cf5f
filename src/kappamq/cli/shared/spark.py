"""Options of commands that start Spark, and its session for one job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.shared.usage import wrong
from kappamq.interrupts import SAME_SIGNAL_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kappamq.cli.shared.output import Output

MasterOption = Annotated[
    str | None, typer.Option(help="Where Spark runs; default: this machine, all cores.", show_default=False)
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A property of Spark; may be repeated.")
]

RUN_AGAIN = "interrupted: run the same command again, which finishes or replaces what this one began"


@contextmanager
def spark_session(
    out: Output,
    master: str | None,
    conf: list[str] | None,
    name: str,
    properties: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark for a job; `conf` overrides `properties`. Ctrl-C ends it."""
    from kappamq.spark.engine import command_session

    config = {**(properties or {}), **properties_given(conf)}
    out.note("starting Spark ...")
    try:
        with command_session(master, name, config) as spark:
            yield spark
    except KeyboardInterrupt:
        raise KeyboardInterrupt(RUN_AGAIN) from None


@contextmanager
def asked_to_stop(now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[], bool]]:
    """Wraps work that goes on until Ctrl-C: yields a function that returns whether it came. A second Ctrl-C, later than
    SAME_SIGNAL_S behind the first, ends everything at once."""
    asked_s: float | None = None
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked_s
        if asked_s is None:
            asked_s = now()
        elif now() - asked_s >= SAME_SIGNAL_S:
            signal.signal(signal.SIGINT, before)
            if callable(before):
                before(number, frame)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked_s is not None
    finally:
        signal.signal(signal.SIGINT, before)


def properties_given(conf: list[str] | None) -> dict[str, str]:
    """Convert `--conf name=value ...`. A malformed one ends the command."""
    found = {}
    for text in conf or []:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise wrong("--conf", f"{text}: write it as name=value")
        found[key.strip()] = value
    return found

"""Audits a store: messages lost, duplicated, reordered or late, and hot spots. The report is a folder with tables and a page.

The log is read once (twice, if there are traces) into a table beside the report, which the rules then query. The store is
neither locked nor written. A run that is killed leaves the previous report unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kappamq.errors import ConfigError
from kappamq.protocol.names import TRACE_TOPIC
from kappamq.spark.engine import check_installed
from kappamq.spark.jobs.audit_facts import known_topics, refuse_unknown
from kappamq.spark.jobs.audit_folder import ReportFolder
from kappamq.spark.jobs.audit_page import render
from kappamq.spark.jobs.audit_report import Report
from kappamq.spark.store.options import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kappamq.spark.jobs.audit_run import Progress

LATE_MS: Final = 10_000
TOLERANCE_MS: Final = 1000
TOP: Final = 50
EXAMPLES: Final = 100


def audit(
    spark: SparkSession,
    store: str | Path,
    target: str | Path,
    *,
    topics: Sequence[str] = (),
    topic_pattern: str | None = None,
    late_ms: int = LATE_MS,
    tolerance_ms: int = TOLERANCE_MS,
    trace_topic: str = TRACE_TOPIC,
    top: int = TOP,
    examples: int = EXAMPLES,
    progress: Progress | None = None,
) -> Report:
    """Audit the data directory `store` and write the report to the directory `target`, which is replaced as a whole.

    Both must be seen by the driver and all executors. `topics` or `topic_pattern` choose the topics; default: all but the broker's
    own. Raises ConfigError (NoSuchTopic), StoreError, SparkFailed."""
    check_installed()
    for name, value in {"late_ms": late_ms, "tolerance_ms": tolerance_ms, "top": top, "examples": examples}.items():
        if value < (0 if name.endswith("_ms") else 1):
            raise ConfigError(f"{name}={value} is too small")
    options = check_audit(store, target, topics, topic_pattern)
    from kappamq.spark.jobs.audit_run import Run

    with ReportFolder(_directory(target)) as folder:
        run = Run(spark, Path(store).absolute(), options, folder.new, trace_topic, top, examples)
        report = run.run(late_ms, tolerance_ms, progress or (lambda _what, _done, _total: None))
        report.write(folder.new)
        (folder.new / "index.html").write_text(render(report), encoding="utf-8", errors="replace")
        folder.publish()
    return report


def check_audit(
    store: str | Path, target: str | Path, topics: Sequence[str] = (), topic_pattern: str | None = None
) -> StoreOptions:
    """Check everything that does not need Spark, which is slow to start. Raises ConfigError (NoSuchTopic), StoreError. Changes nothing."""
    options = _options(store, topics, topic_pattern)
    source, place = Path(store).absolute(), _directory(target)
    if place == source or source in place.parents:
        raise ConfigError(f"the report cannot be {place}: that is inside the store; choose another directory")
    ReportFolder(place).check()
    if known := known_topics(source):  # else only the log has them
        refuse_unknown(source, options.topics, known)
    return options


def _options(store: str | Path, topics: Sequence[str], topic_pattern: str | None) -> StoreOptions:
    """As options of the format `kappamq.store`, which validates them."""
    given = {"path": str(store)}
    if topics:
        given["topic"] = ",".join(topics)
    if topic_pattern is not None:
        given["topicPattern"] = topic_pattern
    return StoreOptions.parse(given)


def _directory(target: str | Path) -> Path:
    if re.match(r"[a-z0-9]+://", str(target)):
        raise ConfigError(f"{target}: the report must be a directory of this machine or of a shared file system")
    return Path(target).absolute()

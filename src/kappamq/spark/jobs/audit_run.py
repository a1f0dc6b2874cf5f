"""One audit: the log as a table on disk, the rules one after the other, their findings as a report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kappamq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_system_group, is_system_topic
from kappamq.spark.engine import told
from kappamq.spark.jobs import audit_queries as queries
from kappamq.spark.jobs import audit_tables as tables
from kappamq.spark.jobs.audit_facts import Facts, begins_now, gather, refuse_unknown
from kappamq.spark.jobs.audit_report import Report
from kappamq.spark.jobs.audit_rules import missing_ends, offset_findings
from kappamq.spark.store.options import StoreOptions
from kappamq.store.reader import QueueRange

_STEPS: Final = (
    "reading the log", "counting", "reading traces", "looking for lost messages", "looking for duplicates", "checking the order",
    "measuring times", "writing the report",
)  # fmt: skip

Progress = Callable[[str, int, int], None]
"""Called with the present step, the number of steps done, and the total."""


class Run:
    """One audit."""

    def __init__(
        self, spark: SparkSession, store: Path, options: StoreOptions, folder: Path, trace_topic: str, top: int, examples: int
    ) -> None:  # fmt: skip
        self._spark = spark
        self._store = store
        self._options = options
        self._work = folder / "_work"
        self._trace_topic = trace_topic
        self._top = top
        self._examples = examples

    def run(self, late_ms: int, tolerance_ms: int, progress: Progress) -> Report:
        steps = iter(range(len(_STEPS)))

        def step() -> None:
            number = next(steps)
            progress(_STEPS[number], number, len(_STEPS))

        facts = gather(self._store)
        report = Report(
            store=self._store, made_ms=int(time.time() * 1000), log_min=facts.log_min, log_end=facts.log_end, late_ms=late_ms,
            tolerance_ms=tolerance_ms, trace_topic=self._trace_topic, remarks=facts.notes,
            only_topics=self._options.topics, only_pattern=self._options.topic_pattern,
        )  # fmt: skip
        with told():
            step()
            self._read()
            step()
            self._count(facts, report)
            step()
            self._read_traces(report)
            step()
            self._lost(facts, report)
            step()
            self._duplicated(facts, report)
            step()
            self._reordered(report)
            step()
            self._late(facts, report)
            step()
        self._drop()
        progress("done", len(_STEPS), len(_STEPS))
        return report

    # -- tables ----------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._table = self._kept(queries.messages(self._spark, str(self._store), self._trace_topic), "messages")
        self._log_min, self._begins = begins_now(self._store)
        self._deleted = queries.deleted_meanwhile(self._table)

    def _read_traces(self, report: Report) -> None:
        self._trace: DataFrame | None = None
        if any(queue["topic"] == self._trace_topic for queue in self._by_queue):
            self._trace = self._kept(queries.traces(self._spark, str(self._store), self._trace_topic), "traces")
            report.trace_events = self._trace.count()
        else:
            report.remarks.append(
                f"no traces found in {self._trace_topic}, so the audit relies on the log and committed offsets only"
            )

    def _kept(self, frame: DataFrame, name: str) -> DataFrame:
        """Write it to disk, since it is used many times, and may be larger than the memory."""
        path = (self._work / name).as_uri()
        frame.write.option("compression", "lz4").parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)

    def _drop(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)

    # -- what is there ---------------------------------------------------------------------------------------------------

    def _count(self, facts: Facts, report: Report) -> None:
        self._by_queue = tables.queues(self._table)
        every = tables.topics(self._by_queue)
        report.records = sum(row["messages"] for row in every)
        report.record_bytes = sum(row["bytes"] for row in every)
        known = {*(row["topic"] for row in every), *(queue.topic for queue in facts.queues), *(facts.topics or ())}
        refuse_unknown(self._store, self._options.topics, known)
        if self._options.topic_pattern is not None and not any(map(self._options.wants, known)):
            report.remarks.append(
                f"no topic matches the pattern {self._options.topic_pattern!r}: nothing was looked at"
            )
        chosen = [row for row in every if self._options.wants(row["topic"])]
        self._choose(every, chosen, facts)
        looked_at = [row for row in chosen if row["kind"] != queries.SYSTEM]
        report.messages = sum(row["messages"] for row in looked_at)
        report.message_bytes = sum(row["bytes"] for row in looked_at)
        if looked_at:
            report.first_ms = min(row["first_ms"] for row in looked_at)
            report.last_ms = max(row["last_ms"] for row in looked_at)
            report.width_ms = tables.bucket_ms(report.first_ms, report.last_ms)
        report.tables["topics"] = every if self._is_whole else looked_at
        report.tables |= tables.heavy(self._users, self._top)
        report.tables["rates"] = tables.rates(self._users, report.width_ms)
        self._offsets = {
            key: at for key, at in facts.offsets.items() if not is_system_group(key[0]) and key[1] in self._all_topics
        }
        self._offset_rows = queries.offset_rows(self._spark, self._offsets)
        unread = tables.behind(self._table, self._offset_rows)
        report.tables["groups"] = tables.groups(self._offsets, unread, every, report.last_ms or 0)

    def _choose(self, every: tables.Rows, chosen: tables.Rows, facts: Facts) -> None:
        """Choose the messages that the rules check: those of users, those that consumers read, and those in queues on the way there."""
        self._queue_topics = [row["topic"] for row in chosen if row["kind"] != queries.SYSTEM]
        self._all_topics = {*self._queue_topics, *(queue.topic for queue in facts.queues if self._is_read(queue.topic))}
        topic, kind = sql.col("topic"), sql.col("kind")
        if self._is_whole:
            waiting = {SCHEDULE_TOPIC, TIMER_TOPIC}
            self._all_topics |= waiting & {row["topic"] for row in every}
            self._users = self._table.where(kind == queries.USER)
            self._read_by_consumers = self._table.where(kind != queries.SYSTEM)
            self._queued = self._table.where((kind != queries.SYSTEM) | topic.isin(*waiting))
        else:
            self._queued = self._read_by_consumers = self._table.where(topic.isin(*self._queue_topics))
            self._users = self._queued.where(kind == queries.USER)

    @property
    def _is_whole(self) -> bool:
        """Whether everything is audited, not only certain topics."""
        return not self._options.topics and self._options.topic_pattern is None

    def _is_read(self, topic: str) -> bool:
        """Return whether a queue's topic is audited: also one without messages in the log."""
        return self._options.wants(topic) and not is_system_topic(topic, {self._trace_topic})

    # -- what is wrong ---------------------------------------------------------------------------------------------------

    def _lost(self, facts: Facts, report: Report) -> None:
        expected = self._expected(facts)
        seen = {(row["topic"], row["queue"]): (row["begin"], row["end"]) for row in self._by_queue}
        report.found.add(missing_ends(expected, seen), self._examples)
        ranges = {(queue.topic, queue.queue_id): (queue.min, queue.max) for queue in expected}
        report.found.add(offset_findings(self._offsets, ranges), self._examples)
        rules = [queries.missing(self._queued, self._deleted), queries.damaged(self._table)]
        if facts.delivered:
            known = self._all_topics if facts.topics is None else filter(self._is_read, facts.topics)
            existing = queries.topic_rows(self._spark, known)
            rules.append(queries.undelivered(self._table, self._read_by_consumers, facts.delivered, existing))
        if self._trace is not None:
            chosen = None if self._is_whole else sorted(self._all_topics)
            rules.append(queries.sent(self._table, self._trace, self._log_min, self._deleted, chosen))
            rules.append(queries.unseen(self._users, self._trace, self._offset_rows))
        self._add(report, rules)

    def _expected(self, facts: Facts) -> list[QueueRange]:
        """Return what queues promised before the log was read, without what retention has deleted since."""
        found = []
        for queue in facts.queues:
            if queue.topic in self._all_topics:
                low = max(queue.min, self._begins.get((queue.topic, queue.queue_id), queue.max))
                found.append(QueueRange(queue.topic, queue.queue_id, low, max(queue.max, low)))
        return found

    def _duplicated(self, facts: Facts, report: Report) -> None:
        rules = [queries.same_id(self._users), queries.same_offset(self._queued)]
        if self._trace is not None:
            groups = sorted({group for group, _topic, _queue in facts.offsets})
            rules.append(queries.consumed_again(self._users, self._trace, groups))
        self._add(report, rules)

    def _reordered(self, report: Report) -> None:
        self._add(report, [queries.born(self._users, report.tolerance_ms), queries.split_keys(self._users)])

    def _late(self, facts: Facts, report: Report) -> None:
        delivered = queries.delivery_times(self._table, self._users, facts.delays_ms)
        read = None if self._trace is None else queries.read_times(self._users, self._trace)
        times = queries.all_times(queries.store_times(self._users), delivered, read)
        self._add(report, [queries.late(times, report.late_ms, report.tolerance_ms)])
        report.tables["times"] = tables.spread(times)
        report.tables["histograms"] = tables.histograms(times)

    def _add(self, report: Report, rules: list[DataFrame]) -> None:
        report.found.add_counted(queries.examples(rules, self._examples))

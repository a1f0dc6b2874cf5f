"""A streaming read: what a batch of one row takes, and what each further row adds, against the batch read of the same rows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure
from benchmarks.spark.lab import BODIES, BODY, QUEUES, Filled, Lab, load
from kappamq.client import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRIGGERS: Final = 8
"""One-row batches that are counted in a round, behind the first ones."""
WARM: Final = 3
WAIT_S_MAX: Final = 300.0
PER_ROW_GOAL, OVERALL_GOAL, TRIGGER_GOAL = 1.1, 0.7, 2.0
STREAM_ONE, STREAM_MANY, BATCH_ONE, BATCH_MANY, RATE = "stream, one row", "stream", "batch, one row", "batch", "rate"


def run(lab: Lab) -> list[Figure]:
    with lab.filled(BODIES[0]) as filled:
        many = filled.count // 2
        last, half = _starts(filled, 1, 1), _starts(filled, many, QUEUES)
        # A trigger gives each queue that lags a row at least: only one may.
        few = _starts(filled, WARM + TRIGGERS, 1)

        def one(what: str) -> float:
            if what == BATCH_ONE:
                return lab.read(lab.table("kappamq", {**filled.source, "startingOffsets": last}, BODY)).seconds
            if what == BATCH_MANY:
                return lab.read(lab.table("kappamq", {**filled.source, "startingOffsets": half}, BODY)).seconds
            if what == RATE:
                return _triggers(
                    lab, lab.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load(), 1
                )
            rows, start = (1, few) if what == STREAM_ONE else (many, "earliest")
            options = {**filled.source, "maxMessagesPerTrigger": str(rows), "startingOffsets": start}
            return _triggers(lab, _stream(lab, options), rows)

        kinds = (STREAM_ONE, RATE, STREAM_MANY, BATCH_MANY, BATCH_ONE)
        rounds = lab.rounds(kinds, one)
    added = [(each[STREAM_MANY] - each[STREAM_ONE]) / max(each[BATCH_MANY] - each[BATCH_ONE], 1e-9) for each in rounds]
    overall = [each[BATCH_MANY] / each[STREAM_MANY] for each in rounds]
    triggers = [each[STREAM_ONE] / each[RATE] for each in rounds]
    name = f"{many:,} rows"
    return [
        *(
            Figure.median("stream", what, [each[key] * 1000 for each in rounds], "ms")
            for what, key in (
                ("one-row trigger", STREAM_ONE),
                ("one-row trigger of Spark's rate source", RATE),
                (f"batch of {name}, stream", STREAM_MANY),
                (f"batch read of {name}", BATCH_MANY),
            )
        ),
        Figure.median("stream", "time above one row, stream / batch", added, "x", at_most=PER_ROW_GOAL, note=load()),
        Figure.median("stream", f"{name}, stream / batch rows/s", overall, "x", at_least=OVERALL_GOAL, note=load()),
        Figure.median("stream", "one-row trigger, ours / rate", triggers, "x", at_most=TRIGGER_GOAL, note=load()),
    ]


def _starts(filled: Filled, rows: int, queues: int) -> str:
    """Offsets behind which there are `rows` messages, in the longest `queues` queues."""
    with Admin(filled.nameservers) as admin:
        stats = admin.topic_stats(filled.topic)
    wanted = {f"{queue.broker}/{queue.queue_id}": at.max_offset for queue, at in stats.items()}
    left = rows
    chosen = sorted(wanted, key=lambda name: wanted[name])[
        -queues:
    ]  # the shortest first: the others give what it lacks
    for number, name in enumerate(chosen):
        taken = min(-(-left // (queues - number)), wanted[name])
        wanted[name] -= taken
        left -= taken
    assert left == 0, f"{filled.topic} has no {rows} messages in {queues} queues"
    return json.dumps({filled.topic: wanted})


def _stream(lab: Lab, options: Mapping[str, str]) -> DataFrame:
    return lab.spark.readStream.format("kappamq").options(**options).option("columns", ",".join(BODY)).load()


def _triggers(lab: Lab, frame: DataFrame, rows: int) -> float:
    """Seconds of a batch of `rows` rows: the median over many small ones, the second of large ones."""
    count, first = (WARM + TRIGGERS, WARM) if rows == 1 and not lab.toy else (2, 1)
    with lab.bench.folder(on_disk=True) as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while len(done := [each for each in query.recentProgress if each["numInputRows"]]) < count:
                failure = query.exception()
                assert failure is None, f"the query has failed: {failure}"
                assert time.monotonic() < deadline, f"{len(done)} of {count} batches after {WAIT_S_MAX} s"
                time.sleep(0.05)
        finally:
            query.stop()
    counted = done[first:count]
    assert all(each["numInputRows"] == rows for each in counted), [each["numInputRows"] for each in counted]
    times = sorted(each["durationMs"]["triggerExecution"] / 1000 for each in counted)
    return times[len(times) // 2]

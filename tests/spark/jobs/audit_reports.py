"""A report as an audit might make it, without Spark."""

from __future__ import annotations

import math
from pathlib import Path

from kappamq.spark.jobs.audit_report import Report
from kappamq.spark.jobs.audit_rules import Finding

START_MS = 1_794_960_000_000
LIMITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 600_000, 3_600_000, None)


def a_report(
    *, topics: tuple[str, ...] = ("orders", "payments", "mail", "clicks", "stock", "prices", "audit")
) -> Report:
    report = Report(
        store=Path("/var/lib/kappamq"), made_ms=START_MS + 7_200_000, log_min=1 << 30, log_end=5 << 30, late_ms=10_000, tolerance_ms=1000,
        trace_topic="RMQ_SYS_TRACE_TOPIC", records=1_234_567, record_bytes=4 << 30, messages=1_200_000, message_bytes=3 << 30,
        first_ms=START_MS, last_ms=START_MS + 3_600_000, trace_events=45_678, width_ms=30_000, remarks=["one thing was not looked at"],
    )  # fmt: skip
    report.found.add(
        [
            Finding(rule="missing", topic=topics[0], queue=3, offset=1000, last_offset=1041, log_offset=1_234_567_890, messages=42,
                    text="between the records at 1234567890 and 1234577890 of the log"),
            Finding(rule="damaged", log_offset=1_234_569_000, messages=0, text="10000 bytes: checksum mismatch"),
            Finding(rule="id", topic=topics[1 % len(topics)], queue=0, offset=77, last_offset=77, log_offset=2_000_000_000,
                    message_id="7F0000012B71C5907B3557BC13950006", text="2 copies; the first is message 70 of queue 0"),
            *(Finding(rule="stored", topic=topics[0], queue=n % 4, offset=n, last_offset=n, log_offset=n, message_id=f"ID{n}", ms=61_000)
              for n in range(25)),
        ],
        100,
    )  # fmt: skip
    for number, topic in enumerate(topics):
        share = (len(topics) - number) ** 2
        report.tables["topics"].append(
            {"topic": topic, "kind": "user", "messages": share * 9000, "bytes": share * 50_000_000, "queues": 4, "first_ms": START_MS,
             "last_ms": START_MS + 3_600_000}
        )  # fmt: skip
        report.tables["rates"] += [
            {
                "topic": topic,
                "at_ms": START_MS + at * 30_000,
                "messages": round(share * (30 + 20 * math.sin(at / 9 + number))),
                "bytes": 1,
            }
            for at in range(120)
        ]
        report.tables["groups"].append(
            {"group": f"{topic}-readers", "topic": topic, "lag": share * 100, "lag_bytes": share * 9000, "lag_ms": share * 1000,
             "retries": number, "dead_letters": 0}
        )  # fmt: skip
        report.tables["keys"].append({"topic": topic, "key": f"{topic}-key", "messages": share, "bytes": share * 9})
        report.tables["times"] += [
            {
                "what": what,
                "by": by,
                "name": topic,
                "messages": 9000,
                "p50_ms": 3,
                "p95_ms": 40,
                "p99_ms": 900,
                "max_ms": 61_000,
            }
            for what, by in (("stored", "topic"), ("read", "group"))
        ]
    report.tables["topics"].append({"topic": "RMQ_SYS_TRACE_TOPIC", "kind": "system", "messages": 5, "bytes": 5 << 20, "queues": 1,
                                    "first_ms": START_MS, "last_ms": START_MS})  # fmt: skip
    report.tables["tags"].append({"topic": topics[0], "tags": "paid", "messages": 5000, "bytes": 900_000})
    report.tables["producers"].append({"topic": topics[0], "client": "10.0.0.7", "messages": 5000, "bytes": 900_000})
    for what in ("stored", "read"):
        report.tables["histograms"] += [
            {"what": what, "below_ms": limit, "messages": round(40_000 * math.exp(-(((number - 4) / 2.5) ** 2)))}
            for number, limit in enumerate(LIMITS)
        ]
    report.tables["rates"].sort(key=lambda row: row["at_ms"])
    return report

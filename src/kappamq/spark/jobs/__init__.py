"""Complete jobs on Spark; each is also a command of `kappamq pipeline`, and safe to kill and run again."""

from kappamq.spark.jobs.archive import Archived, archive, check_archive
from kappamq.spark.jobs.audit import audit, check_audit
from kappamq.spark.jobs.audit_report import Report as Audited
from kappamq.spark.jobs.copies.dedup import Dedup, Deduplicated, dedup
from kappamq.spark.jobs.copies.replay import Replay, Replayed, replay
from kappamq.spark.jobs.rebuild import Rebuilt, rebuild

__all__ = [
    "Archived", "Audited", "Dedup", "Deduplicated", "Rebuilt", "Replay", "Replayed", "archive", "audit", "check_archive", "check_audit",
    "dedup", "rebuild", "replay",
]  # fmt: skip

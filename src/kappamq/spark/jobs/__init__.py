"""Whole jobs on Spark; each is a command of `kappamq pipeline`, too, and safe to kill and run again."""

from kappamq.spark.jobs.archive import Archived, archive, check_archive
from kappamq.spark.jobs.audit import audit, check_audit
from kappamq.spark.jobs.audit_report import Report as Audited
from kappamq.spark.jobs.rebuild import Rebuilt, rebuild

__all__ = ["Archived", "Audited", "Rebuilt", "archive", "audit", "check_archive", "check_audit", "rebuild"]

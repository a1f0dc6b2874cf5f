"""The exactly-once sink against the at-least-once sink: rows a second, the broker's CPU for a message, and the bytes in its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure
from benchmarks.process import Child
from benchmarks.spark.lab import QUEUES, Filled, Lab, Took, compared, load
from kappamq.client import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONCE, PLAIN = "exactly once", "at least once"
GOAL: Final = 0.7
CPU_US_GOAL: Final = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a write cost its broker."""

    took: Took
    cpu_us: float  # for a message
    log_bytes: float  # for a message


def run(lab: Lab) -> list[Figure]:
    figures: list[Figure] = []
    for body in lab.bodies:
        with lab.bench.folder(on_disk=True) as home, lab.filled(body) as filled:
            figures += _compare(lab, filled, home, body)
    return figures


def rows_of(lab: Lab, filled: Filled, home: Path) -> DataFrame:
    """The bodies of a topic as a Parquet table: what is written must not have to be read from the broker that is measured."""
    rows = home / "rows"
    lab.table("kappamq.store", filled.store, ("body",)).write.parquet(str(rows))
    return lab.spark.read.parquet(str(rows))


def write(table: DataFrame, filled: Filled, how: str, topic: str, number: int) -> None:
    options = {"nameservers": filled.nameservers, "topic": topic}
    if how == ONCE:
        options |= {"delivery": "exactly-once", "transactionScope": "bench", "transactionNumber": str(number)}
    table.write.format("kappamq").options(**options).mode("append").save()


def _compare(lab: Lab, filled: Filled, home: Path, body: int) -> list[Figure]:
    table = rows_of(lab, filled, home)
    numbers = {ONCE: 0, PLAIN: 0}
    process: Child = filled.broker.process

    def one(how: str) -> Cost:
        numbers[how] += 1
        topic = (
            f"{how.replace(' ', '-')}-{body}-{numbers[how]}"  # of its own: what is there is what this write has written
        )
        with Admin(filled.nameservers) as admin:
            admin.create_topic(topic, queues=QUEUES)
            end = _log_end(admin)
            before = process.cpu().run_ns
            took = lab.take(lambda: write(table, filled, how, topic, numbers[how]), process.pid)
            used = process.cpu().run_ns - before
            there = sum(at.max_offset for at in admin.topic_stats(topic).values())
            assert there == filled.count, f"{filled.count} rows were written {how}, {there} are there"
            return Cost(took, used / 1000 / filled.count, (_log_end(admin) - end) / filled.count)

    rounds = lab.rounds((ONCE, PLAIN), one)
    tooks = [{how: cost.took for how, cost in each.items()} for each in rounds]
    name = f"{body} B"
    figures = compared("once", name, tooks, ONCE, PLAIN, filled.count, GOAL)
    for how in (ONCE, PLAIN):
        cpu = [each[how].cpu_us for each in rounds]
        goal = {"at_most": CPU_US_GOAL} if how == ONCE else {}
        figures.append(Figure.median("once", f"{name}: broker CPU a message, {how}", cpu, "us", note=load(), **goal))
    for how in (ONCE, PLAIN):
        written = [each[how].log_bytes for each in rounds]
        figures.append(Figure.median("once", f"{name}: bytes of log a message, {how}", written, "bytes"))
    return figures


def _log_end(admin: Admin) -> int:
    (address,) = admin.masters().values()
    return int(admin.runtime_info(address)["commitLogMaxOffset"])

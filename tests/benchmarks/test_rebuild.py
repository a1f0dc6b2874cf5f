"""benchmarks.rebuild at toy size, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import rebuild
from kappamq.spark.jobs.rebuild import Rebuilt, Task, Work, rebuild_with
from kappamq.store.rebuilding import Sizes
from tests.store.stores import config

SIZES = Sizes(queue_file_entries=64, index_slots=97, index_entries=1000)


def run(work: Work, tasks: Sequence[Task]) -> list[float]:
    return [work.do(task) for task in tasks]


def test_it_finds_every_message_and_says_how_fast(tmp_path: Path) -> None:
    rebuild.make_log(tmp_path, 500, config=config(tmp_path))
    assert not (tmp_path / "consumequeue").exists()

    def once(root: Path) -> Rebuilt:
        return rebuild_with(run, root, sizes=SIZES)

    measured = rebuild.measure(tmp_path, once, 500, 2)
    assert measured.per_cpu_second > 0
    assert rebuild.line(measured).startswith("500 messages in ")
    assert rebuild.measure(tmp_path, once, 500, 2).messages == 500, "again, over what is there now"

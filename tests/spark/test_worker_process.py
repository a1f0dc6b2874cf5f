from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from kappamq.spark import worker_process


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_prepared", (0, 0))
    yield
    gc.unfreeze()


def test_in_the_first_tasks_modules_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task loads some after it has begun: with them Spark's collection after each task took 15 ms."""
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    worker_process.begin_task()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    loaded_later: list[list[int]] = [[] for _ in range(1000)]
    worker_process.begin_task()
    collected = set(
        map(id, gc.get_objects())
    )  # all but what is frozen; how much that is changes with what ends meanwhile
    assert collected.isdisjoint(map(id, loaded_later))
    frozen = gc.get_freeze_count()
    made: list[list[int]] = [[] for _ in range(1000)]  # what a later task makes is collected as ever
    worker_process.begin_task()
    assert gc.get_freeze_count() <= frozen
    assert gc.is_tracked(made[0])


def test_outside_of_a_task_nothing_is_changed() -> None:
    before = gc.get_freeze_count()
    worker_process.begin_task()
    assert gc.get_freeze_count() == before


def test_freed_buffers_are_kept_where_the_c_library_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_process._keep_freed_memory() == hasattr(worker_process.ctypes.CDLL(None), "gnu_get_libc_version")

    def no_library(name: str | None) -> None:
        raise OSError("not here")

    monkeypatch.setattr(worker_process.ctypes, "CDLL", no_library)
    assert not worker_process._keep_freed_memory()

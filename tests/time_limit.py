"""No test run hangs, and one that was ended shows what every thread and every asyncio task was doing.

Every test has a time limit (pyproject.toml), kept by pytest-timeout with a Python thread. We add what it lacks:
- of a coroutine that waits, no thread's stack shows anything: the tasks are shown, too;
- in a worker of xdist, pytest-timeout shows the stacks to a terminal that nobody sees: they go to standard error;
- while a call into C holds the GIL, no Python thread runs; and after the last test, when the interpreter waits for threads
  that a test left behind, there is no limit any more. faulthandler's timer, a thread in C, ends the process in both cases.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import timeout_timer

GRACE_S = 10.0
"""How long the Python thread has to end a test before faulthandler does."""
END_S = 60.0
"""How long a process may take to end after its last test."""

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # output is not captured yet: this is where people see it


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    timer = threading.Timer(settings.timeout, _end, (item, settings))
    timer.daemon = True
    item.cancel_timeout = timer.cancel  # type: ignore[attr-defined]
    timer.start()
    _end_by_force_after(settings.timeout + GRACE_S, item.config)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):  # xdist ends its workers itself, when the last of them is done
        _end_by_force_after(END_S, config)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _end_by_force_after(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


def _end(item: pytest.Item, settings: Any) -> None:
    stderr = item.config.stash[_stderr]
    try:
        os.write(stderr, f"\n{item.nodeid} took more than {settings.timeout:g} s\n".encode())
        os.write(stderr, "\n".join(_tasks()).encode())
        if _is_worker(item.config):
            faulthandler.dump_traceback(file=stderr, all_threads=True)
    finally:
        timeout_timer(item, settings)  # shows the threads and what the test wrote, and ends the process


def _tasks() -> Iterator[str]:
    """Each unfinished task of every loop, with the calls that it waits in."""
    for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]:
        yield f"Task {task.get_name()}:"
        stack = [(frame, frame.f_lineno) for frame in _frames(task.get_coro())]
        yield "".join(traceback.StackSummary.extract(iter(stack)).format())


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)

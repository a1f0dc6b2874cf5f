from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from kappamq.event_loop import TURN_NS, loop_factory, run


async def name_of_the_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert run(name_of_the_loop()).startswith("uvloop")


def test_asyncio_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
    assert run(name_of_the_loop()).startswith("asyncio")


def test_errors_come_out() -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run(fail())


def test_what_is_loaded_is_not_looked_at_again() -> None:
    """In a process of its own: the collector's settings belong to all of it."""
    code = (
        "import gc; from kappamq import event_loop; import kappamq.broker.broker\n"
        "event_loop.spare_garbage_collections()\n"
        "assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()\n"
        "assert gc.get_threshold() == event_loop.GARBAGE_THRESHOLDS\n"
        "assert gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SHORT_TURNS = """
import ctypes, os, platform, sys, threading
from kappamq import event_loop

def turn():
    attributes = ctypes.create_string_buffer(48)
    number = event_loop._SCHEDULER_CALLS[platform.machine()][1]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
    return event_loop._SCHEDULING.unpack(attributes.raw)[5]

if sys.argv[1:] == ["nice"]:
    os.setpriority(os.PRIO_PROCESS, 0, -1)
usual = turn() if event_loop._SCHEDULER_CALLS.get(platform.machine()) else None
print(event_loop.run_before_own_workers())
print(usual, usual and turn())
worker = threading.Thread(target=lambda: print(usual and turn()))
worker.start()
worker.join()
"""


def short_turns(*arguments: str) -> list[str]:
    """In a process of its own: how its threads are scheduled belongs to all that follows."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_TURNS, *arguments], check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout.split()


def test_the_loop_is_woken_before_the_threads_it_starts() -> None:
    set_it, usual, own, workers = short_turns()
    if set_it != "True" or usual == "0":
        pytest.skip("this system does not know it: Linux 6.12 and later do")
    assert (own, workers) == (str(TURN_NS), usual)
    assert int(usual) > TURN_NS


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")
def test_who_was_put_first_stays_there() -> None:
    set_it, usual, own, workers = short_turns("nice")
    assert (set_it, own, workers) == ("False", usual, usual)

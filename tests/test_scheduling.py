"""Turns of threads. Each in a process of its own: how its threads are scheduled belongs to all that follows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kappamq.scheduling import TURN_NS

SHORT_TURNS = """
import ctypes, os, platform, sys, threading
from kappamq import scheduling

def turn():
    attributes = ctypes.create_string_buffer(48)
    number = scheduling._SCHEDULER_CALLS[platform.machine()][1]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
    return scheduling._SCHEDULING.unpack(attributes.raw)[5]

if sys.argv[1:] == ["nice"]:
    os.setpriority(os.PRIO_PROCESS, 0, -1)
usual = turn() if scheduling._SCHEDULER_CALLS.get(platform.machine()) else None
print(scheduling.run_before_own_workers())
print(usual, usual and turn())
worker = threading.Thread(target=lambda: print(usual and turn()))
worker.start()
worker.join()
"""


def short_turns(*arguments: str) -> list[str]:
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

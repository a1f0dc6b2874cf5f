"""A test that hangs is ended, named, and shows where every thread was; the run goes on where it can and ends red."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

pytestmark = pytest.mark.timeout(240)  # a run of pytest takes seconds, and many on a busy machine

ROOT = Path(__file__).parents[1]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
import tests.time_limit

tests.time_limit.GRACE_S = {grace}
tests.time_limit.END_S = 1.0
from tests.time_limit import *
"""
IN_A_COROUTINE = """
import asyncio, pytest, threading
from kappamq.event_loop import run

def a_thread_that_waits(forever):
    forever.wait()

async def a_coroutine_that_waits():
    await asyncio.Event().wait()

async def a_coroutine_that_spins():
    while True:
        pass

@pytest.mark.timeout(1)
def test_that_hangs():
    async def main():
        threading.Thread(target=a_thread_that_waits, args=(threading.Event(),), daemon=True).start()
        await a_coroutine_that_{does}()
    run(main())
"""
IN_C = """
import collections, itertools, pytest

@pytest.mark.timeout(1)
def test_that_hangs():
    collections.deque(itertools.repeat(0), maxlen=0)  # for ever, and nobody else gets the GIL
"""
AFTER_THE_LAST_TEST = """
import threading

def a_thread_that_waits(forever):
    forever.wait()

def test_that_leaves_a_thread_behind():
    threading.Thread(target=a_thread_that_waits, args=(threading.Event(),)).start()
"""
OTHERS = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_that_passes(number):
    pass
"""


def pytest_with_our_settings(
    folder: Path, text: str, *options: str, grace: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Runs the tests in `text`, and a few others, as our own tests are run."""
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT), grace=grace))
    (folder / "test_a.py").write_text(text)
    (folder / "test_b.py").write_text(OTHERS)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *settings, *options, str(folder)]
    return subprocess.run(command, cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True, timeout=200, check=False)


@pytest.mark.parametrize("does", ["waits", "spins"])
def test_a_coroutine_that_hangs_is_ended_and_shows_all_threads(tmp_path: Path, does: str) -> None:
    done = pytest_with_our_settings(tmp_path, IN_A_COROUTINE.format(does=does))
    assert done.returncode == 1, done.stdout
    for shown in ("test_a.py::test_that_hangs took more", f"in a_coroutine_that_{does}\n", "in a_thread_that_waits\n"):
        assert shown in done.stdout, done.stdout


def test_with_workers_the_others_still_run_and_the_run_is_red(tmp_path: Path) -> None:
    done = pytest_with_our_settings(tmp_path, IN_A_COROUTINE.format(does="waits"), "-n", "2")
    assert done.returncode == 1, done.stdout
    for shown in ("in a_coroutine_that_waits\n", "in a_thread_that_waits\n"):
        assert shown in done.stdout, done.stdout
    assert re.search("crashed while running '.*test_a.py::test_that_hangs'", done.stdout), done.stdout
    assert "1 failed, 4 passed" in done.stdout, done.stdout


def test_a_call_that_never_gives_the_gil_back_is_ended(tmp_path: Path) -> None:
    done = pytest_with_our_settings(tmp_path, IN_C, grace=1.0)
    assert done.returncode == 1, done.stdout
    for shown in ("Timeout (0:00:0", "in test_that_hangs"):
        assert shown in done.stdout, done.stdout


def test_a_thread_that_was_left_behind_does_not_hold_up_the_end(tmp_path: Path) -> None:
    done = pytest_with_our_settings(tmp_path, AFTER_THE_LAST_TEST)
    assert done.returncode == 1, done.stdout
    assert "5 passed" in done.stdout
    assert "in a_thread_that_waits" in done.stdout

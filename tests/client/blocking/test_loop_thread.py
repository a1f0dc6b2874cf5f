from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from kappamq.client.blocking.loop_thread import Blocking, blocking, loop_thread
from kappamq.errors import ClientClosed, ClientError


class Inner:
    def __init__(self) -> None:
        self.closed = 0

    async def add(self, a: int, *, b: int = 1) -> int:
        """Adds."""
        return a + b

    async def fail(self) -> None:
        raise ValueError("no")

    async def close(self) -> None:
        self.closed += 1


class Face(Blocking[Inner]):
    add = blocking(Inner.add)
    fail = blocking(Inner.fail)


def test_methods_wait_for_their_coroutines_and_keep_their_names() -> None:
    face = Face(Inner())
    assert face.add(2, b=3) == 5
    assert (Face.add.__name__, Face.add.__doc__) == ("add", "Adds.")
    with pytest.raises(ValueError, match="no"):
        face.fail()
    face.close()
    assert face.inner.closed == 1


def test_one_thread_serves_all() -> None:
    assert loop_thread() is loop_thread()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("kappamq-client") == 1


def test_a_blocking_call_on_the_loop_itself_is_refused_instead_of_waiting_for_ever() -> None:
    face = Face(Inner())

    async def wrong() -> int:
        return face.add(1)

    with pytest.raises(ClientError, match="Async classes"):
        loop_thread().run(wrong())


def test_an_interrupted_wait_cancels_the_work() -> None:
    program = """
import asyncio, os, signal, time
from kappamq.client.blocking.loop_thread import loop_thread
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if this runs in the background of a shell
async def work():
    try:
        while True:  # again and again: a signal that comes just before Python starts to wait is not seen
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        os._exit(0)
try:
    loop_thread().run(work())
except KeyboardInterrupt:
    time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["cancelled"]


def test_after_a_fork_the_child_needs_a_client_of_its_own() -> None:
    face = Face(Inner())
    assert face.add(1) == 2
    child = os.fork()
    if child == 0:
        code = 1
        try:
            face.add(1)
        except ClientClosed:
            code = 0 if Face(Inner()).add(1) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert face.add(1) == 2


def test_the_end_of_the_program_closes_what_nobody_closed() -> None:
    program = """
from tests.client.blocking.test_loop_thread import Face, Inner
class Loud(Inner):
    async def close(self):
        print("closed", flush=True)
face = Face(Loud())
face.add(1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["closed"]


def test_the_end_of_the_program_ends_the_loop() -> None:
    """uvloop crashes if a timer of its is due when the interpreter is gone: seen in programs that had kept clients for Spark."""
    program = """
import atexit, threading
atexit.register(lambda: print(*[thread.name for thread in threading.enumerate()], flush=True))  # called last
from kappamq.client.blocking.loop_thread import loop_thread
home = loop_thread()
def again():
    home.loop.call_later(0.001, again)
home.loop.call_soon_threadsafe(again)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["MainThread"]

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from kappamq.client.pulling import unpacking
from tests.client.loop import on_loop


@on_loop
async def test_it_runs_in_another_thread_and_the_loop_goes_on() -> None:
    leave, inside = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(number: int) -> tuple[int, int]:
        loop.call_soon_threadsafe(inside.set)
        assert leave.wait(10)
        return number, threading.get_ident()

    task = asyncio.create_task(unpacking.beside(work, 7))
    await inside.wait()
    leave.set()
    number, thread = await task
    assert number == 7
    assert thread != threading.get_ident()


@on_loop
async def test_errors_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        await unpacking.beside(lambda: 1 // 0)


@on_loop
async def test_few_run_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()
    enough = threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == unpacking.THREADS:
                enough.set()
        assert enough.wait(10)
        with lock:
            running -= 1

    await asyncio.gather(*(unpacking.beside(work) for _ in range(5 * unpacking.THREADS)))
    assert most == unpacking.THREADS


def test_a_child_process_has_threads_of_its_own() -> None:
    asyncio.run(unpacking.beside(int))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if unpacking._pool().submit(lambda: 5).result(10) == 5 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

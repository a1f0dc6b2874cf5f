"""Functions of an application: in threads that nobody waits for, or as coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kappamq.client.core.calling import in_thread, is_asynchronous
from tests.client.loop import on_loop


class Callable:
    async def __call__(self, given: Any) -> None: ...


async def coroutine(given: Any) -> None: ...


def test_which_are_asynchronous() -> None:
    assert is_asynchronous(coroutine)
    assert is_asynchronous(Callable())
    assert not is_asynchronous(lambda given: None)
    assert not is_asynchronous(threading.Event().set)


@on_loop
async def test_in_a_thread_of_its_own() -> None:
    def work(given: Any) -> Any:
        assert threading.current_thread().daemon
        if given is None:
            raise ValueError("nothing given")
        return threading.current_thread(), given

    thread, said = await in_thread(work, 5)
    assert (thread is threading.main_thread(), said) == (False, 5)
    with pytest.raises(ValueError, match="nothing given"):
        await in_thread(work, None)


@on_loop
async def test_one_that_hangs_is_not_waited_for() -> None:
    gate = threading.Event()
    answer = in_thread(lambda given: gate.wait(30), None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answer, 0.02)
    gate.set()

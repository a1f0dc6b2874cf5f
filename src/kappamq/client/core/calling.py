"""Calls the application's functions: plain functions in threads, coroutine functions directly."""

from __future__ import annotations

import asyncio
import inspect
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


def is_asynchronous(call: Callable[..., Any]) -> bool:
    inside = getattr(call, "__call__", None)  # noqa: B004 - an object may have a coroutine as its __call__
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(inside)


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    """Wait for a coroutine whose first step has been made, by `send(None)`, and which awaits `awaited`."""
    # What `await` does; it refuses coroutines that have begun.
    step: Callable[[Any], Any]
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            step, given = coroutine.throw, error
        else:
            step, given = coroutine.send, sent
        try:
            awaited = step(given)
        except StopIteration as stop:
            return stop.value


def in_thread(call: Callable[[Any], Any], given: Any) -> asyncio.Future[Any]:
    """Call it in a daemon thread of its own: if it hangs, it delays neither others nor the end of the program."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(said: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(said)
        else:
            answer.set_exception(error)

    def run() -> None:
        said, failure = None, None
        try:
            said = call(given)
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, said, failure)
        except RuntimeError:
            pass  # the loop is closed, so no one waits for the result

    threading.Thread(target=run, name="kappamq-call", daemon=True).start()
    return answer

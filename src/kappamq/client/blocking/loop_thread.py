"""The daemon thread that runs an event loop for all blocking clients of the process, and their base class."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

import kappamq.client.bursts.leftovers  # noqa: F401  # tells what is left when clients are closed, at the exit: after this module
from kappamq.errors import ClientClosed, ClientError

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

EXIT_S: Final = 3.0
"""How long the interpreter's exit waits for clients that were not closed."""


class LoopThread:
    """A thread that runs an event loop until the program ends."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="kappamq-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the loop before the interpreter exits: uvloop would crash when it runs the next timer without an interpreter."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EXIT_S)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self._thread.ident

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        if self.is_here:
            coroutine.close()
            raise ClientError(
                "a blocking call from the client's own event loop would deadlock: use the Async classes in coroutines"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the caller no longer waits for it
            raise


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # faster where it is installed
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_thread: LoopThread | None = None
_thread_lock = threading.Lock()
_open: weakref.WeakSet[Blocking[Any]] = weakref.WeakSet()


def loop_thread() -> LoopThread:
    global _thread
    with _thread_lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def _after_fork() -> None:
    # Threads do not survive a fork: the child starts its own loop when it first needs one.
    global _thread, _thread_lock
    _thread, _thread_lock = None, threading.Lock()
    for client in list(_open):
        client.forked()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    clients = list(_open)
    for client in clients:
        client.hurry()
    futures = [loop_thread().submit(client.inner.close()) for client in clients]
    for future in futures:
        try:
            future.result(EXIT_S)
        except Exception:
            pass  # the program is exiting; it could have closed the client to see errors
    global _thread
    with _thread_lock:
        ended, _thread = _thread, None
    if ended is not None:
        ended.stop()


class Closeable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closeable)


class _End:
    """Marks the end of an iteration."""


_END: Final = _End()


class Blocking(Generic[C]):
    """Base of the blocking clients: wraps an asyncio client and runs its coroutines on the loop thread."""

    def __init__(self, inner: C) -> None:
        self.inner = inner
        self._process = os.getpid()
        self._home: LoopThread | None = None
        self._closed_unused = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def forked(self) -> None:
        """In the child of a fork: no loop runs for this client there, so waiting calls would never return."""

    def hurry(self) -> None:
        """Calls submitted to the loop from now on run after all earlier ones."""

    def close(self) -> None:
        """Close; see the asyncio class of the same name for what that waits for."""
        self._close(self.inner.close())

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        if self._home is None or self._process != os.getpid():
            self._closed_unused = True
            closing.close()
            return
        if not self._home.is_here:  # `run` refuses that, and then it stays open
            _open.discard(self)
        self._home.run(closing)

    def _at_home(self) -> LoopThread:
        if self._process != os.getpid():
            raise ClientClosed(
                f"this {type(self).__name__} was created before os.fork(): create a new one in each process"
            )
        if self._home is None:
            if self._closed_unused:
                raise ClientClosed(f"this {type(self).__name__} is closed: create a new one, it cannot be restarted")
            self._home = loop_thread()
            _open.add(self)
        return self._home

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        try:
            home = self._at_home()
        except BaseException:
            coroutine.close()
            raise
        return home.run(coroutine)

    def _each(self, items: AsyncIterator[R]) -> Iterator[R]:
        """Iterate over an asynchronous iterator of the inner client."""

        async def following() -> R | _End:
            return await anext(items, _END)

        while not isinstance(item := self._run(following()), _End):
            yield item


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Turn a coroutine method of the inner client into a method that waits for its result."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._run(method(self.inner, *args, **kwargs))
        return result

    return call

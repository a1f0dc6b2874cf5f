"""The event loop of one simulated process: its turns are events of the world, its time is the world's, and it can be killed or paused.

It has what asyncio requires of a loop and brokers use; the rest raises NotImplementedError, so that new uses are noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, cast

from kappamq.sim.world import World

if TYPE_CHECKING:
    from kappamq.sim.brokers.streams import Listener, Side, Streams

TURN_MS = 0.02  # so that time also advances if a task only ever yields
START_S = 1000.0


class Server:
    """What `create_server` returns."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        pass


class Inline(Executor):
    """An executor that runs its work at once."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


class Loop(asyncio.AbstractEventLoop):
    def __init__(
        self, world: World, streams: Streams, host: str, turned: Callable[[], None], work_ms: float = 0.5
    ) -> None:
        """`turned`: called after each turn. `work_ms`: how long worker threads take at most for one call."""
        self.world, self.streams, self.host = world, streams, host
        self.alive, self.paused = True, False
        self.failures: list[BaseException] = []
        self._turned = turned
        self._work_ms = work_ms
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of creation
        self._readers: dict[int, asyncio.Handle] = {}
        self._unread: set[int] = set()
        self._threads: dict[int, float] = {}  # executor -> when its thread is free again
        self.sides: dict[Side, None] = {}  # this process's ends of connections

    # -- turns -------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_due and self._ready and not self.paused:
            self._is_due = True
            self.world.after(TURN_MS, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if not self.alive or self.paused:
            return
        self.run(self._handles)
        if self.alive:
            self._turned()
            self._wake()

    def _handles(self) -> None:
        for _ in range(len(self._ready)):
            if not self.alive:
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def run(self, work: Callable[[], object]) -> None:
        """Run a function as this process."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            work()
        finally:
            events._set_running_loop(outer)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        self._wake()

    def kill(self) -> None:
        """Stop the process. Coroutines are closed now, so that garbage collection does not do it later, while another process runs."""
        self.alive = False
        self._ready.clear()
        self._readers.clear()

        def close() -> None:
            for task in list(self._tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # the process is dead: ignore what its coroutines still try
                    cast(Coroutine[Any, Any, Any], task.get_coro()).close()

        self.run(close)
        self._tasks.clear()

    # -- what asyncio requires ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return START_S + self.world.now / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.alive:
            self._ready.append(handle)
            self._wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.after(max(0.0, (when - self.time()) * 1000), self._timed, timer)
        return timer

    def _timed(self, timer: asyncio.TimerHandle) -> None:
        if self.alive and not timer.cancelled():
            self._ready.append(timer)
            self._wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        if not self.alive:
            coro.close()
            never: Any = self.create_future()
            never.cancel()
            return cast("asyncio.Task[Any]", never)  # a dead process begins nothing
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive and isinstance(error, BaseException):
            self.failures.append(error)

    # -- threads and descriptors -------------------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run calls one after the other; a call takes time first, and then happens at once."""
        done = self.create_future()
        free_at = max(self.world.now, self._threads.get(id(executor), 0.0)) + self._work_ms * self.world.dice.random()
        self._threads[id(executor)] = free_at
        self.world.after(free_at - self.world.now, self._work, done, func, args)
        return done

    def _work(self, done: asyncio.Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        outer = events._get_running_loop()
        events._set_running_loop(None)
        try:
            result = work(*arguments)
        except BaseException as error:
            events._set_running_loop(outer)
            if not done.cancelled():
                done.set_exception(error)
        else:
            events._set_running_loop(outer)
            if not done.cancelled():
                done.set_result(result)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        self._readers[fd] = asyncio.Handle(callback, args, self, None)
        if fd in self._unread:
            self._unread.discard(fd)
            self.readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if reader is None:
            self._unread.add(fd)
        elif self.alive:
            self._ready.append(reader)
            self._wake()

    # -- connections -------------------------------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[Side, asyncio.Protocol]:
        side = await self.streams.connect(self, host, port)
        protocol = protocol_factory()
        side.begin(protocol)
        return side, protocol

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *, sock: Listener, **options: Any
    ) -> Server:
        sock.serve(lambda side: side.begin(protocol_factory()))
        return Server(sock)

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        return await sock.wait(self), None

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], sock: Any, **options: Any
    ) -> tuple[Side, asyncio.Protocol]:
        protocol = protocol_factory()
        sock.begin(protocol)
        return sock, protocol

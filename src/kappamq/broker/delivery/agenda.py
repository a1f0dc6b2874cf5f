"""Work that is due at a message time: deliveries of delayed messages, timers, checks of transactions.

Each of these is a part that returns when it next wants to run and then does a slice of its work. One timer of the loop serves
them all, the earliest first. A test that advances message time runs the same parts in the same order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from kappamq.clock import Clock

log = logging.getLogger(__name__)

_LOOK_S = 1.0  # the wall clock may be set forward while we sleep
_AFTER_ERROR_S = 1.0
_BUSY_S = 0.001  # then other work gets its turn


class Part(Protocol):
    def due_ms(self) -> int | None:
        """Return the message time at which there is something to do; None if nothing is pending, or one of our jobs is running."""
        ...

    def run(self, now_ms: int) -> None:
        """Do what is due, for about a millisecond at most; while it is still due it is called again."""
        ...


class Agenda:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._parts: list[Part] = []
        self._resting: dict[Part, float] = {}  # failed just now: not before this liveness time
        self._timer: asyncio.Handle | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._running = False
        self.is_closed = False  # long jobs check whether they should end

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def start(self) -> None:
        self._running = True
        self.wake()

    def close(self) -> None:
        """Nothing is begun any more."""
        self._running, self.is_closed = False, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """Start nothing more, and wait for running jobs."""
        self.close()
        if self._jobs:
            await asyncio.wait(self._jobs)

    def wake(self) -> None:
        """Something may be due earlier than reported before."""
        if self._running:
            self._arm(0.0)

    def spawn(self, part: Part, job: Coroutine[Any, Any, None]) -> None:
        """A part waits for something (a cold read, an answer): ask for its due time again when `job` is done."""
        task = self._loop.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(lambda done: self._job_done(part, done))

    def _job_done(self, part: Part, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._rest(part, task.exception())
        self.wake()

    def _rest(self, part: Part, error: BaseException | None) -> None:
        log.error("%s failed, trying again in %g s", type(part).__name__, _AFTER_ERROR_S, exc_info=error)
        self._resting[part] = self._clock.liveness() + _AFTER_ERROR_S

    @property
    def is_working(self) -> bool:
        """Whether jobs are running whose outcome may make something due."""
        return bool(self._jobs)

    def next_ms(self) -> int | None:
        """Return when the earliest part wants to run."""
        return self._earliest()[0]

    def run_due(self, now_ms: int) -> bool:
        """Run one slice of the earliest part that is due; False if there is none."""
        due, part = self._earliest()
        if part is None or due is None or due > now_ms:
            return False
        try:
            part.run(now_ms)
        except Exception as error:
            self._rest(part, error)
        return True

    def _earliest(self) -> tuple[int | None, Part | None]:
        now = self._clock.liveness()
        first: tuple[int | None, Part | None] = None, None
        for part in self._parts:
            if part in self._resting:
                if now < self._resting[part]:
                    continue
                del self._resting[part]
            try:
                due = part.due_ms()
            except Exception as error:  # the others go on
                self._rest(part, error)
                continue
            if due is not None and (first[0] is None or due < first[0]):
                first = due, part
        return first

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_soon(self._run) if seconds <= 0 else self._loop.call_later(seconds, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._running:
            return
        until = self._loop.time() + _BUSY_S
        while self.run_due(self._clock.message_ms()):
            if self._loop.time() >= until:
                break
        due = self.next_ms()
        if due is None and not self._resting:
            return
        pause = _LOOK_S if due is None else min((due - self._clock.message_ms()) / 1000, _LOOK_S)
        self._arm(pause)

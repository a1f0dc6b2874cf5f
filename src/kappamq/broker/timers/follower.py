"""Enters timers on a node that may get the role, and delivers none, so that a role that begins finds its files ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kappamq.broker.events import Tick
from kappamq.broker.timers.book import ENTER_MAX, Entered, TimerBook
from kappamq.broker.timers.progress import TimerProgress
from kappamq.errors import StoreDamaged, StoreFormatError
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_REST: Final = 1.0
"""After each step it rests so many times as long as that took."""


class TimerFollower:
    def __init__(
        self,
        store: MessageStore,
        new_book: Callable[[], TimerBook],
        progress: TimerProgress,
        now_ms: Callable[[], int],
        run: Callable[[Coroutine[Any, Any, None]], None],
        trusted: Callable[[], bool],
        *,
        may_lead: bool,
    ) -> None:
        """`trusted`: whether the progress is what the log says. `may_lead`: whether this node can get the role while it runs; else it
        leaves the files alone."""
        self._store = store
        self._new_book = new_book
        self._progress = progress
        self._now_ms = now_ms
        self._run = run
        self._trusted = trusted
        self._follows = self._may_lead = may_lead
        self._book: TimerBook | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._steps = store.clock_steps  # that the files are made by
        self._log_min = 0
        self._queue_offset = 0  # messages of the timer topic below are entered
        self._stepping = asyncio.Lock()
        self._busy = False

    def ticked(self, _event: Tick) -> None:
        if self._follows and not self._busy and self._trusted() and self._is_behind():
            self._busy = True
            self._run(self._follow())

    def _is_behind(self) -> bool:
        store = self._store
        if self._book is None or store.clock_steps is not self._steps or store.log.min > self._log_min:
            return True
        return bool(store.queue_state(TIMER_TOPIC, 0).end > self._queue_offset)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            more = True
            while more and self._follows:
                began = loop.time()
                async with self._stepping:
                    more = self._follows and await self._step()
                await asyncio.sleep(_REST * (loop.time() - began))
        except (StoreDamaged, StoreFormatError, OSError) as error:
            log.warning("the timer files are not kept up, a role that begins here makes them anew: %s", error)
            self._follows = False
        finally:
            self._busy = False

    async def _step(self) -> bool:
        """Enter some; returns whether there may be more."""
        store, steps = self._store, self._store.clock_steps
        if self._book is None:
            self._pool = self._pool or ThreadPoolExecutor(1, "kappamq-timers")
            self._book = self._new_book()
            opened = await self._on_files(self._book.open_to_follow, self._progress)
            if opened is None:  # another broker's files: what it has delivered is for the role to note
                self._follows = False
                return False
            self._queue_offset, self._steps = opened.queue_offset, steps
        elif steps is not self._steps:
            opened = await self._on_files(self._book.rebuild, self._progress, "the wall clock was set")
            self._queue_offset, self._steps = opened.queue_offset, steps
        if (log_min := store.log.min) > self._log_min:
            await self._on_files(self._book.forget_below, log_min)
            self._log_min = log_min
        low, end, _next, _stored = store.queue_state(TIMER_TOPIC, 0)
        first = max(self._queue_offset, low)
        count = min(ENTER_MAX, end - first)
        if count <= 0:
            return False
        entries, records = self._book.at_hand(first, count)
        # Nothing is loaded here, and what is delivered is what the progress says.
        entered = await self._on_files(self._enter, self._book, first, count, entries, records)
        self._queue_offset = entered.queue_offset
        return self._queue_offset > first

    def _enter(self, book: TimerBook, first: int, count: int, entries: bytes, records: bytes) -> Entered:
        # When a timer rolls depends on when it was stored, which is the leader's time and must not be cut to ours if that is behind:
        # by its progress the leader says what it has delivered and rolled, so all have to mean the same moments.
        now_ms = max(self._now_ms(), book.stored_ms(first + count - 1))
        return book.enter(first, count, entries, 0, self._progress, now_ms, 0, records)

    def _on_files(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        assert self._pool is not None
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def take(self) -> bool:
        """The role begins, and owns the files from now on: `give_back` when it ends. Returns whether timers were entered here."""
        self._follows = False
        async with self._stepping:
            book, self._book = self._book, None
            if self._pool is not None:
                if book is not None:
                    await self._on_files(book.leave)
                self._pool.shutdown(wait=False)
                self._pool = None
        return book is not None

    def give_back(self) -> None:
        """This node does not have the role (any more)."""
        self._follows = self._may_lead

    async def stop(self) -> None:
        """Stop for good."""
        self._may_lead = False
        await self.take()

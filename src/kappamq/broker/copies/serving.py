"""The master's side: who follows this broker, and what is waited for on their behalf."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from kappamq.broker.copies.link import Link, Takes
from kappamq.broker.copies.outlet import Outlet
from kappamq.broker.events import Tick
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.native.interface import KernelModule
from kappamq.replication.greeting import Hello, Refusal, TooFarBehind, check, diverged
from kappamq.replication.held import Held
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import fingerprint

log = logging.getLogger(__name__)

_LINKS_MAX = 64
_BEAT_S = 1.0


class Followers:
    """Serves followers while this node is the master; between roles it refuses them."""

    def __init__(
        self,
        config: CopiesConfig,
        store: MessageStore,
        writer: LogWriter,
        clock: Clock,
        ours: Callable[[], Hello],
        worker: Worker,
        outlet: Outlet,
        seeds: Takes,
    ) -> None:
        """`ours`: this broker, as it would greet. `seeds`: whom those are for who ask before they open their store."""
        self.seeds = seeds
        self.config = config
        self.store = store
        self.term = 0
        self.ours = ours
        self.held = Held(config.copies_awaited, config.lag_bytes_max)
        self._writer = writer
        self._clock = clock
        self._worker = worker
        self._links: set[Link] = set()
        self._following: list[Link] = []
        self._outlet = outlet
        self._servers: list[asyncio.Server] = []
        self._serving = False
        self._beat_at = 0.0
        self._progress = asyncio.Event()

    @property
    def kernel_module(self) -> KernelModule:
        return self.store.kernel_module

    @property
    def following(self) -> list[Link]:
        return self._following

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket, made: Callable[[], asyncio.Protocol] | None = None) -> None:
        """`made`: instead of followers, these are served."""
        server = await asyncio.get_running_loop().create_server(made or self._connection, sock=listener)
        self._servers.append(server)

    def begin(self) -> None:
        self._serving = True

    async def drain(self, seconds: float) -> None:
        """Wait until every follower that keeps up has all of the log. Nothing is appended meanwhile."""
        self._writer.end_turn()
        end = self.store.log.end
        try:
            async with asyncio.timeout(seconds):
                while any(link.feed is not None and link.feed.written < end for link in self._following):
                    for link in self._following:
                        link.catch_up()
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            log.warning("copies: not every slave has all of the log, which ends at %d", end)

    def end(self) -> None:
        """This node is not the master any more: followers go and look for the one that is."""
        self._serving = False
        for link in list(self._links):
            link.close()

    async def stop(self) -> None:
        self.end()
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.abort()
        await asyncio.sleep(0)

    def _connection(self) -> Link:
        link = Link(self, self._links.discard)
        if len(self._links) >= _LINKS_MAX:
            log.warning("copies: more than %d connections: the oldest is closed", _LINKS_MAX)
            next(iter(self._links)).abort()
        self._links.add(link)
        return link

    # -- what links ask ----------------------------------------------------------------------------------------------------

    def demand_role(self) -> None:
        if not self._serving:
            raise Refusal("this broker is not the master now: ask the name servers which one is")

    def greet(self, hello: Hello) -> None:
        self.demand_role()
        check(hello, self.ours())
        for link in self._following:
            if link.follower.broker_id == hello.broker_id:
                if link.follower.address != hello.address:
                    raise Refusal(
                        f"the id {hello.broker_id} belongs to {link.follower.address}, which follows already: each copy needs its own"
                    )
                link.abort()  # it has come back before we have noticed that it was gone
        log_files = self.store.log
        if hello.end < log_files.min:
            raise TooFarBehind(
                f"its log ends at {hello.end}, but the master's begins at {log_files.min} now: started again, it gets everything anew"
            )
        if hello.end > log_files.min and fingerprint(self.store, hello.end) != hello.crc:
            raise diverged(hello.end)

    def reports_wanted(self) -> str:
        if not self.config.copies_awaited:
            return "seldom"
        return "flushed" if self.store.config.flush == "sync" else "written"

    def joined(self, link: Link) -> None:
        self._following.append(link)
        self._outlet.followers.append(link)
        self.reported(link)

    def left(self, link: Link) -> None:
        self._following.remove(link)
        self._outlet.followers.remove(link)
        log.warning("copies: %s (id %d) does not follow any more", link.follower.address, link.follower.broker_id)
        self._progress.set()
        self.held.lost(link)
        self._writer.follow_marks()

    def reported(self, link: Link) -> None:
        feed = link.feed
        assert feed is not None
        self._progress.set()
        end = feed.flushed if self.store.config.flush == "sync" else feed.written
        self.held.report(link, end, self.store.log.end)
        if self.config.copies_awaited:
            self._writer.follow_marks()

    def read(self, offset: int, size: int) -> Awaitable[bytes]:
        return self._worker(self.store.pread, offset, size)

    # -- what it hears -----------------------------------------------------------------------------------------------------

    def ticked(self, event: Tick) -> None:
        if not self._following:
            return
        now, marks = self._clock.liveness(), self.store.marks
        due = now >= self._beat_at
        if due:
            self._beat_at = now + _BEAT_S
            self.held.grown(self.store.log.end)
            self._writer.follow_marks()
        for link in self._following:
            link.catch_up()
            if due or link.said != (marks.visible.offset, marks.confirmed.offset):
                link.tell_marks()

    # -- what others ask ---------------------------------------------------------------------------------------------------

    @property
    def needed_from(self) -> int:
        """Log files from here on are kept for followers that still need them, up to a limit."""
        end = self.store.log.end
        ends = [link.feed.written for link in self._following if link.feed is not None]
        return max(min(ends, default=end), end - self.config.keep_bytes_max)

    async def renew_below(self, log_min: int) -> None:
        """What followers need cannot be stored again: it stays where it is."""

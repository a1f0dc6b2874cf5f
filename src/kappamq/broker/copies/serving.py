"""The master's side: the slaves that replicate from this broker, and their progress."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from kappamq.broker.copies.apache.link import ApacheLink
from kappamq.broker.copies.log_sender import LogSender
from kappamq.broker.copies.log_throttle import LogThrottle
from kappamq.broker.copies.missing_slaves import MissingSlaves
from kappamq.broker.copies.opening import NoRoom, Opening
from kappamq.broker.copies.outlet import Outlet
from kappamq.broker.copies.question import Questions
from kappamq.broker.events import Tick
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.native.interface import KernelModule
from kappamq.replication.classic import begin_at
from kappamq.replication.greeting import Hello, Refusal, TooFarBehind, check, diverged
from kappamq.replication.held import Held
from kappamq.store.message_store import MessageStore
from kappamq.store.recovery import fingerprint

log = logging.getLogger(__name__)

_LINKS_MAX = 64
_BEAT_S = 1.0
_FULL_AGAIN_S = 60.0  # the same warning once in this time


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
        questions: Questions,
    ) -> None:
        """`ours`: this broker's identity in a greeting. `questions`: answers connections that do not replicate."""
        self.questions = questions
        self.log_throttle = LogThrottle()
        self.config = config
        self.store = store
        self.term = 0
        self.ours = ours
        self.held = Held(config.copies_awaited, config.lag_bytes_max)
        self._missing = MissingSlaves()
        self._writer = writer
        self.clock = clock
        self._worker = worker
        self._links: dict[Opening | LogSender, None] = {}  # the oldest first
        self._following: list[LogSender] = []
        self._outlet = outlet
        self._servers: list[asyncio.Server] = []
        self._serving = False
        self._beat_at = self._full_again_at = 0.0
        self._progress = asyncio.Event()

    @property
    def kernel_module(self) -> KernelModule:
        return self.store.kernel_module

    @property
    def following(self) -> list[LogSender]:
        return self._following

    @property
    def is_serving(self) -> bool:
        return self._serving

    # -- its life ----------------------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket, made: Callable[[], asyncio.Protocol] | None = None) -> None:
        """`made`: creates the connections to serve instead of followers."""
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
        """This node is not the master any more: make followers look for the new one."""
        self._serving = False
        self._missing.forget()
        for link in list(self._links):
            link.close()

    async def stop(self) -> None:
        self.end()
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.abort()
        await asyncio.sleep(0)

    def _connection(self) -> asyncio.Protocol:
        """Slaves that replicate are never closed to make room for new connections."""
        if len(self._links) >= _LINKS_MAX:
            self._tell_full()
            idle = next((link for link in self._links if isinstance(link, Opening) or link.feed is None), None)
            if idle is None:
                return NoRoom()
            del self._links[idle]
            idle.abort()
        opening = Opening(self, self._speaks, self._gone)
        self._links[opening] = None
        return opening

    def _tell_full(self) -> None:
        now = self.clock.liveness()
        if now >= self._full_again_at:
            self._full_again_at = now + _FULL_AGAIN_S
            log.warning(
                "copies: more than %d connections: closing those that do not replicate, the oldest first", _LINKS_MAX
            )

    def _speaks(self, opening: Opening, link: LogSender) -> None:
        self._links.pop(opening, None)
        self._links[link] = None

    def _gone(self, link: Opening | LogSender) -> None:
        self._links.pop(link, None)

    # -- called by links ---------------------------------------------------------------------------------------------------

    def demand_role(self) -> None:
        if not self._serving:
            raise Refusal("this broker is not the master now: ask the name servers which one is")

    def greet(self, hello: Hello) -> None:
        self.demand_role()
        check(hello, self.ours())
        former = [link for link in self._following if link.broker_id == hello.broker_id]
        for link in former:
            if link.address != hello.address:
                raise Refusal(
                    f"the id {hello.broker_id} belongs to {link.address}, which follows already: each copy needs its own"
                )
        log_files = self.store.log
        if hello.end < log_files.min:
            raise TooFarBehind(
                f"its log ends at {hello.end}, but the master's begins at {log_files.min} now: started again, it gets everything anew"
            )
        if hello.end > log_files.min and fingerprint(self.store, hello.end) != hello.crc:
            raise diverged(hello.end)
        for link in former:
            # It has reconnected before we noticed that it was gone. Its old connection must not count beside the new one, not even
            # until the event loop reports that it is closed: that would be one copy too many.
            self.left(link)
            link.abort()

    def greet_apache(self, reported: int) -> int:
        """Return where the stream begins for an Apache slave that has the log up to `reported`."""
        if not self._serving:
            raise Refusal("this broker is not the master now")
        if self.config.secret is not None:
            raise Refusal("an Apache slave cannot show that it knows the secret of the group (replicationSecret)")
        log_files = self.store.log
        return begin_at(reported, log_files.min, log_files.segment_end - self.store.config.segment_bytes, log_files.end)

    def reports_wanted(self) -> str:
        if not self.config.copies_awaited:
            return "seldom"
        return "flushed" if self.store.config.flush == "sync" else "written"

    def joined(self, link: LogSender) -> None:
        self._following.append(link)
        self._outlet.followers.append(link)
        self.reported(link)

    def left(self, link: LogSender) -> None:
        if link not in self._following:
            return  # another connection has taken its place
        self._following.remove(link)
        self._outlet.followers.remove(link)
        log.warning("copies: %s stopped replicating", link.address)
        self._progress.set()
        self.held.lost(link)
        self._writer.follow_marks()

    def counts(self, link: LogSender) -> bool:
        """Return whether a synchronous master waits for this one."""
        return self.config.count_apache_slaves or not isinstance(link, ApacheLink)

    def reported(self, link: LogSender) -> None:
        feed = link.feed
        assert feed is not None
        self._progress.set()
        if link not in self._following or not self.counts(link):
            return
        end = feed.flushed if self.store.config.flush == "sync" else feed.written
        self.held.report(link, end, self.store.log.end)
        if self.config.copies_awaited:
            self._writer.follow_marks()

    def read(self, offset: int, size: int) -> Awaitable[bytes]:
        return self._worker(self.store.pread, offset, size)

    # -- events ------------------------------------------------------------------------------------------------------------

    def ticked(self, event: Tick) -> None:
        now, marks = self.clock.liveness(), self.store.marks
        if self._serving:
            self._missing.look(self.held.missing(), now)
        if not self._following:
            return
        due = now >= self._beat_at
        if due:
            self._beat_at = now + _BEAT_S
            self.held.grown(self.store.log.end)
            self._writer.follow_marks()
        for link in list(self._following):
            link.catch_up()
            if due:
                link.second_has_passed()
            if due or link.said != (marks.visible.offset, marks.confirmed.offset):
                link.tell_marks()

    # -- called by others --------------------------------------------------------------------------------------------------

    def places(self) -> list[str]:
        """Return the addresses where KappaMQ followers can be asked for bytes of the log."""
        return [place for link in self._following if (place := link.place) is not None]

    @property
    def needed_from(self) -> int:
        """Log files from here on are kept for followers that still need them, up to a limit."""
        end = self.store.log.end
        ends = [link.feed.written for link in self._following if link.feed is not None]
        return max(min(ends, default=end), end - self.config.keep_bytes_max)

    async def renew_below(self, log_min: int) -> None:
        """Log files that followers need cannot be replaced by copies at the log's end: they stay."""

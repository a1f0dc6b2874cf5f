"""The master's end of a replication connection: sends the log as far as there is room, from memory or from its files.

A follower that has everything gets the bytes of a turn straight from memory, in the same turn, or together with those of later turns when
its report on the previous ones arrives (`replication.gathering`). One that lags gets bytes that a worker reads from the
log files, piece by piece, until it has caught up. The end of a log file needs no special message: its end mark and the bytes after
it are sent like all others. The protocols define the other messages and the encoding: `link` (ours) and `apache_link`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from kappamq.broker.copies.log_throttle import LogThrottle
from kappamq.broker.copies.question import Questions
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.native.interface import KernelModule
from kappamq.replication.feed import Feed
from kappamq.replication.frames import PIECE_BYTES_MAX
from kappamq.replication.gathering import GATHERED_BYTES_MAX, Gathering
from kappamq.replication.greeting import Hello
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

GREETING_S = 10.0
_CLOSE_S = 1.0
_READ_AGAIN_S = 1.0


class Master(Protocol):
    """The master's side as a whole, as used by a connection."""

    config: CopiesConfig
    store: MessageStore
    clock: Clock
    term: int
    questions: Questions
    log_throttle: LogThrottle

    def greet(self, hello: Hello) -> None:
        """Raise Refusal for a broker that may not follow us."""
        ...

    def greet_apache(self, reported: int) -> int:
        """Where the log begins for an Apache slave that holds it up to `reported`. Raises Refusal or BadStream."""
        ...

    def ours(self) -> Hello: ...

    def reports_wanted(self) -> str: ...

    def joined(self, link: LogSender) -> None: ...

    def reported(self, link: LogSender) -> None: ...

    def left(self, link: LogSender) -> None: ...

    def read(self, offset: int, size: int) -> Awaitable[bytes]:
        """Read bytes of a log file, in a worker. They end at the end of the file or of the log."""
        ...

    @property
    def kernel_module(self) -> KernelModule: ...


class LogSender(asyncio.Protocol):
    speaks = ""  # the protocol, for operators

    @property
    def place(self) -> str | None:
        """The address where it can be asked for bytes of the log, if any."""
        return None

    def __init__(self, master: Master, lost: Callable[[LogSender], None]) -> None:
        """`lost`: called when the connection is gone, whether or not it ever greeted."""
        self._master = master
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._room = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None
        self.peer = "?"
        self.feed: Feed | None = None
        self._gathering: Gathering | None = None  # None: the bytes of a turn leave at once
        self.said: tuple[int, int] = (0, 0)  # visible and confirmed, as the follower knows them
        self.sent_per_s = 0
        self._sent_before = 0

    # -- who it is ---------------------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int | None:
        """None: not known."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where its clients reach it, else where it connects from."""
        raise NotImplementedError

    # -- the connection ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
        if self.feed is not None:
            self._master.left(self)
        self._transport = None
        self._lost(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # -- the log -----------------------------------------------------------------------------------------------------------

    def written(self, start: int, data: bytes) -> None:
        """A turn has written these bytes. A follower that has all earlier ones gets them now, any other later."""
        feed = self.feed
        if feed is None or self._catching_up is not None:
            return
        gathering = self._gathering
        waiting = 0 if gathering is None else gathering.size
        if start != feed.sent + waiting or waiting + len(data) > feed.room or not self._may_write.is_set():
            if gathering is not None:
                gathering.clear()  # it is read from the log with the rest
            self.catch_up()
            return
        if gathering is not None:
            if waiting + len(data) <= GATHERED_BYTES_MAX and feed.received < feed.sent and gathering.is_near:
                gathering.add(data)
                return
            self._send_gathered()
        if len(data) <= PIECE_BYTES_MAX:
            self._send(start, data)
        else:
            for at in range(0, len(data), PIECE_BYTES_MAX):
                self._send(start + at, data[at : at + PIECE_BYTES_MAX])

    def _send_gathered(self) -> None:
        if self._gathering is not None and self._gathering.size and self.feed is not None:
            self._send(self.feed.sent, self._gathering.take())

    def tell_marks(self) -> None:
        """The marks have moved, or the follower has not heard from us for a while."""
        raise NotImplementedError

    def _send(self, start: int, data: bytes) -> None:
        """Pass bytes of one log file to the connection, and record it in the feed."""
        raise NotImplementedError

    def second_has_passed(self) -> None:
        if self.feed is not None:
            self.sent_per_s = self.feed.sent - self._sent_before if self._sent_before else 0
            self._sent_before = self.feed.sent

    def catch_up(self) -> None:
        self._send_gathered()
        if self._catching_up is None and self.feed is not None and self.feed.sent < self._master.store.log.end:
            self._catching_up = asyncio.create_task(self._send_what_is_missing())
            self._catching_up.add_done_callback(self._caught_up)

    def _caught_up(self, task: asyncio.Task[None]) -> None:
        self._catching_up = None
        if not task.cancelled() and task.exception() is not None:
            log.error("copies: sending the log to %s failed", self.peer, exc_info=task.exception())
            self.close()

    async def _send_what_is_missing(self) -> None:
        feed, store = self.feed, self._master.store
        assert feed is not None
        loop = asyncio.get_running_loop()
        rate = self._master.config.rate_bytes_max
        free_at = loop.time()
        while self._transport is not None and feed.sent < store.log.end:
            if feed.sent < store.log.min:
                log.warning(
                    "copies: %s is at offset %d, but the log now begins at %d: too far behind (keep_bytes_max), it must be seeded again",
                    self.peer, feed.sent, store.log.min,
                )  # fmt: skip
                self.close()
                return
            await self._may_write.wait()
            if not feed.room:
                self._room.clear()
                await self._room.wait()
                continue
            data = await self._master.read(feed.sent, min(PIECE_BYTES_MAX, feed.room))
            if not data:
                await asyncio.sleep(_READ_AGAIN_S)  # the disk cannot read it; the store logs that
                continue
            self._send(feed.sent, data)
            if rate:
                free_at = max(free_at, loop.time()) + len(data) / rate
                await asyncio.sleep(max(0.0, free_at - loop.time()))


def peer_of(transport: asyncio.BaseTransport) -> str:
    host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
    return f"{host}:{port}"

"""One follower's connection, seen from the master: greeting, the log as far as there is room, reports.

A follower that has everything gets what a turn has written straight from memory, in the same turn. One that lags is sent what a worker
reads from the log files, piece by piece, until it has caught up. The end of a log file needs no word of its own: its end mark
and what lies behind it are sent as any bytes are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.native.interface import KernelModule
from kappamq.replication.feed import Feed
from kappamq.replication.frames import (
    OPENING,
    PIECE_BYTES_MAX,
    VERSION,
    BadStream,
    Frames,
    Kind,
    LogPiece,
    Report,
    log_frame,
    text_frame,
    values_of,
)
from kappamq.replication.greeting import NONCE_BYTES, Hello, Refusal, TooFarBehind, Welcome, is_proof, proof
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_GREETING_S = 10.0
_CLOSE_S = 1.0
_READ_AGAIN_S = 1.0


class Takes(Protocol):
    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        """Take a connection over, on which somebody has asked to be seeded."""
        ...


class Master(Protocol):
    """What a link asks of the master's side as a whole."""

    config: CopiesConfig
    store: MessageStore
    term: int
    seeds: Takes

    def greet(self, hello: Hello) -> None:
        """Raises Refusal for a broker that may not follow us."""
        ...

    def ours(self) -> Hello: ...

    def reports_wanted(self) -> str: ...

    def joined(self, link: Link) -> None: ...

    def reported(self, link: Link) -> None: ...

    def left(self, link: Link) -> None: ...

    def read(self, offset: int, size: int) -> Awaitable[bytes]:
        """Bytes of a log file, by a worker. They end at the end of the file or of the log."""
        ...

    @property
    def kernel_module(self) -> KernelModule: ...


class Link(asyncio.Protocol):
    def __init__(self, master: Master, lost: Callable[[Link], None]) -> None:
        """`lost`: told when the connection is gone, whether or not it ever greeted."""
        self._master = master
        self._lost = lost
        self._checksum = master.kernel_module.crc32
        self._frames = Frames(self._checksum)
        self._opening = b""
        self._hello: Hello | None = None
        self._nonce = ""
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._room = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.peer = "?"
        self.feed: Feed | None = None
        self.said: tuple[int, int] = (0, 0)  # visible and confirmed, as the follower knows them

    # -- the connection ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.peer = f"{host}:{port}"
        self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self._too_late)

    def _too_late(self) -> None:
        if self.feed is None:
            log.info("copies: %s did not say within %g s who it is", self.peer, _GREETING_S)
            self.close()

    def data_received(self, data: bytes) -> None:
        try:
            if len(self._opening) < OPENING.size:
                data = self._open(data)
            for kind, content in self._frames.feed(data):
                self._take(kind, content)
        except Refusal as error:
            log.warning("copies: %s may not follow this broker: %s", self.peer, error)
            self._say(Kind.REFUSED, {"why": str(error), "seed": int(isinstance(error, TooFarBehind))})
            self.close()
        except KappaError as error:
            log.warning("copies: the connection of %s is closed: %s", self.peer, error)
            self.close()

    def _open(self, data: bytes) -> bytes:
        """Take the first eight bytes; the rest of what came with them."""
        whole = self._opening + data
        self._opening = whole[: OPENING.size]
        if len(whole) < OPENING.size:
            return b""
        (number,) = OPENING.unpack(self._opening)
        if number >= 0:
            raise BadStream("it speaks the protocol of Apache's slaves, which is not served here")
        if -number != VERSION:
            raise Refusal(
                f"it speaks version {-number} of the protocol for copies, this broker version {VERSION}: run the same release on both"
            )
        return whole[OPENING.size :]

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
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

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        self._write(text_frame(kind, values, self._checksum))

    # -- what it says ------------------------------------------------------------------------------------------------------

    def _take(self, kind: Kind, content: bytes) -> None:
        if kind is Kind.REPORT and self.feed is not None:
            if self.feed.reported(Report.decode(content)):
                self._room.set()
                self._master.reported(self)
        elif kind is Kind.ASK and self._hello is None and self._transport is not None:
            transport, self._transport = self._transport, None
            if self._deadline is not None:
                self._deadline.cancel()
            self._lost(self)
            self._master.seeds.take(transport, content)
        elif kind is Kind.HELLO and self._hello is None:
            self._hello = Hello.of(values_of(content))
            secret = self._master.config.secret
            if secret is None:
                self._welcome(self._hello, "")
            else:
                self._nonce = secrets.token_hex(NONCE_BYTES)
                self._say(Kind.CHALLENGE, {"nonce": self._nonce})
        elif kind is Kind.PROOF and self._hello is not None and self._nonce and self.feed is None:
            secret, theirs = self._master.config.secret or "", self._hello.nonce
            if not is_proof(values_of(content).get("proof"), secret, "follower", theirs, self._nonce):
                raise Refusal(
                    "it does not know the secret of this group: replicationSecret must be the same on all brokers"
                )
            self._welcome(self._hello, proof(secret, "leader", theirs, self._nonce))
        else:
            raise BadStream(f"a frame {kind.name} is not what comes now")

    def _welcome(self, hello: Hello, proved: str) -> None:
        master = self._master
        master.greet(hello)
        ours = master.ours()
        welcome = Welcome(
            broker_id=ours.broker_id,
            address=ours.address,
            term=master.term,
            start=hello.end,
            end=ours.end,
            reports=master.reports_wanted(),
            proof=proved,
        )
        self._say(Kind.WELCOME, welcome.values())
        self._frames.trust()
        self.feed = Feed(hello.end, master.config.window_bytes, hello.generation)
        master.joined(self)
        log.info(
            "copies: %s (%s, id %d) follows this broker from %d on",
            hello.address,
            self.peer,
            hello.broker_id,
            hello.end,
        )
        self.catch_up()

    @property
    def follower(self) -> Hello:
        assert self._hello is not None
        return self._hello

    # -- the log -----------------------------------------------------------------------------------------------------------

    def written(self, start: int, data: bytes) -> None:
        """A turn has written this. A follower that has what comes before it gets it now, any other when its turn comes."""
        feed = self.feed
        if feed is None or self._catching_up is not None:
            return
        if start != feed.sent or len(data) > feed.room or not self._may_write.is_set():
            self.catch_up()
        elif len(data) <= PIECE_BYTES_MAX:
            self._send(start, data)
        else:
            for at in range(0, len(data), PIECE_BYTES_MAX):
                self._send(start + at, data[at : at + PIECE_BYTES_MAX])

    def tell_marks(self) -> None:
        """The marks have moved, or the follower has not heard from us for a while."""
        if self.feed is not None and self._catching_up is None and self._may_write.is_set():
            self._send(self.feed.sent, b"")

    def _send(self, start: int, data: bytes) -> None:
        store, feed = self._master.store, self.feed
        assert feed is not None
        marks = store.marks
        self.said = (marks.visible.offset, marks.confirmed.offset)
        piece = LogPiece(self._master.term, start, *self.said, store.log.min, store.log.end, data)
        feed.took(len(data))
        self._write(log_frame(piece, self._checksum))

    def catch_up(self) -> None:
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
                    "copies: %s is at %d, but the log begins at %d now: it was too far behind (keep_bytes_max) and has to start anew",
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
                await asyncio.sleep(_READ_AGAIN_S)  # the disk does not give it; the store tells that
                continue
            self._send(feed.sent, data)
            if rate:
                free_at = max(free_at, loop.time()) + len(data) / rate
                await asyncio.sleep(max(0.0, free_at - loop.time()))

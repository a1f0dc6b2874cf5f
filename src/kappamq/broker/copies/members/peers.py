"""Connections between the members of a Raft group. Each member connects to every other one and sends on its own connection, on which only
the greeting
comes back. The others' messages arrive on connections that they have opened."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, cast

from kappamq.broker.copies.log_throttle import LogThrottle
from kappamq.broker.copies.question import Questions
from kappamq.broker.copies.seeding.member import MemberSeeding
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.protocol import address
from kappamq.replication.frames import (
    OPENING,
    VERSION,
    BadStream,
    Checksum,
    Frames,
    Kind,
    content_of,
    frame,
    text_frame,
    values_of,
)
from kappamq.replication.greeting import (
    NONCE_BYTES,
    MemberHello,
    Refusal,
    called,
    caller_of,
    check_member,
    is_proof,
    proof,
    whole,
)

log = logging.getLogger(__name__)

_CONNECT_S = 1.0
_GREETING_S = 3.0
_FRAME_S = 60.0
"""How long the rest of a frame may take."""
_AGAIN_S = 0.2
_UNSENT_BYTES_MAX = 64 << 20
_CLOSE_S = 1.0
_TOLD_AFTER_S = 3.0
_DEAD_S = 5
"""A connection ends after this long without a sign of the other machine: the system's own retries take minutes, and until they
end, a member that is back cannot be heard by members that still hold the old connection."""


class Member(Protocol):
    """This member, as its connections use it."""

    config: CopiesConfig
    seeding: MemberSeeding
    questions: Questions
    why_stopped: str | None
    """Why this member does not take part; None: it does."""

    def ours(self) -> MemberHello: ...

    def connected(self, hello: MemberHello) -> None:
        """We are connected to that member."""
        ...

    def disconnected(self, member: str) -> None: ...

    def received(self, hello: MemberHello, content: bytes) -> MemberHello:
        """Return the sender, identified by more than the greeting. Raises BadStream for a message that this member would not send."""
        ...


class Peer:
    """Our connection to one other member: kept open forever, and the messages to send on it, in order."""

    def __init__(
        self,
        member: Member,
        name: str,
        place: str,
        checksum: Checksum,
        elsewhere: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self._member = member
        self._elsewhere = elsewhere
        self._tries = 0  # since the member was reached
        self.name = name
        self.place = place
        self._checksum = checksum
        self._out: asyncio.StreamWriter | None = None
        self._waiting: deque[bytes | asyncio.Future[bytes | None]] = deque()
        self._told: str | None = None
        self._away_since: float | None = None
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        self.end()
        await asyncio.gather(self._task, return_exceptions=True)

    def end(self) -> None:
        """Stop sending; the connection is closed in a moment."""
        self._task.cancel()

    @property
    def is_connected(self) -> bool:
        return self._out is not None

    # -- sending -----------------------------------------------------------------------------------------------------------

    def say(self, content: bytes) -> None:
        """Send a message if there is a connection, else drop it: the Raft core repeats messages that need an answer."""
        if self._out is None:
            return
        if self._waiting:
            self._waiting.append(content)
        else:
            self._write(content)

    def tell_to_seed(self) -> None:
        """Tell it that its log is too old."""
        if self._out is not None and not self._out.transport.is_closing():
            self._out.write(frame(Kind.SEED, b"", self._checksum))

    def say_later(self, content: Awaitable[bytes | None]) -> None:
        """Send bytes that are still being read; later messages wait for them. None: they cannot be sent."""
        if self._out is None:
            asyncio.ensure_future(content).add_done_callback(_forget)
            return
        task = asyncio.ensure_future(content)
        self._waiting.append(task)
        task.add_done_callback(lambda _task: self._go_on())

    def _go_on(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, bytes):
                self._write(first)
            elif not first.done():
                return
            elif first.cancelled() or first.exception() is not None:
                # Later bytes would not fit, and would never be requested again: on a new connection everything starts over.
                self._tell(f"what it needs cannot be read: {'cancelled' if first.cancelled() else first.exception()}")
                if self._out is not None:
                    self._out.transport.abort()
                return
            elif (content := first.result()) is not None:
                self._write(content)
            self._waiting.popleft()

    def _write(self, content: bytes) -> None:
        out = self._out
        if out is None or out.transport.is_closing():
            return
        if out.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self._tell(f"{self.name} takes nothing")
            out.transport.abort()
            return
        out.write(frame(Kind.RAFT, content, self._checksum))

    # -- keeping the connection --------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            try:
                await self._once()
            except (KappaError, OSError, EOFError, TimeoutError) as error:
                self._tell(str(error) or "it does not answer in time")
            except Exception:
                log.exception("raft: the connection to member %s failed", self.name)
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, why: str) -> None:
        """Log each problem once, but not for members that are just being started or stopped."""
        now = asyncio.get_running_loop().time()
        if self._away_since is None:
            self._away_since = now
        if why != self._told and now - self._away_since >= _TOLD_AFTER_S:
            self._told = why
            log.warning("raft: member %s (%s) cannot be reached: %s", self.name, self.place, why)

    def _is_back(self) -> None:
        if self._told is not None:
            log.warning("raft: member %s (%s) can be reached again", self.name, self.place)
        self._told = self._away_since = None

    async def _once(self) -> None:
        place = self.place
        if self._tries % 2 == 1:
            place = self._elsewhere(self.name) or place
        self._tries += 1
        host, port = address.split(place)
        async with asyncio.timeout(_CONNECT_S):
            reader, out = await asyncio.open_connection(host, port)
        try:
            _end_when_dead(out.transport)
            async with asyncio.timeout(_GREETING_S):
                theirs = await self._greet(reader, out)
            self._tries -= 1  # that address is right, also for the next time
            self._is_back()
            self._out = out
            self._member.connected(theirs)
            while await reader.read(4096):
                raise BadStream(f"member {self.name} speaks on our connection")
            raise EOFError("the connection was closed")
        finally:
            was_connected, self._out = self._out is not None, None
            for waiting in self._waiting:
                if not isinstance(waiting, bytes):
                    waiting.add_done_callback(_forget)
            self._waiting.clear()
            out.transport.abort()
            if was_connected:
                self._member.disconnected(self.name)

    async def _greet(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> MemberHello:
        frames = Frames(self._checksum)
        hello = replace(self._member.ours(), nonce=secrets.token_hex(NONCE_BYTES))
        said = content_of(hello.values())
        out.write(OPENING.pack(-VERSION) + frame(Kind.MEMBER, said, self._checksum))
        secret, ours, nonce = self._member.config.secret, whole(said), ""
        while True:
            data = await reader.read(1 << 16)
            if not data:
                raise EOFError("the connection was closed during the greeting")
            for kind, content in frames.feed(data):
                values = values_of(content)
                if kind is Kind.REFUSED:
                    raise Refusal(f"it refuses: {str(values.get('why'))[:2000]}")
                if kind is Kind.CHALLENGE and not nonce:
                    nonce = str(values.get("nonce"))
                    if secret is None:
                        raise Refusal("it asks for the secret of the group: set replicationSecret here, too")
                    proved = proof(secret, caller_of(self.name), ours, nonce)
                    out.write(text_frame(Kind.PROOF, {"proof": proved}, self._checksum))
                elif kind is Kind.WELCOME:
                    theirs = MemberHello.of(values)
                    if secret is not None and not is_proof(theirs.proof, secret, called(self.name), ours, nonce):
                        raise Refusal("it does not know the secret of this group (replicationSecret)")
                    check_member(theirs, self._member.ours())
                    if theirs.member != self.name:
                        raise Refusal(f"at this address is member {theirs.member}")
                    return theirs
                else:
                    raise BadStream(f"a frame {kind.name} was not expected here")


def _end_when_dead(transport: asyncio.BaseTransport) -> None:
    """Detect a machine that lost power, or a network that drops packets: neither closes connections."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)  # probe idle connections
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _DEAD_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAD_S)


def _forget(task: asyncio.Future[bytes | None]) -> None:
    """Drop bytes that were being read for a closed connection, and the error, if any."""
    if not task.cancelled():
        task.exception()


class MemberLink(asyncio.Protocol):
    """A connection that another member has opened to us."""

    def __init__(
        self,
        member: Member,
        knows: Callable[[MemberHello], bool],
        checksum: Checksum,
        lost: Callable[[MemberLink], object],
        log_throttle: LogThrottle,
        greeted: Callable[[MemberLink, str], object] = lambda link, name: None,
    ) -> None:
        """`knows`: whether that is one of the members, or one that founds the group with us. `greeted`: called when it has proved its
        name."""
        self._when_greeted = greeted
        self._knows = knows
        self._log_throttle = log_throttle
        self._member = member
        self._checksum = checksum
        self._lost = lost
        self._frames = Frames(checksum)
        self._opening = b""
        self._hello: MemberHello | None = None
        self._nonce = self._said = ""
        self._greeted = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None  # the deadline of a frame that is not whole
        self.peer = "?"

    @property
    def is_greeted(self) -> bool:
        return self._greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.peer = f"{host}:{port}"
        _end_when_dead(self._transport)
        self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self._too_late)

    def _too_late(self) -> None:
        if not self._greeted:
            log.info("raft: %s did not complete its greeting within %g s", self.peer, _GREETING_S)
            self.close()

    def data_received(self, data: bytes) -> None:
        try:
            if len(self._opening) < OPENING.size:
                data = self._open(data)
            for kind, content in self._frames.feed(data):
                self._no_rest()
                self._take(kind, content)
            if self._greeted and self._rest is None and self._frames.is_within:
                self._rest = asyncio.get_running_loop().call_later(_FRAME_S, self._rest_too_late)
        except Refusal as error:
            if self._log_throttle.is_news(self.peer, str(error)):
                log.warning("raft: refused %s: %.1000s", self.peer, error)
            self._say(Kind.REFUSED, {"why": str(error)[:1000]})
            self.close()
        except KappaError as error:
            log.warning("raft: closed the connection of %s: %.1000s", self.peer, error)
            self.close()

    def _no_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _rest_too_late(self) -> None:
        log.warning("raft: closed the connection of %s: it did not complete a frame within %g s", self.peer, _FRAME_S)
        self.abort()

    def let_go(self) -> None:
        """The same member has opened others since; the end of this one says nothing about it."""
        self._greeted = False
        self.abort()

    def _open(self, data: bytes) -> bytes:
        whole = self._opening + data
        self._opening = whole[: OPENING.size]
        if len(whole) < OPENING.size:
            return b""
        (number,) = OPENING.unpack(self._opening)
        if number >= 0:
            raise BadStream(
                "it speaks the protocol of Apache's slaves; members of a Raft group serve their own kind only"
            )
        if -number != VERSION:
            raise Refusal(
                f"it speaks version {-number} of the protocol for copies, this broker version {VERSION}: run the same release on both"
            )
        return whole[OPENING.size :]

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._no_rest()
        self._transport = None
        self._lost(self)
        if self._greeted and self._hello is not None:
            self._member.disconnected(self._hello.member)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(text_frame(kind, values, self._checksum))

    def _take(self, kind: Kind, content: bytes) -> None:
        secret = self._member.config.secret
        if kind is Kind.RAFT and self._greeted and self._hello is not None:
            self._hello = self._member.received(self._hello, content)
        elif kind is Kind.SEED and self._greeted and self._hello is not None:
            self._member.seeding.cannot_go_on(self._hello.member)
        elif self._member.questions.knows(kind) and self._hello is None and self._transport is not None:
            transport, self._transport = self._transport, None
            if self._deadline is not None:
                self._deadline.cancel()
            self._lost(self)
            self._member.questions.take(kind, transport, content)
        elif kind is Kind.MEMBER and self._hello is None:
            self._hello = MemberHello.of(values_of(content))
            self._said = whole(content)
            if secret is None:
                self._welcome(self._hello, "")
            else:
                self._nonce = secrets.token_hex(NONCE_BYTES)
                self._say(Kind.CHALLENGE, {"nonce": self._nonce})
        elif kind is Kind.PROOF and self._hello is not None and self._nonce and not self._greeted:
            theirs, me = self._said, self._member.config.member or ""
            if not is_proof(values_of(content).get("proof"), secret or "", caller_of(me), theirs, self._nonce):
                raise Refusal(
                    "it does not know the secret of this group: replicationSecret must be the same on all members"
                )
            self._welcome(self._hello, proof(secret or "", called(me), theirs, self._nonce))
        elif kind is Kind.HELLO:
            raise Refusal("this broker is a member of a Raft group: it has no slaves, only other members (dLegerPeers)")
        else:
            raise BadStream(f"a frame {kind.name} was not expected here")

    def _welcome(self, hello: MemberHello, proved: str) -> None:
        ours = self._member.ours()
        check_member(hello, ours)
        if self._member.why_stopped is not None:
            raise Refusal(f"this member takes no part until a restart: {self._member.why_stopped}")
        if not self._knows(hello):
            raise Refusal(
                f"there is no member {hello.member} in this group: if there is to be one, say so to its leader (`kappamq member add`)"
            )
        self._greeted = True
        self._frames.trust()
        self._when_greeted(self, hello.member)
        self._say(Kind.WELCOME, replace(ours, proof=proved).values())

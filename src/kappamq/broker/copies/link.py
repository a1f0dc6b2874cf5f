"""The connection of one of our own followers, seen from the master: greeting, the log with our marks, reports."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from kappamq.broker.copies.log_sender import GREETING_S, LogSender, Master
from kappamq.errors import KappaError
from kappamq.replication.feed import Feed
from kappamq.replication.frames import BadStream, Frames, Kind, LogPiece, Report, log_frame, text_frame, values_of
from kappamq.replication.gathering import Gathering
from kappamq.replication.greeting import (
    NONCE_BYTES,
    REFUSES,
    Hello,
    Refusal,
    TooFarBehind,
    Welcome,
    is_proof,
    proof,
    whole,
)

log = logging.getLogger(__name__)

_COPIED_BYTES_MAX = 32 << 10
_SILENT_SECONDS_MAX = 5  # a follower reports at least every second


class Link(LogSender):
    speaks = "kappamq"

    def __init__(self, master: Master, lost: Callable[[LogSender], None]) -> None:
        super().__init__(master, lost)
        self._checksum = master.kernel_module.crc32
        self._frames = Frames(self._checksum)
        self._hello: Hello | None = None
        self._nonce = self._said = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._silent_seconds = 0

    # -- the connection ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = asyncio.get_running_loop().call_later(GREETING_S, self._too_late)

    def _too_late(self) -> None:
        if self.feed is None:
            log.info("copies: %s did not complete its greeting within %g s", self.peer, GREETING_S)
            self.close()

    def data_received(self, data: bytes) -> None:
        self._silent_seconds = 0
        try:
            # Usually a single report arrives; if several arrive together only the last one matters.
            report = self._frames.report(data) if self.feed is not None else None
            news = False
            if report is not None and self.feed is not None:
                news = self.feed.reported(report)
            else:
                for kind, content in self._frames.feed(data):
                    if kind is Kind.REPORT and self.feed is not None:
                        news |= self.feed.reported(Report.decode(content))
                    else:
                        self._take(kind, content)
            if news:
                self._reported()
        except Refusal as error:
            if self._master.log_throttle.is_news(self.peer, str(error)):
                log.warning("copies: refused %s as a slave: %.1000s", self.peer, error)
            self._say(Kind.REFUSED, {"why": str(error)[:1000], **self._to_seed(error)})
            self.close()
        except KappaError as error:
            log.warning("copies: closed the connection of %s: %.1000s", self.peer, error)
            self.close()

    def _to_seed(self, error: Refusal) -> dict[str, object]:
        """Only a broker that knows the secret may tell a copy that its log is useless."""
        if not isinstance(error, TooFarBehind):
            return {"seed": 0}
        secret = self._master.config.secret
        return {"seed": 1, "proof": "" if secret is None else proof(secret, REFUSES, self._said, self._nonce)}

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(error)

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        self._write(text_frame(kind, values, self._checksum))

    # -- its messages ------------------------------------------------------------------------------------------------------

    def _take(self, kind: Kind, content: bytes) -> None:
        if self._master.questions.knows(kind) and self._hello is None and self._transport is not None:
            self._hand_over(kind, self._transport, content)
        elif kind is Kind.HELLO and self._hello is None:
            self._hello = Hello.of(values_of(content))
            self._said = whole(content)
            secret = self._master.config.secret
            if secret is None:
                self._welcome(self._hello, "")
            else:
                self._nonce = secrets.token_hex(NONCE_BYTES)
                self._say(Kind.CHALLENGE, {"nonce": self._nonce})
        elif kind is Kind.PROOF and self._hello is not None and self._nonce and self.feed is None:
            secret, theirs = self._master.config.secret or "", self._said
            if not is_proof(values_of(content).get("proof"), secret, "follower", theirs, self._nonce):
                raise Refusal(
                    "it does not know the secret of this group: replicationSecret must be the same on all brokers"
                )
            self._welcome(self._hello, proof(secret, "leader", theirs, self._nonce))
        else:
            raise BadStream(f"a frame {kind.name} was not expected here")

    def _reported(self) -> None:
        feed, gathering = self.feed, self._gathering
        assert feed is not None
        self._room.set()
        if gathering is not None:
            gathering.reported(feed.received, self._master.clock.liveness())
            self._send_gathered()  # first: the follower works on it while we answer senders
        self._master.reported(self)

    def _hand_over(self, kind: Kind, transport: asyncio.Transport, content: bytes) -> None:
        """It does not want to follow but has a question: hand the connection over."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._lost(self)
        self._master.questions.take(kind, transport, content)

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
        self._say(Kind.WELCOME, welcome.values())  # it stays limited to short frames: only reports follow
        self.feed = Feed(hello.end, master.config.window_bytes, hello.generation)
        if welcome.reports == "written":  # only then does a report follow each piece at once
            self._gathering = Gathering()
        master.joined(self)
        log.info(
            "copies: %s (%s, id %d) replicates from offset %d",
            hello.address,
            self.peer,
            hello.broker_id,
            hello.end,
        )
        self.catch_up()

    @property
    def broker_id(self) -> int | None:
        return None if self._hello is None else self._hello.broker_id

    @property
    def address(self) -> str:
        return self.peer if self._hello is None else self._hello.address

    @property
    def place(self) -> str | None:
        hello = self._hello
        if hello is None or self.feed is None or not hello.copies_port:
            return None
        return f"{hello.address.rpartition(':')[0]}:{hello.copies_port}"

    def second_has_passed(self) -> None:
        super().second_has_passed()
        # Count seconds in which this broker ran, not elapsed time: after a pause of its own it has not yet read what has arrived.
        self._silent_seconds += 1
        if self._silent_seconds > _SILENT_SECONDS_MAX:
            log.warning(
                "copies: %s has been silent for %d s: closing its connection", self.address, _SILENT_SECONDS_MAX
            )
            self.abort()

    # -- the log -----------------------------------------------------------------------------------------------------------

    def tell_marks(self) -> None:
        """The marks have moved, or the follower has not heard from us for a while."""
        if self.feed is not None and self._may_write.is_set():
            self._send(self.feed.sent, b"")

    def _send(self, start: int, data: bytes) -> None:
        store, feed = self._master.store, self.feed
        assert feed is not None
        marks = store.marks
        self.said = (marks.visible.offset, marks.confirmed.offset)
        piece = LogPiece(self._master.term, start, *self.said, store.log.min, store.log.end, data)
        nothing_under_way = feed.received == feed.sent
        feed.took(len(data))
        if nothing_under_way and data and self._gathering is not None:
            self._gathering.sent(feed.sent, self._master.clock.liveness())
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        head, _data = log_frame(piece, self._checksum)
        # One write to the socket: a second one would cost more than copying a few kilobytes.
        if len(data) <= _COPIED_BYTES_MAX:
            transport.write(head + data)
        else:
            transport.writelines((head, data))

"""The slave's side: follows a master, stores its log, reports our progress, makes visible what the master does.

One task connects, greets and receives, and starts over when that ends. What arrives is stored as whole records by `store.receive`,
entered into the queues as far as the master shows its log, and changes of topics, groups and offsets among it are applied to our
tables (`Metadata.follow`). A report never claims more than is stored as it says.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import replace

from kappamq.broker.copies.apache.master import ApacheMaster
from kappamq.broker.copies.apache.stream import ClassicStream
from kappamq.broker.copies.incoming import Incoming, NotKnown, connected, some
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.tables import Tables
from kappamq.clock import Clock
from kappamq.config.copies import APACHE, KAPPAMQ, CopiesConfig
from kappamq.errors import KappaError, StoreError
from kappamq.replication.frames import (
    OPENING,
    VERSION,
    BadStream,
    Frames,
    Kind,
    LogPiece,
    Report,
    content_of,
    frame,
    text_frame,
    values_of,
)
from kappamq.replication.greeting import NONCE_BYTES, REFUSES, Hello, Refusal, Welcome, is_proof, proof, whole
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_GREETING_S = 10.0
_SILENCE_S = 5.0  # a master beats every second
_AGAIN_S = (0.2, 3.0)  # first pause before the next attempt, and the longest
_OPENING_S = 3.0
_SELDOM_S = 0.5
_MUCH_BYTES = 16 << 10  # less than a quarter of the smallest window that a master may have
_FRAMES_A_TURN = 64  # then other work gets its turn
_ALIVE_S = 1.0  # a master disconnects a slave that sent nothing for several seconds


class Following:
    def __init__(
        self,
        config: CopiesConfig,
        store: MessageStore,
        writer: LogWriter,
        metadata: Metadata,
        tables: Tables,
        clock: Clock,
        ours: Callable[[], Hello],
        master_address: Callable[[], str | None],
        shorten: Callable[[int], None],
        apache: ApacheMaster,
        too_far_behind: Callable[[str, str], None],
    ) -> None:
        """`ours`: this broker's greeting. `master_address`: the master's copies port, if known now. `shorten`: called with
        the beginning of the master's log, below which we may delete log files. `apache`: handles an Apache master.
        `too_far_behind`: called with the master's address and its text, if our log ends before its begins."""
        self._config = config
        self._store = store
        self._writer = writer
        self._metadata = metadata
        self._tables = tables
        self._clock = clock
        self._ours = ours
        self._master_address = master_address
        self._shorten = shorten
        self._too_far_behind = too_far_behind
        self._checksum = store.kernel_module.crc32
        self._task: asyncio.Task[None] | None = None
        self._out: asyncio.StreamWriter | None = None
        self._problem: str | None = None
        self._welcome: Welcome | None = None
        self._reported = (0, 0, 0)
        self._reported_at = 0.0
        self._received = 0  # the end of the bytes received, including an incomplete record
        self._generation = 0
        self._flush_asked = 0
        self._beginnings = 0
        self.place: str | None = None  # of the master's copies, as far as it is known
        self.received_per_s = 0
        self._second = (0.0, 0)  # when it began, and the log's end then
        self.shown = self.safe = 0  # how far the master's log is visible, and how far it is confirmed
        self.master_end = 0
        self.heard_at: float | None = None
        self._apache = apache
        self._apache_at: str | None = None  # the address at which an Apache master was found
        self._classic: ClassicStream | None = None

    # -- its life ----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def end(self) -> None:
        """Return when nothing more is stored."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def is_active(self) -> bool:
        """Whether this node is a slave, with or without a master to follow."""
        return self._task is not None

    @property
    def problem(self) -> str | None:
        """Why this slave is not replicating; None if it is."""
        return self._problem

    @property
    def reported_at(self) -> float | None:
        return self._classic.reported_at if self._classic is not None else self._reported_at or None

    @property
    def is_connected(self) -> bool:
        return self._welcome is not None or self._classic is not None

    @property
    def speaks(self) -> str:
        """The protocol, for operators; empty while this slave is not replicating."""
        return "apache" if self._classic is not None else "kappamq" if self._welcome is not None else ""

    @property
    def master(self) -> Welcome | None:
        """The address of the master that this slave replicates from."""
        return self._welcome

    def marks(self) -> tuple[int, int]:
        """For the mode of a follower."""
        return self.shown, self.safe

    async def _follow(self) -> None:
        pause, longest = _AGAIN_S
        while True:
            beginnings = self._beginnings
            try:
                await self._once()
            except StoreError as error:
                self._tell(logging.ERROR, f"stored nothing more: {error}")
            except (KappaError, OSError, EOFError) as error:
                self._tell(logging.WARNING, str(error) or type(error).__name__)
            except Exception:
                log.exception("copies: replication from the master failed")
            if self._beginnings > beginnings:
                pause = _AGAIN_S[0]
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(longest, pause * 2)

    def _tell(self, level: int, why: str) -> None:
        """Log a problem once until it is over."""
        if why != self._problem:
            self._problem = why
            log.log(level, "copies: this slave is not replicating: %s", why)

    async def _once(self) -> None:
        self.place = place = self._master_address()
        if place is None:
            raise NotKnown("no name server knows a master of this broker, and haMasterAddress is not set")
        if self._config.protocol == APACHE or place == self._apache_at:
            await self._follow_apache(place)
            return
        try:
            await self._follow_ours(place)
        except Unanswered:
            if self._config.protocol == KAPPAMQ or not await self._apache.is_one(place):
                raise
            self._apache_at = place
            await self._follow_apache(place)

    async def _follow_ours(self, place: str) -> None:
        reader, out = await connected(place)
        self._out = out
        frames = Frames(self._checksum)
        try:
            early = await self._greet(reader, out, frames, place)
            await self._receive(reader, frames, early)
        finally:
            self._welcome = self._out = None
            out.transport.abort()

    async def _follow_apache(self, place: str) -> None:
        """Raise the error that ends it; the next attempt asks again what the master is."""
        self._apache_at = None
        start = await self._apache.greet(place, self._store.log.end)
        reader, out = await connected(place)
        self._classic = ClassicStream(reader, out, self._writer, self._store, self._clock, self._arrived)
        try:
            self._problem = None
            self._beginnings += 1
            self._apache_at = place
            self._arrived()
            log.info(
                "copies: replicating from the Apache broker at %s, from offset %d, %d bytes behind",
                place,
                start.offset,
                start.behind,
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._classic.receive())
                tasks.create_task(self._apache.keep_asking(place, self._classic, self._shorten))
        except* (KappaError, OSError, EOFError) as several:
            raise several.exceptions[0] from None
        finally:
            self._classic = None
            self._apache.leave()
            out.transport.abort()

    def _arrived(self) -> None:
        """An Apache master makes everything visible that it sends, and does not report what is confirmed."""
        self.heard_at = self._clock.liveness()
        end = self._store.log.end
        self.shown, self.safe, self.master_end = max(self.shown, end), max(self.safe, end), max(self.master_end, end)
        self._writer.follow_marks()
        for change in self._metadata.follow():
            self._tables.followed(*change)

    # -- greeting ----------------------------------------------------------------------------------------------------------

    async def _greet(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, frames: Frames, place: str
    ) -> list[tuple[Kind, bytes]]:
        """Return the bytes that came after the welcome."""
        await self._open(reader, out, place)
        hello = replace(self._ours(), nonce=secrets.token_hex(NONCE_BYTES))
        self._generation = hello.generation
        greeting = content_of(hello.values())
        out.write(frame(Kind.HELLO, greeting, self._checksum))
        said = whole(greeting)
        nonce, secret = "", self._config.secret
        try:
            async with asyncio.timeout(_GREETING_S):
                while True:
                    came = list(frames.feed(await some(reader)))
                    for number, (kind, content) in enumerate(came):
                        values = values_of(content)
                        if kind is Kind.REFUSED:
                            why = str(values.get("why"))[:2000]
                            shown = values.get("proof")
                            if values.get("seed") and (secret is None or is_proof(shown, secret, REFUSES, said, nonce)):
                                self._too_far_behind(place, why)
                            raise Refusal(f"the master at {place} refuses: {why}")
                        if kind is Kind.CHALLENGE and not nonce:
                            nonce = str(values.get("nonce"))
                            if not nonce.isascii():
                                raise BadStream(f"a challenge that is no number in hex: {nonce!r:.80}")
                            if secret is None:
                                raise Refusal(
                                    f"the master at {place} asks for the secret of the group: set replicationSecret here, too"
                                )
                            proved = proof(secret, "follower", said, nonce)
                            out.write(text_frame(Kind.PROOF, {"proof": proved}, self._checksum))
                        elif kind is Kind.WELCOME:
                            welcome = Welcome.of(values)
                            if secret is not None and not is_proof(welcome.proof, secret, "leader", said, nonce):
                                raise Refusal(
                                    f"the master at {place} does not know the secret of this group (replicationSecret)"
                                )
                            if welcome.start != self._store.log.end:
                                raise BadStream(
                                    f"the master would send from {welcome.start}, but the log here ends at {self._store.log.end}"
                                )
                            self._began(welcome, place)
                            frames.trust()
                            return came[number + 1 :]
                        else:
                            raise BadStream(f"a frame {kind.name} was not expected here")
        except TimeoutError:
            raise NotKnown(f"the master at {place} did not answer within {_GREETING_S:g} s") from None

    async def _open(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, place: str) -> None:
        """Send our protocol number, and nothing else before the other side has shown that it speaks the same: an Apache master would take
        any bytes for a report, and acknowledge messages because of it. It ignores a negative number."""
        out.write(OPENING.pack(-VERSION))
        try:
            async with asyncio.timeout(_OPENING_S):
                await reader.readexactly(OPENING.size)  # a refusal names the version, if it is another one
        except TimeoutError:
            raise Unanswered(
                f"the broker at {place} does not answer in the protocol for copies: it hangs, or is not a KappaMQ broker. "
                f"If it is Apache's, set copies.protocol=apache"
            ) from None
        except asyncio.IncompleteReadError:
            raise NotKnown("the master has closed the connection") from None

    def _began(self, welcome: Welcome, place: str) -> None:
        self._welcome = welcome
        if self._problem is not None:
            log.info("copies: this slave is replicating from its master again")
        self._problem = None
        self._beginnings += 1
        self.heard_at = self._clock.liveness()
        self._reported = (0, 0, 0)
        self._flush_asked = 0
        end = self._received = self._store.log.end
        self.shown, self.safe = min(self.shown, end), min(self.safe, end)  # less may be visible on another master
        log.info(
            "copies: replicating from %s (%s), from offset %d, %d bytes behind",
            welcome.address,
            place,
            end,
            welcome.end - end,
        )

    # -- the log -----------------------------------------------------------------------------------------------------------

    async def _receive(self, reader: asyncio.StreamReader, frames: Frames, early: list[tuple[Kind, bytes]]) -> None:
        incoming = Incoming(self._store.log.end)
        for kind, content in early:
            self._take(kind, content, incoming)
        while True:
            self._report()
            try:
                async with asyncio.timeout(_SILENCE_S):
                    data = await some(reader)
            except TimeoutError:
                raise NotKnown(f"the master has been silent for {_SILENCE_S:g} s") from None
            for number, (kind, content) in enumerate(frames.feed(data)):
                self._take(kind, content, incoming)
                if number % _FRAMES_A_TURN == _FRAMES_A_TURN - 1:
                    await asyncio.sleep(0)

    def _take(self, kind: Kind, content: bytes, incoming: Incoming) -> None:
        if kind is not Kind.LOG:
            raise BadStream(f"a frame {kind.name} was not expected here")
        piece = LogPiece.decode(content, self._checksum)
        self.heard_at = self._clock.liveness()
        self.master_end = piece.end
        incoming.add(piece.offset, memoryview(piece.data))
        self._received = piece.offset + len(piece.data)
        self._writer.receive(incoming)
        # Bytes that are not here yet cannot be made visible: the next piece repeats how far the master's log is visible.
        end = self._store.log.end
        self.shown, self.safe = max(self.shown, min(piece.visible, end)), max(self.safe, min(piece.confirmed, end))
        self._writer.follow_marks()
        for change in self._metadata.follow():
            self._tables.followed(*change)
        self._shorten(piece.log_min)

    # -- reports -----------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report the end of our log, if a sender waits for it, if much has arrived, or if a report is due."""
        welcome, marks = self._welcome, self._store.marks
        if welcome is None:
            return
        written = marks.written.offset
        now = (written, min(marks.flushed.offset, written), max(written, self._received))
        if welcome.reports == "flushed" and now[1] < now[0] and self._flush_asked <= now[1]:
            self._flush_asked = now[0]
            self._writer.when_flushed(now[0], self._report)
        waited_for = {"flushed": now[1] != self._reported[1], "written": now[0] != self._reported[0]}
        much = now[2] - self._reported[2] >= _MUCH_BYTES
        since = self._clock.liveness() - self._reported_at
        late = since >= (_ALIVE_S if now == self._reported else _SELDOM_S)
        if waited_for.get(welcome.reports) or much or late:
            self._say(now)

    def ticked(self) -> None:
        now, (began, before) = self._clock.liveness(), self._second
        if now - began >= 1:
            end = self._store.log.end
            self._second, self.received_per_s = (now, end), round((end - before) / (now - began)) if began else 0
        self._report()
        if self._classic is not None:
            self._classic.report()

    def _say(self, now: tuple[int, int, int]) -> None:
        assert self._welcome is not None
        if self._out is None or self._out.transport.is_closing():
            return
        self._reported, self._reported_at = now, self._clock.liveness()
        report = Report(self._welcome.term, self._generation, *now)
        self._out.write(frame(Kind.REPORT, report.encode(), self._checksum))


class Unanswered(NotKnown):
    """The server at that address does not speak our protocol."""

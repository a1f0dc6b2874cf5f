"""The leader's side of seeding: snapshots for a follower that cannot go on with what it has, and log files that stay until it follows."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, cast

from kappamq.broker.copies.seeding.files import OWN_SETTINGS
from kappamq.broker.upkeep.slices import Worker
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.replication.frames import PIECE_BYTES_MAX, BadStream, Checksum, Frames, Kind, frame, text_frame, values_of
from kappamq.replication.greeting import NONCE_BYTES, Refusal, is_proof, proof
from kappamq.replication.seeding import Asking, FilePiece, Offer, check_asking, is_too_old
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_GREETING_S: Final = 10.0
_HOLD_S: Final = 600.0
"""So long log files stay for a follower that has got its snapshots and does not follow yet."""
_HELD_MAX: Final = 64
_LINKS_MAX: Final = 16
_CLOSE_S: Final = 1.0
_STALL_S: Final = 60.0
"""So long a follower may take nothing of what it is given."""


class Leader(Protocol):
    """What is asked of the node, which leads or does not."""

    def may_seed(self) -> None:
        """Raises Refusal if this node does not lead."""
        ...

    def terms_at(self, begin: int) -> str:
        """The file of terms that goes with a log that begins there; "" if there are no terms."""
        ...


class SeedGiver:
    def __init__(
        self,
        config: CopiesConfig,
        ours: Asking,
        address: Callable[[], str],
        leader: Leader,
        store: MessageStore,
        metadata: Metadata,
        upkeep: Upkeep,
        clock: Clock,
        worker: Worker,
    ) -> None:
        self.config = config
        self._ours = ours
        self._address = address
        self._leader = leader
        self._store = store
        self._metadata = metadata
        self._upkeep = upkeep
        self._clock = clock
        self._worker = worker
        self._links: dict[SeedLink, None] = {}  # the oldest first
        self._held: dict[str, tuple[int, float]] = {}  # by follower: log offset, and until when

    @property
    def checksum(self) -> Checksum:
        return self._store.kernel_module.crc32

    # -- log files that are kept -------------------------------------------------------------------------------------------

    @property
    def needed_from(self) -> int:
        now, end = self._clock.liveness(), self._store.log.end
        self._held = {who: held for who, held in self._held.items() if held[1] > now}
        kept = min((offset for offset, _until in self._held.values()), default=end)
        return max(kept, end - self.config.keep_bytes_max)

    async def renew_below(self, log_min: int) -> None:
        """What is kept for a follower cannot be stored again."""

    def _hold(self, who: str, offset: int) -> None:
        self._held.pop(who, None)
        while len(self._held) >= _HELD_MAX:
            del self._held[next(iter(self._held))]
        self._held[who] = (offset, self._clock.liveness() + _HOLD_S)

    # -- connections -------------------------------------------------------------------------------------------------------

    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        """A connection on which somebody asks. Whoever is being seeded stays: nobody gets rid of them by asking often enough."""
        if len(self._links) >= _LINKS_MAX:
            idle = next((link for link in self._links if not link.is_giving), None)
            if idle is None:
                transport.abort()
                return
            del self._links[idle]
            idle.abort()
        link = SeedLink(self, transport, self._gone)
        self._links[link] = None
        transport.set_protocol(link)
        link.asked(content)

    def _gone(self, link: SeedLink) -> None:
        self._links.pop(link, None)

    def stop(self) -> None:
        for link in list(self._links):
            link.abort()

    def answer(self, asking: Asking) -> Offer:
        """What we would give. Raises Refusal."""
        self._leader.may_seed()
        check_asking(asking, self._ours)
        log_files = self._store.log
        needed = bool(asking.wanted) or is_too_old(asking.reaches, log_files.min)
        files = len(self._metadata.files()) if needed else 0
        return Offer(address=self._address(), begin=log_files.min, end=log_files.end, files=files, bytes=0)

    async def give(self, asking: Asking, link: SeedLink) -> None:
        """The offer, and all files. Raises Refusal, KappaError or OSError."""
        store = self._store
        self._hold(asking.who, store.log.min)
        begin = await self._upkeep.renew_snapshots()
        self._hold(asking.who, begin)
        names = [name for name in self._metadata.files() if name != OWN_SETTINGS]
        missing = [name for name in names if self._metadata.stamp(name) < begin]
        if missing:
            raise Refusal(f"snapshots cannot be written now ({', '.join(missing)}): try again")
        opened: list[tuple[str, int, int]] = []
        files = store.files
        try:
            for name in names:
                fd = files.open(store.config.root / "config" / name, writable=False)
                opened.append((name, fd, files.size(fd)))
            size = sum(size for _name, _fd, size in opened)
            link.offer(
                Offer(
                    address=self._address(),
                    begin=begin,
                    end=store.log.end,
                    files=len(opened),
                    bytes=size,
                    terms=self._leader.terms_at(begin),
                )
            )
            for name, fd, size in opened:
                at = 0
                while True:
                    data = await self._worker(files.pread, fd, PIECE_BYTES_MAX, at)
                    if not data and size:
                        raise Refusal(f"{name} cannot be read at {at} of {size} bytes")
                    await link.send(FilePiece(name, at, size, data[: size - at]))
                    self._hold(asking.who, begin)
                    at += len(data)
                    if at >= size:
                        break
        finally:
            for _name, fd, _size in opened:
                files.close(fd)
        log.warning("copies: %s gets everything anew, the log from %d to %d", asking.who, begin, store.log.end)


class SeedLink(asyncio.Protocol):
    """The connection of one that asks, from its question on."""

    def __init__(self, giver: SeedGiver, transport: asyncio.Transport, lost: Callable[[SeedLink], None]) -> None:
        self._giver = giver
        self._transport = cast("asyncio.Transport | None", transport)
        self._lost = lost
        self._frames = Frames(giver.checksum)
        self._asking: Asking | None = None
        self._only = False
        self._nonce = self._proof = ""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._task: asyncio.Task[None] | None = None
        self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self.abort)

    @property
    def is_giving(self) -> bool:
        return self._task is not None

    def data_received(self, data: bytes) -> None:
        try:
            for kind, content in self._frames.feed(data):
                self._proved(kind, content)
        except KappaError as error:
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._transport = None
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()
        self._lost(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(text_frame(kind, values, self._giver.checksum))

    def _refuse(self, error: Exception) -> None:
        log.info("copies: somebody who asked to be seeded is refused: %.1000s", error)  # it tells its operator
        self._say(Kind.REFUSED, {"why": str(error)})
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    # -- the question, and the answer --------------------------------------------------------------------------------------

    def asked(self, content: bytes) -> None:
        try:
            values = values_of(content)
            self._only = bool(values.pop("only", 0))
            self._asking = Asking.of(values)
            if self._giver.config.secret is None:
                self._answer(self._asking)
            else:
                self._nonce = secrets.token_hex(NONCE_BYTES)
                self._say(Kind.CHALLENGE, {"nonce": self._nonce})
        except KappaError as error:
            self._refuse(error)

    def _proved(self, kind: Kind, content: bytes) -> None:
        asking, secret = self._asking, self._giver.config.secret
        if kind is not Kind.PROOF or asking is None or not self._nonce or secret is None or self._proof:
            raise BadStream(f"a frame {kind.name} is not what comes now")
        if not is_proof(values_of(content).get("proof"), secret, "asking", asking.nonce, self._nonce):
            raise Refusal(
                "it does not know the secret of this group: replicationSecret must be the same on all brokers"
            )
        self._proof = proof(secret, "giving", asking.nonce, self._nonce)
        self._answer(asking)

    def _answer(self, asking: Asking) -> None:
        self._deadline.cancel()
        offer = self._giver.answer(asking)
        if self._only or not offer.files:
            self.offer(offer)
            self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self.abort)
        else:
            self._task = asyncio.create_task(self._give(asking))

    async def _give(self, asking: Asking) -> None:
        try:
            await self._giver.give(asking, self)
        except (KappaError, OSError) as error:
            self._refuse(error)
        except Exception:
            log.exception("copies: %s could not be seeded", asking.who)
            self.abort()

    def offer(self, offer: Offer) -> None:
        self._say(Kind.WELCOME, replace(offer, proof=self._proof).values())

    async def send(self, piece: FilePiece) -> None:
        try:
            async with asyncio.timeout(_STALL_S):
                await self._may_write.wait()
        except TimeoutError:
            raise Refusal(f"nothing of it was taken for {_STALL_S:g} s") from None
        if self._transport is None:
            raise ConnectionResetError("the connection is gone")
        self._transport.write(frame(Kind.SNAPSHOT, piece.encode(), self._giver.checksum))

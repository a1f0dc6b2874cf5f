"""The leader's side of seeding: snapshots for a follower whose log cannot be continued, and log files that are kept until it follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from kappamq.broker.copies.question import QuestionLink, dispensable
from kappamq.broker.copies.seeding.files import OWN_SETTINGS
from kappamq.broker.upkeep.slices import Worker
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.replication.frames import PIECE_BYTES_MAX, Checksum, Kind
from kappamq.replication.greeting import Refusal
from kappamq.replication.seeding import Asking, FilePiece, Offer, check_asking, is_too_old
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_HOLD_S: Final = 600.0
"""How long log files are kept for a follower that has got its snapshots and does not follow yet."""
_HELD_MAX: Final = 64
_LINKS_MAX: Final = 16


class Leader(Protocol):
    """The part of the Raft node that seeding needs; the node may lead or not."""

    @property
    def group_id(self) -> str:
        """The id of its Raft group's founding; "": none."""
        ...

    def may_seed(self) -> None:
        """Raises Refusal if this node does not lead."""
        ...

    def terms_at(self, begin: int) -> str:
        """Return the file of terms for a log that begins there; "" if there are no terms."""
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
        """Log files kept for a follower cannot be replaced by copies at the log's end."""

    def _hold(self, who: str, offset: int) -> None:
        self._held.pop(who, None)
        while len(self._held) >= _HELD_MAX:
            del self._held[next(iter(self._held))]
        self._held[who] = (offset, self._clock.liveness() + _HOLD_S)

    # -- connections -------------------------------------------------------------------------------------------------------

    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        """A connection that asks to be seeded. Copies that are being seeded are never closed to make room for it."""
        if len(self._links) >= _LINKS_MAX:
            idle = dispensable(self._links)
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
        """Return our offer, up to `confirmed`: a leader may lose the rest of its log, and a seeded follower would
        wait for it. Raises Refusal."""
        self._leader.may_seed()
        check_asking(asking, replace(self._ours, group_id=self._leader.group_id))
        log_files, end = self._store.log, self._store.marks.confirmed.offset
        needed = bool(asking.wanted) or is_too_old(asking.reaches, log_files.min)
        files = len(self._metadata.files()) if needed else 0
        return Offer(address=self._address(), begin=log_files.min, end=max(log_files.min, end), files=files, bytes=0)

    async def give(self, asking: Asking, link: SeedLink) -> None:
        """Send the offer, and all files. Raises Refusal, KappaError or OSError."""
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
            self._leader.may_seed()  # still
            link.offer(
                Offer(
                    address=self._address(),
                    begin=begin,
                    end=max(begin, store.marks.confirmed.offset),
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
        log.warning("copies: seeding %s, with the log from %d to %d", asking.who, begin, store.log.end)


class SeedLink(QuestionLink):
    """The connection of a follower that asks, from its question on."""

    def __init__(self, giver: SeedGiver, transport: asyncio.Transport, lost: Callable[[SeedLink], None]) -> None:
        super().__init__(transport, ("asking", "giving"), giver.config.secret, giver.checksum, lambda: lost(self))
        self._giver = giver
        self._asking: Asking | None = None
        self._only = False

    def _read(self, values: dict[str, Any]) -> None:
        self._only = bool(values.pop("only", 0))
        self._asking = Asking.of(values)

    def _answer(self) -> None:
        assert self._asking is not None
        offer = self._giver.answer(self._asking)
        if self._only or not offer.files:
            self.offer(offer)
            self._end_in_a_while()
        else:
            self._give(self._giver.give(self._asking, self))

    def offer(self, offer: Offer) -> None:
        self._say(Kind.WELCOME, replace(offer, proof=self.proof).values())

    async def send(self, piece: FilePiece) -> None:
        await self._send(Kind.SNAPSHOT, piece.encode())

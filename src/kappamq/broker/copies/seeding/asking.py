"""The follower's side of seeding: before the store is opened, ask the leader whether what is here can be continued, and if it cannot, get
its snapshots.

Every step leaves a marker on disk that says what to do after a crash, so after a kill at any point it starts over. A start without a
marker asks once, and goes on without an answer: a node that later learns that its log cannot be continued leaves a marker, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.broker.copies.peer_request import ANSWER_S, CONNECT_S, PeerRequest
from kappamq.broker.copies.seeding.files import SeedFiles
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import APACHE, CopiesConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import KappaError, StoreError
from kappamq.native.interface import KernelModule
from kappamq.raft import MemberId
from kappamq.raft.effects import Ballot
from kappamq.replication import terms_file
from kappamq.replication.frames import BadStream, Kind, values_of
from kappamq.replication.greeting import Refusal
from kappamq.replication.seeding import COPYING, FILLING, MARKER_NAME, WANTED, Asking, FilePiece, Marker, Offer
from kappamq.replication.vote_file import Vote
from kappamq.store.files import Files
from kappamq.store.lock import StoreLock, refuse_raft_store, unusable
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_PIECE_S = 60.0  # the leader may have to write its snapshots first
_AGAIN_S = (0.5, 5.0)


class Seeding:
    """One per process: `before_open`, and then `ticked` until the copy is complete."""

    def __init__(
        self, config: CopiesConfig, broker: BrokerConfig, store: StoreConfig, files: Files, kernel: KernelModule
    ) -> None:
        self._config = config
        self._broker = broker
        self._store_config = store
        self._store_files = files
        self._checksum = kernel.crc32
        self._files = SeedFiles(store.root, store.segment_bytes, files)
        self._marker: Marker | None = None
        self._told = ""

    @property
    def is_pending(self) -> bool:
        """Whether the store is incomplete: then this node may only follow."""
        return self._marker is not None

    @property
    def is_wanted(self) -> bool:
        """Whether the next start seeds."""
        return self._marker is not None and self._marker.state == WANTED

    def demand_whole(self) -> None:
        """Raise StoreError if the store is incomplete, so that this broker cannot be a master."""
        if self._marker is not None:
            raise StoreError(
                f"{self._store_config.root} holds only a part of its master's messages ({MARKER_NAME}): it cannot be a master. Start it as "
                f"a slave (brokerRole=SLAVE), or in its group, until that file is gone; or move the directory away"
            )

    def asking(self) -> Asking:
        return asking(self._config, self._broker, self._store_config)

    # -- before the store is opened ----------------------------------------------------------------------------------------

    async def before_open(self) -> int:
        """Return where a store without a log should begin. Raises StoreError."""
        try:
            marker = self._marker = self._files.marker()
            if not self._config.is_slave and not self._config.is_raft:
                self.demand_whole()
                return 0
            begin = await self._begin(marker)
        except OSError as error:
            raise unusable(self._store_config.root, error) from error
        self._marker = self._files.marker()
        return begin

    async def _begin(self, marker: Marker | None) -> int:
        if marker is None or marker.state == FILLING:
            # Perhaps no broker answers: they may be started in any order.
            place = await self._find(wanted=False, marker=marker)
            if place is None:
                return 0 if marker is None else marker.begin
            await self._seed(place, marker)
        else:
            pause, longest = _AGAIN_S
            while True:
                place = await self._find(wanted=True, marker=marker)
                if place is not None and await self._seed(place, marker):
                    break
                marker = self._files.marker()
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)
        found = self._files.marker()
        if found is None:
            return 0
        return found.begin if found.state == FILLING else await self._begin(found)

    def _places(self, marker: Marker | None) -> list[str]:
        """Return the addresses where the leader may be."""
        if self._config.is_raft:
            return [place for name, place in self._config.members.items() if name != self._config.member]
        if self._config.protocol == APACHE:
            return []
        known = (self._config.master_address, marker.leader if marker is not None else None)
        return list(dict.fromkeys(place for place in known if place))

    async def _find(self, wanted: bool, marker: Marker | None) -> str | None:
        """Return the leader that would seed us; None if there is none, or it does not answer."""
        places = self._places(marker)
        answers = await asyncio.gather(*(self._is_giver(place, wanted) for place in places), return_exceptions=True)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, KappaError | OSError | EOFError):
                level = logging.WARNING if wanted and isinstance(answer, Refusal) else logging.DEBUG
                self._tell(level, f"{place} does not seed this copy: {answer or type(answer).__name__}")
            elif isinstance(answer, BaseException):
                raise answer
            elif answer:
                return place
        if wanted and not any(answer is True for answer in answers):
            self._tell(
                logging.WARNING,
                f"waiting for a leader that has what this copy needs ({', '.join(places) or 'none is known'})",
            )
        return None

    def _tell(self, level: int, text: str) -> None:
        if text != self._told:
            self._told = text
            log.log(level, "copies: %s", text)

    async def _is_giver(self, place: str, wanted: bool) -> bool:
        async with asyncio.timeout(CONNECT_S + ANSWER_S):
            conversation = await Conversation.begin(place, self._config.secret, self._checksum)
            try:
                offer = await conversation.ask(self._now(wanted), only=True)
            finally:
                conversation.end()
        return offer.files > 0

    async def leader_begins(self, place: str) -> int:
        """Where the log of the leader at that place begins. Raises KappaError, OSError, EOFError or TimeoutError."""
        conversation = await Conversation.begin(place, self._config.secret, self._checksum)
        try:
            return (await conversation.ask(self._now(wanted=False), only=True)).begin
        finally:
            conversation.end()

    def _now(self, wanted: bool) -> Asking:
        group_id = MemberFiles(self._store_config.root, self._store_files).group_id()
        return replace(self.asking(), reaches=self._files.reaches(), wanted=int(wanted), group_id=group_id)

    # -- seeding -----------------------------------------------------------------------------------------------------------

    async def _seed(self, place: str, marker: Marker | None) -> bool:
        """Return whether everything has arrived. If not, the marker says so."""
        root, files = self._store_config.root, self._files
        self._store_files.make_folder(root)
        refuse_raft_store(root, self._store_files)
        lock = StoreLock(root, self._store_files)
        lock.acquire()
        try:
            conversation = await Conversation.begin(place, self._config.secret, self._checksum)
            try:
                offer = await conversation.ask(self._now(wanted=True))
                files.require_room(offer.bytes + offer.end - offer.begin + 2 * self._store_config.segment_bytes)
                aside = marker.aside if marker is not None and marker.state == COPYING else ""
                aside = aside or files.new_aside()
                files.mark(Marker(state=COPYING, leader=place, aside=aside))
                size = files.move_aside(aside)
                log.warning(
                    "copies: seeding this copy from %s; the previous contents of %s (%d bytes) are kept in %s and no longer used",
                    place, root, size, aside,
                )  # fmt: skip
                files.keep_settings(aside)
                async for piece in conversation.pieces(offer):
                    files.receive(piece.name, piece.at, piece.data)
                files.received()
                self._save_member(offer)
                files.mark(
                    Marker(
                        state=FILLING, leader=place, aside=aside, begin=offer.begin, until=max(offer.end, offer.begin)
                    )
                )
                log.info(
                    "copies: received %d snapshots, the log follows from %d to %d", offer.files, offer.begin, offer.end
                )
                return True
            finally:
                conversation.end()
        except (Refusal, BadStream, OSError, EOFError) as error:
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise
            self._tell(logging.WARNING, f"seeding by {place} broke off: {error or type(error).__name__}")
            return False
        finally:
            lock.release()

    def _save_member(self, offer: Offer) -> None:
        """A member of a Raft group is a new one: it joins as a learner, and its former promises do not count."""
        if not self._config.is_raft:
            return
        assert self._config.member is not None
        try:
            terms, group_id = terms_file.decode(offer.terms.encode())
        except ValueError as error:
            raise BadStream(f"the terms of the leader's log are inconsistent: {error}") from None
        if terms.base.start != offer.begin or terms.records:
            raise BadStream(f"the terms of the leader's log begin at {terms.base.start}, not at {offer.begin}")
        files = MemberFiles(self._store_config.root, self._store_files)
        files.save_terms(terms, group_id)
        member = MemberId(self._config.member, time.time_ns() // 1_000_000)
        files.save_vote(Vote(counter=1, ballot=Ballot(terms.base.term, None), member=member, group_id=group_id))

    # -- while the store is open -------------------------------------------------------------------------------------------

    def ticked(self, store: MessageStore) -> bool:
        """Return whether the copy has just become complete."""
        marker, marks = self._marker, store.marks
        if marker is None or marker.state != FILLING:
            return False
        if min(marks.dispatched.offset, marks.confirmed.offset, marks.flushed.offset) < marker.until:
            return False
        self._files.unmark()
        self._marker = None
        log.info("copies: this copy is complete, with the log from %d to %d", marker.begin, store.log.end)
        return True

    def want(self, leader: str) -> None:
        """Our log cannot be continued: the next start asks to be seeded."""
        self._marker = Marker(state=WANTED, leader=leader)
        self._files.mark(self._marker)


def asking(config: CopiesConfig, broker: BrokerConfig, store: StoreConfig) -> Asking:
    return Asking(
        cluster=broker.cluster,
        name=broker.name,
        group=config.group or "",
        who=config.member or str(broker.broker_id),
        segment_bytes=store.segment_bytes,
        delay_levels=broker.delay_levels,
        reaches=0,
    )


class Conversation(PeerRequest):
    """One connection to the broker that may seed this copy."""

    async def ask(self, question: Asking, *, only: bool = False) -> Offer:
        """`only`: just check whether there would be an offer. Raises Refusal with the peer's reason."""
        values = {**question.values(), "only": int(only)}
        seconds = ANSWER_S if only else _PIECE_S
        return Offer.of(
            await self._question(Kind.ASK, values, ("asking", "giving"), of_group=bool(question.group), seconds=seconds)
        )

    async def pieces(self, offer: Offer) -> AsyncIterator[FilePiece]:
        """Yield every piece of every file, each file from beginning to end. Raises BadStream for anything else."""
        done, name, at, total = 0, "", 0, 0
        while done < offer.files:
            kind, content = await self._next(_PIECE_S)
            if kind is Kind.REFUSED:
                raise Refusal(str(values_of(content).get("why"))[:2000])
            if kind is not Kind.SNAPSHOT:
                raise BadStream(f"a frame {kind.name} was not expected here")
            piece = FilePiece.decode(content)
            if (piece.name != name and at) or piece.at != at:
                raise BadStream(
                    f"bytes from {piece.at} on of {piece.name} came behind {at} bytes of {name or 'nothing'}"
                )
            name, at = piece.name, at + len(piece.data)
            total += len(piece.data)
            if total > offer.bytes:
                raise BadStream(f"more than the {offer.bytes} bytes that were announced")
            yield piece
            if at == piece.size:
                done, name, at = done + 1, "", 0

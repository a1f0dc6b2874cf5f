"""Repairs damage of this log below `confirmed` with the bytes of another copy, whether the scrub, a reader or the disk has found it.

One stretch at a time. The known copies are asked one after the other, received bytes are checked before any is written, and
checked again afterwards. A stretch that no copy has is logged once and requested again every few seconds, since copies come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kappamq.broker.copies.mending.fetching import Fetching
from kappamq.broker.events import Tick
from kappamq.broker.upkeep.damage import Counts, LostPages, Run
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import NEIGHBOUR_BYTES, RangeQuestion
from kappamq.store.log.log_reader import Damage, LogReader
from kappamq.store.log.mending import damage_in, put_back, require_whole
from kappamq.store.log.pread_around import PreadAround
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_AGAIN_S: Final = 5.0
_KEPT_MAX: Final = 1000  # remembered stretches that no copy had; more would not be a matter of single bytes

Stretch = tuple[int, int]


class Mender:
    def __init__(
        self,
        config: CopiesConfig,
        store: MessageStore,
        clock: Clock,
        ours: Callable[[], RangeQuestion],
        places: Callable[[], Sequence[str]],
        counts: Counts,
        lost_pages: LostPages,
        read: Worker,
        write: Worker,
        run: Run,
    ) -> None:
        """`ours`: our identity. `places`: the addresses of copies of our log that are known now."""
        self._config = config
        self._store = store
        self._clock = clock
        self._ours = ours
        self._places = places
        self._counts = counts
        self._lost_pages = lost_pages
        self._read = read
        self._write = write
        self._run = run
        self._one_at_a_time = asyncio.Lock()
        self._open: dict[
            Stretch, bool
        ] = {}  # unrepaired damage -> whether all other copies have answered that they cannot help
        self._looking: set[int] = set()  # log files that are being checked
        self._told: set[str] = set()
        self._again_at = 0.0
        self._retrying = False

    @property
    def has_copies(self) -> bool:
        return bool(self._places())

    @property
    def open_stretches(self) -> list[Stretch]:
        """The known damage that is not repaired."""
        return sorted(self._open)

    @property
    def is_unfit(self) -> bool:
        """Whether bytes are damaged here that another copy may have: then this one should not lead."""
        return not all(self._open.values())

    # -- reports of damage -------------------------------------------------------------------------------------------------

    async def mend(self, start: int, stop: int) -> bool:
        """Return whether [start, stop) is good now. The caller counts and logs it."""
        async with self._one_at_a_time:
            return await self._mend(start, stop)

    async def mend_at(self, log_offset: int) -> bool:
        """A reader failed at `log_offset`: return whether anything in that log file was damaged and is repaired now."""
        begin = log_offset - log_offset % self._store.config.segment_bytes
        if not self.has_copies or not self._store.log.min <= log_offset < self._store.marks.confirmed.offset:
            return False
        async with self._one_at_a_time:
            found = await self._read(self._damage_of_file, begin)
            mended = False
            for damage in found:
                is_new = (damage.start, damage.stop) not in self._open
                self._counts.found += is_new
                if await self._mend(damage.start, damage.stop):
                    self._counts.repaired += 1
                    mended = True
                elif is_new:
                    log.error(
                        "log: bytes %d to %d are damaged (%s), and no other copy could be reached yet to repair them",
                        *_of(damage),
                    )
            return mended

    def suspect(self, log_offset: int) -> None:
        """The same in the background."""
        begin = log_offset - log_offset % self._store.config.segment_bytes
        if begin not in self._looking:
            self._looking.add(begin)
            self._run(self._look_at(log_offset, begin))

    async def _look_at(self, log_offset: int, begin: int) -> None:
        try:
            await self.mend_at(log_offset)
        finally:
            self._looking.discard(begin)

    def ticked(self, event: Tick) -> None:
        if self._open and not self._retrying and self._clock.liveness() >= self._again_at:
            self._retrying = True
            self._run(self._retry())

    async def _retry(self) -> None:
        try:
            for start, stop in self.open_stretches:
                if await self.mend(start, stop):
                    self._counts.repaired += 1
        finally:
            self._retrying = False
            self._again_at = self._clock.liveness() + _AGAIN_S

    def _damage_of_file(self, begin: int) -> list[Damage]:
        """Worker: the damage in one file of the log, below `confirmed`."""
        store = self._store
        stop = min(begin + store.config.segment_bytes, store.marks.confirmed.offset)
        reader = self._reader()
        try:
            return list(damage_in(reader, max(begin, store.log.min), stop))
        finally:
            reader.close()

    def _reader(self) -> LogReader:
        store = self._store
        return LogReader(store.log.folder, store.files, store.config.segment_bytes, PreadAround(store.files).pread)

    # -- one stretch -------------------------------------------------------------------------------------------------------

    async def _mend(self, start: int, stop: int) -> bool:
        store = self._store
        if stop > store.marks.confirmed.offset:
            return False  # it may still be cut
        at, segment_bytes = start, store.config.segment_bytes
        while at < stop:
            end = min(stop, at - at % segment_bytes + segment_bytes)
            if end > store.log.min and not await self._ask_all(at, end):
                return False
            at = end
        left = await self._read(self._damage_between, start, stop)
        if left:
            log.error(
                "log: bytes %d to %d are still damaged after they were rewritten: check the disk", *_of(left[0])[:2]
            )
            self._keep(start, stop)
            return False
        for stretch in [stretch for stretch in self._open if start <= stretch[0] and stretch[1] <= stop]:
            del self._open[stretch]
        await self._read(self._lost_pages.mended, start, stop)
        return True

    def _damage_between(self, start: int, stop: int) -> list[Damage]:
        """Worker."""
        reader = self._reader()
        try:
            return list(damage_in(reader, max(start, self._store.log.min), stop))
        finally:
            reader.close()

    def _keep(self, start: int, stop: int, *, is_hopeless: bool = False) -> None:
        if (start, stop) in self._open or len(self._open) < _KEPT_MAX:
            self._open[start, stop] = is_hopeless

    async def _ask_all(self, start: int, end: int) -> bool:
        """Return whether some copy has supplied all of it. Within one log file."""
        places, refused = self._places(), 0
        question = await self._read(self._question, start, end)
        for place in places:
            try:
                await self._fetch(place, question)
            except Refusal as error:
                refused += 1
                self._tell(f"{place} does not give the bytes {start} to {end}: {error}")
            except (KappaError, OSError, EOFError) as error:
                self._tell(f"the bytes {start} to {end} cannot be had from {place}: {error or type(error).__name__}")
            else:
                log.warning("log: repaired the damaged bytes %d to %d with those of %s", start, end, place)
                return True
        if not places:
            return False  # a broker without copies: the finder logs the damage
        if refused == len(places):
            self._tell(
                f"the bytes {start} to {end} are damaged here, and no other copy has them: the messages there are lost unless a copy of "
                f"the log file is found"
            )
        self._keep(start, end, is_hopeless=refused == len(places))
        return False

    def _tell(self, text: str) -> None:
        """Log it once, however often the repair is tried."""
        if text not in self._told:
            if len(self._told) >= _KEPT_MAX:
                self._told.clear()
            self._told.add(text)
            log.error("log: %s", text)

    def _question(self, start: int, end: int) -> RangeQuestion:
        """Worker: the stretch, and the bytes on both sides of it in the same file."""
        store, size = self._store, self._store.config.segment_bytes
        before = min(NEIGHBOUR_BYTES, start % size)
        behind = min(NEIGHBOUR_BYTES, -end % size, max(0, store.marks.confirmed.offset - end))
        crc = store.kernel_module.crc32
        return replace(
            self._ours(),
            start=start,
            end=end,
            before=before,
            before_crc=crc(store.pread(start - before, before)),
            behind=behind,
            behind_crc=crc(store.pread(end, behind)),
        )

    async def _fetch(self, place: str, question: RangeQuestion) -> None:
        """Ask one copy, check its bytes, and write them. Raises any error; the bytes written until then are good."""
        store = self._store
        fetching = await Fetching.begin(place, self._config.secret, store.kernel_module.crc32)
        try:
            async for piece in fetching.pieces(question):
                data = memoryview(piece.data)
                await self._read(require_whole, store.kernel_module, data, piece.offset, store.config.segment_bytes)
                # By the thread that deletes log files, too.
                await self._write(put_back, store.log, store.files, piece.offset, data)
        finally:
            fetching.end()

    # -- reporting ---------------------------------------------------------------------------------------------------------

    def table(self) -> dict[str, str]:
        """For the runtime info."""
        return {"kappamqDamageOpen": str(len(self._open))}


def _of(damage: Damage) -> tuple[int, int, str]:
    return damage.start, damage.stop, damage.why

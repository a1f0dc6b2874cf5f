"""How the broker itself appends messages to the log: used by the slow path, deliveries, retries and commits.

A message to be stored is a `Draft`. Before it is stored, placers may redirect it (a delayed one waits in a system topic).
Records that belong together, such as copies and the position from which the next ones will be taken, are stored as one group: after
a crash all of it is there or nothing, so nothing is delivered twice and nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kappamq.broker.sending.gate import not_master
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.clock import Clock
from kappamq.errors import IllegalMessage
from kappamq.native.interface import Kernel
from kappamq.native.layout import SYS_TRANSACTION
from kappamq.native.pure_record import GroupMember
from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from kappamq.state.metadata import Metadata

SYS_PREPARED, SYS_COMMIT, SYS_ROLLBACK = 0x4, 0x8, 0xC
_OF_TRANSACTIONS = frozenset((names.HALF_TOPIC, names.HALF_OP_TOPIC, names.TRANSACTION_GIVEN_UP_TOPIC))
GROUP_RECORDS_MAX = 256
GROUP_BYTES_MAX = 256 << 10
"""More than this at once would keep the loop busy for too long."""


@dataclass(slots=True)
class Draft:
    """A message that is about to be stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born: bytes = bytes(8)  # address and port
    reconsume_times: int = 0
    source: int = 0  # log offset of the record this is a copy of
    waited: bool = False  # it is due: placers do not change it

    @classmethod
    def of(cls, record: Record) -> Draft:
        """A copy of a stored record, its body as it is (compressed bodies stay so), which names its source."""
        pairs = properties.decode(record.properties)
        for name in properties.OF_THE_RECORD:  # a Java broker stores what a producer puts there
            pairs.pop(name, None)
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            pairs,
            record.flag,
            record.sys_flag,
            record.born_ms,
            record.born_host + record.born_port.to_bytes(4, "big"),
            record.reconsume_times,
            record.log_offset,
        )

    @property
    def is_final(self) -> bool:
        """Meant for consumers: no half of a transaction, and nothing that was not (or not yet) committed."""
        return self.sys_flag & SYS_TRANSACTION in (0, SYS_COMMIT) and self.topic not in _OF_TRANSACTIONS

    @property
    def waits_for_disk(self) -> bool:
        return self.properties.get("WAIT", "true").lower() != "false"


class Placed(NamedTuple):
    """The position of a stored message."""

    log_offset: int
    queue_offset: int
    size: int

    @property
    def end(self) -> int:
        return self.log_offset + self.size


Placer = Callable[[Draft, int], None]
"""Told a draft and the time; may change where it goes. Raises the KappaError that the sender should hear."""


class Appender:
    def __init__(
        self, kernel: Kernel, writer: LogWriter, metadata: Metadata, clock: Clock, placers: Sequence[Placer] = ()
    ) -> None:
        self._kernel = kernel
        self._writer = writer
        self._metadata = metadata
        self._clock = clock
        self._placers = placers
        self._closed = False

    def close(self) -> None:
        """Store nothing any more: the role that this belongs to has ended. Work that still runs for it gets NotMaster, even if
        the node has the role again by then: what they know is of the time before."""
        self._closed = True

    def append(self, draft: Draft, *, own: bool = False) -> Placed:
        """Store one message in this turn. Raises KappaError if it cannot be.

        With `own` it is something the broker has to remember, which may use the room that is refused to users."""
        now = self._clock.message_ms()
        self._place(draft, now)
        record = member(draft)
        return Placed(*self._stored(lambda: self._kernel.append(*record, now), own))

    def append_group(
        self, drafts: Sequence[Draft], changes: Sequence[tuple[str, Any]] = (), *, own: bool = False
    ) -> list[Placed]:
        """Store messages, and changes of metadata tables that go with them, as one: all or none, whatever happens.

        The tables apply the changes, as with `Metadata.commit`. Returns the places of the drafts."""
        now = self._clock.message_ms()
        for draft in drafts:
            self._place(draft, now)
        # Changes first: the first member bears the mark of the group, and the messages stay as their senders made them.
        members = [self._metadata.member(kind, change, now) for kind, change in changes]
        members += [member(draft) for draft in drafts]
        placed = [Placed(*place) for place in self._stored(lambda: self._kernel.append_group(members, now), own)]
        self._metadata.applied(changes, now, placed[-1].end)
        return placed[len(changes) :]

    def change(self, kind: str, change: Any) -> None:
        """Change a table without a message; see `Metadata.commit`. Happens even if the log takes nothing."""
        self._metadata.commit(kind, change, anyway=True)

    def append_members(self, members: list[GroupMember]) -> list[Placed]:
        """Store what senders sent as one batch, and what is where it belongs: all or none."""
        now = self._clock.message_ms()
        return [Placed(*place) for place in self._stored(lambda: self._kernel.append_group(members, now), own=False)]

    def append_copies(self, members: Sequence[GroupMember], changes: Sequence[tuple[str, Any]]) -> None:
        """The same for copies that are where they belong, as records and not as drafts: for many of them."""
        now = self._clock.message_ms()
        records = [self._metadata.member(kind, change, now) for kind, change in changes]
        records += members
        placed = self._stored(lambda: self._kernel.append_group(records, now), own=False)
        self._metadata.applied(changes, now, Placed(*placed[-1]).end)

    def append_batch(self, topic: str, queue_id: int, record: Record, change: tuple[str, Any]) -> bool:
        """Store the messages of a batch body that lies in a stored record, each a copy that names the record as its source, with
        a change that goes with them: all or none. False, and nothing is stored, if some message is not plain."""
        now = self._clock.message_ms()
        note = self._metadata.member(*change, now)
        born = record.born_host + record.born_port.to_bytes(4, "big")
        place = (note, topic, queue_id, record.born_ms, born, record.log_offset, record.body, now)
        end = self._stored(lambda: self._kernel.append_batch(*place), own=False)
        if end is None:
            return False
        self._metadata.applied([change], now, end)
        return True

    def flush_along(self, behind_max: int) -> None:
        """Have the disk follow what is appended, at most so many bytes behind, instead of all at once when somebody waits for it."""
        self._writer.flush_along(behind_max)

    def answerable(self, end: int, *, flushed: bool = True) -> Awaitable[None]:
        """Until a message up to `end` may be answered (with flushed=False: is written). Raises NotAvailable if it fails."""
        return self._writer.answerable(end, flushed=flushed)

    def visible(self, end: int) -> Awaitable[None]:
        """Wait until the log is in the queues up to `end`. Raises NotAvailable if it fails."""
        return self._writer.visible(end)

    def confirmed(self, end: int) -> Awaitable[None]:
        """Wait until the log is confirmed up to `end`, whatever the mode demands. Raises NotAvailable if it fails."""
        return self._writer.confirmed(end)

    async def kept(self, end: int) -> None:
        """Until nobody can take back the log up to `end`, and it is in as many copies as the mode promises to senders. Raises
        NotAvailable if it fails."""
        await self._writer.confirmed(end)
        await self._writer.answerable(end)

    def _place(self, draft: Draft, now_ms: int) -> None:
        if draft.is_final and not draft.waited:
            for placer in self._placers:
                placer(draft, now_ms)

    def _stored(self, append: Callable[[], Any], own: bool) -> Any:
        if self._closed:
            raise not_master()
        try:
            return self._writer.append(append, own=own)
        except ValueError as error:
            raise IllegalMessage(
                f"the message is illegal: {error}, with what the broker adds; msg properties length limit 32768"
            ) from error


def member(draft: Draft) -> GroupMember:
    """A draft as the kernel wants it."""
    return (
        draft.topic,
        draft.queue_id,
        draft.flag,
        draft.sys_flag,
        draft.born_ms,
        draft.born,
        draft.reconsume_times,
        draft.source,
        draft.body,
        properties.encode(draft.properties).encode(),
    )

"""Scopes of batch transactions: the owner of each, the broker that coordinates it, and which of its batches are decided.

A scope is a sequence of numbered batches that one owner writes (a Spark query, a replay). Every master knows the owner and the
coordinator of a scope, so that a client cannot choose another coordinator; only the coordinator knows the rest. A scope has
at most one open transaction: the attempt to write one batch. It is decided or aborted, and neither can be undone. A decided
batch stays here until every broker has published its chunks; after that its number, row count and checksum are kept, to tell
a repetition from another batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

KINDS: Final = (
    "scope",
    "scope-removed",
    "scope-asked",
    "batch-begun",
    "batch-decided",
    "batch-aborted",
    "batch-finished",
)
"""`scope-asked` changes nothing: if a node's record of it becomes confirmed, the node was still the master when it was asked."""
REMEMBERED_MAX: Final = 1000
"""How many decided batches of a scope are kept, to recognize repetitions."""
ATTEMPTS_MAX: Final = 100
"""How many attempts at an open batch are known by name."""

DROPPED_TOPICS_MAX: Final = 100
"""How many topics of one batch are counted by name; the others are counted together."""
OTHERS: Final = "(others)"

Chunks = dict[str, list[list[int]]]
"""Broker name -> [place, CRC] of its chunks, in the order in which they are published."""


@dataclass(slots=True)
class Open:
    """The attempt to write one batch."""

    transaction: str
    number: int
    begun_ms: int
    # attempts at this batch, by the names their writers gave; the last one counts
    attempts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Decided:
    """A batch that counts. Replaced, never changed: a worker makes a snapshot from it."""

    number: int
    rows: int
    checksum: int
    dropped: dict[str, int] = field(default_factory=dict)  # topic -> messages that it could no longer take


@dataclass(slots=True)
class Publishing:
    """A decided batch with messages that are not published yet."""

    transaction: str
    number: int
    chunks: Chunks  # of the brokers that have not finished


@dataclass(slots=True)
class Scope:
    name: str
    owner: str
    coordinator: str
    open: Open | None = None
    decided: dict[int, Decided] = field(default_factory=dict)  # by batch number, ascending
    publishing: dict[str, Publishing] = field(default_factory=dict)  # by transaction, in the order of the decisions

    @property
    def last(self) -> int:
        """The number of the last decided batch; -1 if there is none."""
        return next(reversed(self.decided), -1)


class Scopes:
    file = "kappamq.scopes.json"
    kinds = KINDS

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.table: dict[str, Scope] = {}
        self.dirty = False

    # -- asking ------------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Scope | None:
        return self.table.get(name)

    def oldest_open(self, coordinator: str) -> Scope | None:
        """The scope of this coordinator whose transaction has been open longest."""
        mine = (scope for scope in self.table.values() if scope.open is not None and scope.coordinator == coordinator)
        return min(mine, key=lambda scope: scope.open.begun_ms if scope.open else 0, default=None)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def apply(self, kind: str, change: Any) -> None:
        if kind == "scope":
            name, owner, coordinator = map(str, change)
            self.table[name] = Scope(name, owner, coordinator)
            return
        name = str(change[0])
        if kind == "scope-removed":
            self.table.pop(name, None)
            return
        if kind == "scope-asked":
            return
        scope = self.table[name]
        transaction = str(change[1])
        if kind == "batch-begun":
            scope.open = _begun(scope.open, transaction, int(change[2]), self._now_ms(), change[3:])
        elif kind == "batch-aborted":
            scope.open = None
        elif kind == "batch-decided":
            number, rows, checksum, chunks = change[2:]
            scope.open = None
            scope.decided[int(number)] = Decided(int(number), int(rows), int(checksum))
            while len(scope.decided) > REMEMBERED_MAX:
                del scope.decided[next(iter(scope.decided))]
            if chunks:
                scope.publishing[transaction] = Publishing(transaction, int(number), _chunks(chunks))
        else:  # batch-finished
            self._finished(scope, transaction, str(change[2]), change[3])

    def _finished(self, scope: Scope, transaction: str, broker: str, dropped: dict[str, Any]) -> None:
        publishing = scope.publishing.get(transaction)
        if publishing is None or publishing.chunks.pop(broker, None) is None:
            return
        decided = scope.decided.get(publishing.number)
        if decided is not None:
            scope.decided[publishing.number] = replace(decided, dropped=summed(decided.dropped, dropped))
        if not publishing.chunks:
            del scope.publishing[transaction]

    def to_snapshot(self) -> dict[str, Any]:
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        """A copy for a worker: a hundred scopes may have a hundred thousand decisions."""
        return partial(_snapshot, [_frozen(scope) for scope in self.table.values()])

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.reset()
        for name, row in (table.get("scopes") or {}).items():
            scope = self.table[name] = Scope(name, str(row["owner"]), str(row["coordinator"]))
            if row.get("open"):
                transaction, number, begun_ms, *attempts = row["open"]
                scope.open = Open(
                    str(transaction), int(number), int(begun_ms), [str(one) for listed in attempts for one in listed]
                )
            for number, rows, checksum, dropped in row.get("decided") or []:
                counts = {str(topic): int(count) for topic, count in dropped.items()}
                scope.decided[int(number)] = Decided(int(number), int(rows), int(checksum), counts)
            for transaction, number, chunks in row.get("publishing") or []:
                scope.publishing[transaction] = Publishing(str(transaction), int(number), _chunks(chunks))

    def reset(self) -> None:
        self.table = {}


def summed(before: Mapping[str, int], dropped: Mapping[str, Any]) -> dict[str, int]:
    """Sum of both counts, with at most DROPPED_TOPICS_MAX names besides OTHERS."""
    counts = dict(before)
    for topic, count in dropped.items():
        known = topic in counts or len(counts) - (OTHERS in counts) < DROPPED_TOPICS_MAX
        name = topic if known else OTHERS
        counts[name] = counts.get(name, 0) + int(count)
    return counts


def _frozen(scope: Scope) -> Scope:
    """A copy, as deep as the tables change in place."""
    opened = scope.open and replace(scope.open, attempts=list(scope.open.attempts))
    publishing = {name: replace(one, chunks=dict(one.chunks)) for name, one in scope.publishing.items()}
    return replace(scope, open=opened, decided=dict(scope.decided), publishing=publishing)


def _snapshot(scopes: Sequence[Scope]) -> dict[str, Any]:
    return {
        "scopes": {
            scope.name: {
                "owner": scope.owner,
                "coordinator": scope.coordinator,
                "open": scope.open
                and [scope.open.transaction, scope.open.number, scope.open.begun_ms, scope.open.attempts],
                "decided": [[one.number, one.rows, one.checksum, one.dropped] for one in scope.decided.values()],
                "publishing": [[one.transaction, one.number, one.chunks] for one in scope.publishing.values()],
            }
            for scope in scopes
        }
    }


def _begun(before: Open | None, transaction: str, number: int, now_ms: int, attempt: list[Any]) -> Open:
    attempts = before.attempts if before is not None and before.number == number else []
    return Open(transaction, number, now_ms, [*attempts, *map(str, attempt)][-ATTEMPTS_MAX:])


def _chunks(chunks: dict[str, Any]) -> Chunks:
    return {
        str(broker): [[int(place), int(crc)] for place, crc in listed] for broker, listed in chunks.items() if listed
    }

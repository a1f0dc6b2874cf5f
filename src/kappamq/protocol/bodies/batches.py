"""Bodies of batch transactions. Only KappaMQ has them."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from kappamq.protocol.bodies.body import Body


class ChunkList(Body):
    """Chunks of one transaction: broker name -> [place, CRC], in the order in which they are to be published."""

    chunks: dict[str, list[list[int]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it is, and not value by value: there may be many thousands."""
        return {"chunks": self.chunks}


class FinishedBatches(Body):
    """What a broker has published: transaction -> topic -> messages that it had to drop."""

    finished: dict[str, dict[str, int]] = field(default_factory=dict)


class DecidedChunks(Body):
    transaction: str = ""
    number: int = 0
    chunks: list[list[int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """See `ChunkList.to_json`."""
        return {"transaction": self.transaction, "number": self.number, "chunks": self.chunks}


class Decisions(Body):
    """What a coordinator answers: whatever is neither open nor decided can be dropped."""

    open: str | None = None
    decided: list[DecidedChunks] = field(default_factory=list)


class BatchOutcome(Body):
    """How a decided batch stands."""

    number: int = 0
    rows: int = 0
    checksum: int = 0
    published: bool = False
    dropped: dict[str, int] = field(default_factory=dict)  # topic -> messages, since the topic is gone


class ScopeState(Body):
    """A scope as one broker sees it."""

    name: str = ""
    owner: str = ""
    coordinator: str = ""
    last: int = -1
    open_since: int = 0  # message time in ms; 0: no transaction is open
    publishing: int = 0  # decided batches that are not published on all brokers
    staged_chunks: int = 0
    staged_bytes: int = 0
    staged_since: int = 0


class ScopeList(Body):
    scopes: list[ScopeState] = field(default_factory=list)

"""A disk: written data may be lost in a crash, flushed data may not. A log is a list of pieces, each a group of records."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import NamedTuple

from kappamq.raft import Ballot, TermRecord, Terms


class Piece(NamedTuple):
    """[start, end) of the log. `chain` identifies all bytes up to `end`: two logs with the same chain are the same up to there."""

    start: int
    end: int
    term: int
    chain: int
    record: TermRecord | None


def piece_after(start: int, size: int, term: int, before: int, content: int, record: TermRecord | None = None) -> Piece:
    return Piece(start, start + size, term, hash((before, start, size, term, content)), record)


class Disk:
    def __init__(self, base: TermRecord, base_chain: int = 0) -> None:
        self.base, self.base_chain = base, base_chain
        self.pieces: list[Piece] = []
        self.ends: list[int] = []  # of the pieces
        self.synced = base.start  # the log is durable up to here
        self.ballot = Ballot(0, None)
        self.confirmed = base.start  # as saved in the position file
        self.unsaved: Ballot | None = None  # the ballot that is being written
        self.cutting: int | None = None

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.base.start

    @property
    def chain(self) -> int:
        return self.pieces[-1].chain if self.pieces else self.base_chain

    def chain_at(self, offset: int) -> int | None:
        """The chain at `offset`; None if no piece ends there."""
        if offset == self.base.start:
            return self.base_chain
        at = bisect_left(self.ends, offset)
        return self.pieces[at].chain if at < len(self.ends) and self.ends[at] == offset else None

    def term_before(self, offset: int) -> int | None:
        """The term of the piece that ends there."""
        at = bisect_left(self.ends, offset)
        return self.pieces[at].term if at < len(self.ends) and self.ends[at] == offset else None

    def between(self, start: int, end: int) -> tuple[Piece, ...]:
        """The whole pieces within [start, end), but at least one."""
        first = bisect_left(self.ends, start + 1)
        behind = bisect_left(self.ends, end + 1)
        return tuple(self.pieces[first : max(behind, first + 1)])

    def append(self, piece: Piece) -> None:
        assert piece.start == self.end, f"a piece at {piece.start} does not follow {self.end}"
        self.pieces.append(piece)
        self.ends.append(piece.end)

    def shorten(self, offset: int) -> None:
        while self.ends and self.ends[-1] > offset:
            self.pieces.pop()
            self.ends.pop()
        assert self.end == offset, f"{offset} is not the end of a piece"
        self.synced = min(self.synced, offset)

    def trim(self, offset: int, base: TermRecord) -> None:
        chain = self.chain_at(offset)
        assert chain is not None, f"{offset} is not the end of a piece"
        count = bisect_left(self.ends, offset + 1)
        del self.pieces[:count], self.ends[:count]
        self.base, self.base_chain = base, chain

    def crash(self, dice: Random) -> None:
        """Keep a random prefix of what was not flushed. A ballot that was being written is there or not, and a cut was done or not."""
        if self.unsaved is not None:
            if dice.random() < 0.5:
                self.ballot = self.unsaved
            self.unsaved = None
        if self.cutting is not None:
            if dice.random() < 0.5:
                self.shorten(self.cutting)
            self.cutting = None
        durable = bisect_left(self.ends, self.synced + 1)
        kept = dice.randint(durable, len(self.pieces))
        del self.pieces[kept:], self.ends[kept:]
        self.synced = self.end

    def terms(self) -> Terms:
        """The terms, as a start finds them in the log."""
        return Terms(self.base, (piece.record for piece in self.pieces if piece.record is not None))

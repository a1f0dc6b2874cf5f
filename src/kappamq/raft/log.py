"""The log as the core sees it: ends and terms, no bytes."""

from __future__ import annotations

from kappamq.raft.terms import TermRecord, Terms


class Log:
    """`confirmed <= end`, `flushed <= end`, all at the ends of whole groups of records.

    `generation` counts the cuts: a flush that began before a cut says nothing about the bytes that are there now."""

    __slots__ = ("confirmed", "cutting", "end", "flushed", "generation", "terms")

    def __init__(self, terms: Terms, end: int, confirmed: int) -> None:
        """The log as found at a start. The driver has made it durable, so all of it counts as flushed.

        `confirmed`: the offset known to be confirmed; lower than before is safe. Raises ValueError if the arguments are inconsistent."""
        if not terms.base.start <= confirmed <= end:
            raise ValueError(f"the log begins at {terms.base.start} and ends at {end}, but confirmed is {confirmed}")
        if terms.records and terms.last.start >= end:
            raise ValueError(f"the last term record is at {terms.last.start}, but the log ends at {end}")
        self.terms = terms
        self.end = self.flushed = end
        self.confirmed = confirmed
        self.generation = 0
        self.cutting = False

    @property
    def last_term(self) -> int:
        return self.terms.term_before(self.end)

    def appended(self, end: int) -> None:
        assert not self.cutting, f"bytes were appended up to {end} while the log is being cut"
        assert end >= self.end, f"the log cannot end at {end}, it already reaches {self.end}"
        self.end = end

    def record_appended(self, record: TermRecord, end: int) -> None:
        assert self.end == record.start < end, f"a term record at {record.start}-{end} does not follow {self.end}"
        self.terms.append(record)
        self.appended(end)

    def was_flushed(self, offset: int, generation: int) -> bool:
        """Record a flush; return whether it made more bytes durable."""
        if generation != self.generation or offset <= self.flushed:
            return False
        assert offset <= self.end, f"the log ends at {self.end} and cannot be flushed up to {offset}"
        self.flushed = offset
        return True

    def confirm(self, offset: int) -> None:
        assert self.confirmed <= offset <= self.end, (
            f"confirmed cannot go from {self.confirmed} to {offset} of {self.end}"
        )
        self.confirmed = offset

    def cut_done(self) -> None:
        """The cut is durable: bytes may be appended again."""
        self.cutting = False

    def cut(self, offset: int) -> None:
        assert not self.cutting, "one cut at a time"
        assert self.confirmed <= offset < self.end, (
            f"refusing to cut the log from {self.end} to {offset}: it is confirmed up to {self.confirmed}"
        )
        self.terms.cut(offset)
        self.end = offset
        self.flushed = min(self.flushed, offset)
        self.generation += 1
        self.cutting = True

"""Which term wrote which bytes of the log, and who the members were.

Each leader begins its term by appending a term record, so the log divides into stretches: a stretch begins at a term record and ends
where the next term begins, or at the log's end. A change of members is another term record of the same term. The core knows nothing
about the contents of a log but the list of these records, and needs no more: only one leader ever writes in a term, and it only
appends, so **two logs that have the same term before the same offset have the same bytes up to there**.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kappamq.raft.members import Members


class TermRecord(NamedTuple):
    """`start`: log offset of the record, or of the end mark that was written before it. From there on the bytes are of `term`, and
    `members` are the members."""

    start: int
    term: int
    members: Members


class Terms:
    """The term records of a log, in order. The first one is its base: what is known without a record.

    A log that was begun without a group, or whose first files are deleted, has bytes without a term record before them. The base gives
    their term (0 if there was none), and `base.start` is the smallest offset with a known term.
    """

    __slots__ = ("_records",)

    def __init__(self, base: TermRecord, records: Iterable[TermRecord] = ()) -> None:
        self._records = [base]
        for record in records:
            self.append(record)

    @property
    def base(self) -> TermRecord:
        return self._records[0]

    @property
    def last(self) -> TermRecord:
        return self._records[-1]

    @property
    def records(self) -> tuple[TermRecord, ...]:
        """All but the base."""
        return tuple(self._records[1:])

    def append(self, record: TermRecord) -> None:
        last = self.last
        assert record.start > last.start or (len(self._records) == 1 and record.start == last.start), (
            f"a term record at {record.start} cannot follow one at {last.start}"
        )
        assert record.term >= last.term, f"term {record.term} at {record.start} cannot follow term {last.term}"
        self._records.append(record)

    def may_follow(self, records: tuple[TermRecord, ...], start: int, end: int, term: int) -> bool:
        """Whether a leader of `term` can have [start, end) with these term records; `start` is the end of our log."""
        if end < start:
            return False
        last_start, last_term = start - 1, self.term_before(start)
        for record in records:
            if not last_start < record.start < end or not last_term <= record.term <= term:
                return False
            last_start, last_term = record.start, record.term
        return True

    def term_before(self, offset: int) -> int:
        """The term of the byte before `offset`."""
        for record in reversed(self._records):
            if record.start < offset:
                return record.term
        return self.base.term

    def end_of(self, term: int, log_end: int) -> tuple[int, int]:
        """Return (t, end of t), where t is the largest term up to `term` that has bytes here.

        If all bytes are of later terms, return the base: its term, and the offset where it begins."""
        end = log_end
        for record in reversed(self._records):
            if record.term <= term:
                return record.term, end
            end = record.start
        return self.base.term, self.base.start

    def between(self, start: int, end: int) -> tuple[TermRecord, ...]:
        """The records that begin in [start, end)."""
        if self._records[-1].start < start:  # almost always true: streamed bytes are new
            return ()
        return tuple(record for record in self._records[1:] if start <= record.start < end)

    def cut(self, offset: int) -> None:
        """Forget the records from `offset` on: the log now ends there, and its members are those named before."""
        assert offset >= self.base.start, f"cannot cut to {offset}: the log begins at {self.base.start}"
        while len(self._records) > 1 and self._records[-1].start >= offset:
            self._records.pop()

    def trim(self, offset: int) -> None:
        """Make `offset` the base: the bytes below it are deleted. Their last term and members are kept."""
        while len(self._records) > 1 and self._records[1].start < offset:
            del self._records[0]
        self._records[0] = self._records[0]._replace(start=max(offset, self.base.start))

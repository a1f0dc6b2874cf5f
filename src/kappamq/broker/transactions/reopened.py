"""Which given-up transactions were opened again: a fold over the log.

A record of the topic of given-up transactions stands for one open question: it may be asked again once. Should it be given up
again there is a new record for it, but the old one must not open it a second time, for it may have been committed since, and
what became of a transaction is not remembered for ever.
"""

from __future__ import annotations

from typing import Any, Final

KIND: Final = "transaction-reopened"


class Reopened:
    file = "kappamq.reopened.json"
    kinds = (KIND,)

    def __init__(self) -> None:
        self.places: set[int] = set()  # log offsets of given-up records
        self.dirty = False

    @staticmethod
    def change(log_offset: int, log_min: int) -> tuple[str, Any]:
        """The record at `log_offset` was opened again. Those below `log_min`, the beginning of the log, are forgotten: nobody can
        name them any more."""
        return KIND, [log_offset, log_min]

    def to_snapshot(self) -> dict[str, Any]:
        return {"places": sorted(self.places)}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.places = {int(place) for place in table.get("places") or []}

    def apply(self, kind: str, change: Any) -> None:
        log_offset, log_min = change if isinstance(change, list) else (change, 0)  # earlier versions forgot none
        self.places = {place for place in self.places if place >= int(log_min)} | {int(log_offset)}

    def reset(self) -> None:
        self.places = set()

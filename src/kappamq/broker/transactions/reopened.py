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

    def add(self, log_offset: int, log_min: int) -> None:
        """Those below `log_min`, the beginning of the log, are forgotten: nobody can name them any more."""
        self.places = {place for place in self.places if place >= log_min} | {log_offset}
        self.dirty = True

    def to_snapshot(self) -> dict[str, Any]:
        return {"places": sorted(self.places)}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.places = {int(place) for place in table.get("places") or []}

    def apply(self, kind: str, change: Any) -> None:
        self.add(int(change), 0)

"""A log for tables under test: keeps what they tell it, and can be made to take nothing."""

from __future__ import annotations

from typing import Any

from kappamq.errors import NotAvailable
from kappamq.protocol import fastjson


class Log:
    def __init__(self) -> None:
        self.records: list[tuple[str, Any]] = []
        self.refuses = False

    def record(self, kind: str, change: Any) -> int:
        if self.refuses:
            raise NotAvailable("the disk is full")
        self.records.append((kind, fastjson.loads(fastjson.dumps(change))))
        return len(self.records)

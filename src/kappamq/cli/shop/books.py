"""What the shop has sold and what its departments received, and whether they agree. Pure: no broker in here."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from kappamq.cli.shared.output import counted

TAGS = ("paid", "paid", "invoice")  # two of three customers pay at once
GOODS = ("green tea", "black tea", "oolong", "tea pot", "strainer")


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    run: str  # distinguishes the orders of this run from earlier ones in the same data directory

    @property
    def key(self) -> str:
        return f"order-{self.run}-{self.number}"

    @property
    def tag(self) -> str:
        return TAGS[self.number % len(TAGS)]

    @property
    def text(self) -> str:
        return f"{1 + self.number % 3} x {GOODS[self.number % len(GOODS)]}"

    def body(self) -> bytes:
        return json.dumps({"order": self.key, "what": self.text, "cents": 500 + self.number % 90 * 10}).encode()


@dataclass(slots=True)
class Books:
    """Billing gets `paid` orders, shipping gets all; each exactly once, and each can be found by its key."""

    run: str
    sold: dict[str, Order] = field(default_factory=dict)
    billing: Counter[str] = field(default_factory=Counter)
    shipping: Counter[str] = field(default_factory=Counter)
    looked_up: int = 0
    not_found: list[str] = field(default_factory=list)
    garbled: list[str] = field(default_factory=list)

    @property
    def paid(self) -> set[str]:
        return {key for key, order in self.sold.items() if order.tag == "paid"}

    def saw(self, department: str, keys: tuple[str, ...], body: bytes) -> Order | None:
        """Record a delivery; returns None for an order of an earlier run."""
        key = keys[0] if keys else ""
        if not key.startswith(f"order-{self.run}-"):
            return None
        (self.billing if department == "billing" else self.shipping)[key] += 1
        order = self.sold.get(key)
        if order is None or order.body() != body:
            self.garbled.append(f"{department} got {key} with a body that was never sent")
        return order

    @property
    def complete(self) -> bool:
        return len(self.shipping) >= len(self.sold) and len(self.billing) >= len(self.paid)

    def problems(self) -> list[str]:
        found = list(self.garbled)
        for name, seen, expected in (("billing", self.billing, self.paid), ("shipping", self.shipping, set(self.sold))):
            missing, extra = expected - seen.keys(), seen.keys() - expected
            twice = [key for key, count in seen.items() if count > 1]
            for what, keys in (("never saw", missing), ("should not have seen", extra), ("saw more than once", twice)):
                if keys:
                    found.append(f"{name} {what} {counted(len(keys), 'order')}, for example {min(keys)}")
        found += [f"{key} was not found by its key" for key in self.not_found]
        return found

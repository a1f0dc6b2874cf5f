"""The settings of a history. Each seed draws its own: few faults or many, small logs or large, so that rare combinations occur."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """Rates are per virtual second and cluster, probabilities per message or write."""

    voters: int = 3
    duration_ms: float = 8_000
    loss: float = 0.0
    duplicated: float = 0.0
    ordered: bool = True  # per link, as a connection is
    delay_ms: float = 2.0
    delay_tail: float = 0.0  # probability of a delay a hundred times as long
    crashes: float = 0.0
    crash_of_all: float = 0.0
    dies_young: float = 0.0  # probability that a leader crashes just after its election
    partitions: float = 0.0
    pauses: float = 0.0
    resets: float = 0.0  # connections closed
    wipes: float = 0.0
    changes: float = 0.0  # of members
    transfers: float = 0.0
    trims: float = 0.0
    fsync_ms: float = 1.0
    fsync_tail: float = 0.0  # probability of a flush a hundred times as slow
    cut_ms: float = 5.0
    appends: float = 30.0
    pieces_max: int = 3  # of one append

    @classmethod
    def drawn(cls, dice: Random) -> Faults:
        def maybe(most: float, probability: float = 0.5) -> float:
            return most * dice.random() ** 2 if dice.random() < probability else 0.0

        return cls(
            voters=dice.choice((1, 2, 3, 3, 3, 3, 3, 3, 4, 5)),
            duration_ms=dice.choice((5_000, 10_000, 20_000)),
            loss=maybe(0.3),
            duplicated=maybe(0.3),
            ordered=dice.random() < 0.5,
            delay_ms=dice.choice((0.5, 2.0, 10.0, 40.0)),
            delay_tail=maybe(0.2, 0.4),
            crashes=maybe(3.0, 0.8),
            crash_of_all=maybe(0.5, 0.3),
            dies_young=maybe(0.9, 0.3),
            partitions=maybe(3.0, 0.7),
            pauses=maybe(2.0, 0.3),
            resets=maybe(3.0, 0.3),
            wipes=maybe(1.0, 0.3),
            changes=maybe(4.0, 0.4),
            transfers=maybe(2.0, 0.3),
            trims=maybe(2.0, 0.2),
            fsync_ms=dice.choice((0.2, 1.0, 5.0, 30.0)),
            fsync_tail=maybe(0.2, 0.4),
            cut_ms=dice.choice((0.5, 5.0, 100.0)),
            appends=dice.choice((2.0, 10.0, 30.0, 60.0)),
            pieces_max=dice.choice((1, 1, 2, 8)),
        )

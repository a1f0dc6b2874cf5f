"""The settings of a history of whole brokers: faults and configuration. Each seed draws its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from kappamq.sim import settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults(settings.Faults):
    """Rates are per virtual second and group, probabilities per message, write or crash."""

    kernel: str = "native"
    duration_ms: float = 6_000
    kills: float = 0.0  # of one process; its machine keeps running
    in_the_middle: float = 0.0  # probability that a crash comes between two calls of the disk
    stops: float = 0.0  # by an operator
    full: float = 0.0  # the disk has no room for a while
    segment_bytes: int = 64 << 10
    body_bytes: int = 400
    append_bytes_max: int = 1 << 20
    work_ms: float = 0.5
    clean_ms: int = 60_000
    sync_queues_ms: int = 30_000
    lock_ms: int = 60_000
    skews_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def drawn(cls, dice: Random) -> Faults:
        def maybe(most: float, probability: float = 0.5) -> float:
            return most * dice.random() ** 2 if dice.random() < probability else 0.0

        return cls(
            voters=3,
            kernel=dice.choice(("native", "native", "twin")),
            duration_ms=dice.choice((2_000, 4_000, 4_000, 8_000)),
            loss=maybe(0.3),
            delay_ms=dice.choice((0.5, 2.0, 10.0, 40.0)),
            delay_tail=maybe(0.1, 0.3),
            crashes=maybe(1.5, 0.7),
            crash_of_all=maybe(0.4, 0.3),
            kills=maybe(1.5, 0.5),
            in_the_middle=dice.choice((0.0, 0.5, 1.0)),
            dies_young=maybe(0.9, 0.3),
            partitions=maybe(2.0, 0.6),
            pauses=maybe(1.0, 0.3),
            wipes=maybe(4.0, 0.2),
            stops=maybe(0.5, 0.2),
            full=maybe(0.5, 0.1),
            transfers=maybe(1.0, 0.3),
            fsync_ms=dice.choice((0.2, 1.0, 5.0, 30.0)),
            fsync_tail=maybe(0.1, 0.4),
            appends=dice.choice((10.0, 30.0, 60.0)),
            pieces_max=dice.choice((1, 4, 16)),
            body_bytes=dice.choice((50, 400, 400, 3000)),
            append_bytes_max=dice.choice((300, 3_000, 1 << 20, 1 << 20)),
            clean_ms=dice.choice((400, 1_000, 60_000, 60_000)),
            sync_queues_ms=dice.choice((100, 2_000, 30_000)),
            work_ms=dice.choice((0.1, 1.0, 20.0)),
            lock_ms=dice.choice((500, 2_000, 60_000)),
            skews_ms={name: dice.choice((0, 0, 0, -400, 700, 30_000)) for name in "ABC"},
        )

"""Which records of an answer are intact, and which messages are missing from it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kappamq.protocol.records.record import SYS_INNER_BATCH
from kappamq.protocol.records.salvage import out_of_order
from kappamq.spark.columns.batches import DAMAGED, QUEUE_OFFSET, SYS_FLAG

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPOILED: Final = "damaged: a checksum does not match; `kappamq store verify` on the broker's machine lists all damage"
LEFT_OUT: Final = "the broker could not read them; `kappamq store verify` on its machine lists all damage"

Missing = tuple[int, int, str]
"""Messages [start, stop), and why."""


def examine(
    places: NDArray[np.int64], start: int, stop: int, *, everything: bool
) -> tuple[NDArray[np.int64], list[Missing]]:
    """Return the records of the messages [start, stop), each once and in order, and what is missing.

    `everything`: all messages were requested, so any that is not there is missing. If the broker compared tags, only those
    that it sent damaged are. A record that holds a whole batch covers several offsets: then no gaps can be detected."""
    offsets = places[:, QUEUE_OFFSET]
    damaged = places[:, DAMAGED] != 0
    if len(places) == stop - start and not damaged.any() and (offsets == np.arange(start, stop)).all():
        return places, []
    good = places[~damaged & (offsets >= start) & (offsets < stop)]
    if (np.diff(good[:, QUEUE_OFFSET]) <= 0).any():
        # Pulled twice where two stripes overlap, or its offset is wrong: not every record has a checksum over it.
        good = np.delete(good, sorted(out_of_order(good[:, QUEUE_OFFSET].tolist())), axis=0)
    claimed = offsets[damaged]
    if (places[:, SYS_FLAG] & SYS_INNER_BATCH).any():
        everything = False
    if everything:
        missing = np.setdiff1d(np.arange(start, stop), good[:, QUEUE_OFFSET], assume_unique=True)
    else:
        # The offset in a damaged record may be wrong, too: then use the beginning.
        inside = (claimed >= start) & (claimed < stop)
        claimed = np.where(inside, claimed, start)
        missing = np.unique(claimed)
    return good, _runs(missing, np.isin(missing, claimed))


def _runs(missing: NDArray[np.int64], spoiled: NDArray[np.bool_]) -> list[Missing]:
    if not len(missing):
        return []
    cuts = np.flatnonzero((np.diff(missing) != 1) | (spoiled[1:] != spoiled[:-1])) + 1
    firsts, lasts = [0, *cuts.tolist()], [*(cuts - 1).tolist(), len(missing) - 1]
    return [
        (int(missing[first]), int(missing[last]) + 1, SPOILED if spoiled[first] else LEFT_OUT)
        for first, last in zip(firsts, lasts, strict=True)
    ]

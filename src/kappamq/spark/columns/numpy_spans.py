"""Pieces of a buffer, many at a time: numbers read in place, stretches of bytes copied side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Bytes: TypeAlias = NDArray[np.uint8]

COLUMN_BYTES_MAX: Final = (1 << 31) - 1
_SHORT_BYTES: Final = 32
"""Up to this on average, unless all have one size, a number for each byte costs less than several copies for each stretch."""
_LONG_BYTES: Final = 512
"""Above this on average, a slice of each stretch costs less than the copies that numpy makes on the way."""


def windows(data: Bytes, kind: str) -> NDArray[Any]:
    """A value of this kind at every byte of `data`, none copied: `windows(data, ">i4")[at]` reads numbers at any positions."""
    item = np.dtype(kind)
    return np.ndarray((max(len(data) - item.itemsize + 1, 0),), item, data.data, strides=(1,))


def numbers(data: Bytes, kind: str, at: Ints) -> Ints:
    """The numbers of this kind at these positions, all of which must lie within `data`."""
    return windows(data, kind)[at].astype(np.int64)


def ends(sizes: Ints) -> Ints:
    """Return where stretches of these sizes begin and end when they lie back to back: one more than there are sizes."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def offsets(sizes: Ints) -> bytes:
    """Return the offsets of an Arrow column. Raises OverflowError if 32 bits are too few."""
    found = ends(sizes)
    if found[-1] > COLUMN_BYTES_MAX:
        raise OverflowError("a column of more than 2 GiB: take fewer records at a time")
    return found.astype(np.int32).tobytes()


def joined(data: Bytes, at: Ints, sizes: Ints) -> bytes:
    """Return the stretches back to back. All must lie within `data`."""
    bounds = ends(sizes)
    if bounds[-1] > _LONG_BYTES * len(sizes):
        view = data.data
        return b"".join([view[start:stop] for start, stop in zip(at.tolist(), (at + sizes).tolist(), strict=True)])
    if 0 < bounds[-1] <= _SHORT_BYTES * len(sizes) and sizes.min() != sizes.max():
        taken = np.repeat(at - bounds[:-1], sizes)
        taken += np.arange(len(taken))
        return bytes(data[taken].data)
    out = np.empty(int(bounds[-1]), np.uint8)
    copy(data, at, sizes, out, bounds[:-1])
    return out.tobytes()


def copy(data: Bytes, at: Ints, sizes: Ints, out: Bytes, to: Ints) -> None:
    """Copy stretches of `data` to the positions `to` of `out`.

    If all have one size this is one assignment. Else a stretch is copied in pieces of 1, 2, 4, 8 ... bytes that add up to its size:
    a few assignments for all stretches together, whatever their sizes are."""
    if not len(sizes):
        return
    longest = int(sizes.max())
    if longest and longest == int(sizes.min()):
        windows(out, f"V{longest}")[to] = windows(data, f"V{longest}")[at]
        return
    at, to = at.copy(), to.copy()
    piece = 1
    while piece <= longest:
        rows = np.flatnonzero(sizes & piece)
        if len(rows):
            windows(out, f"V{piece}")[to[rows]] = windows(data, f"V{piece}")[at[rows]]
            at[rows] += piece
            to[rows] += piece
        piece *= 2

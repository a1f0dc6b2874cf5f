"""Stretches copied many at a time are those that one would copy one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.spark.columns import numpy_spans

DATA = bytes(range(256)) * 20
ARRAY = np.frombuffer(DATA, np.uint8)
sizes = st.integers(0, 40) | st.sampled_from([0, 127, 128, 129, 3000])


@given(st.lists(st.tuples(st.integers(0, 2000), sizes), max_size=30))
def test_joined_is_the_slices_back_to_back(spans: list[tuple[int, int]]) -> None:
    at, lengths = (np.array([span[part] for span in spans], np.int64) for part in (0, 1))
    expected = [DATA[start : start + size] for start, size in spans]
    assert numpy_spans.joined(ARRAY, at, lengths) == b"".join(expected)
    bounds = struct.unpack(f"={len(spans) + 1}i", numpy_spans.offsets(lengths))
    assert [bounds[n + 1] - bounds[n] for n in range(len(spans))] == [len(piece) for piece in expected]
    out = np.zeros(sum(map(len, expected)) + len(spans), np.uint8)
    numpy_spans.copy(ARRAY, at, lengths, out, numpy_spans.ends(lengths + 1)[:-1])
    assert out.tobytes() == b"".join(piece + b"\0" for piece in expected)


def test_numbers_at_any_position() -> None:
    at = np.array([0, 1, 7, 255, len(DATA) - 4])
    expected = [int.from_bytes(DATA[start : start + 4], "big", signed=True) for start in at]
    assert numpy_spans.numbers(ARRAY, ">i4", at).tolist() == expected
    nothing = np.zeros(0, np.int64)
    assert numpy_spans.numbers(ARRAY[:2], ">i8", nothing).tolist() == []


def test_a_column_of_more_than_2_gib_is_refused() -> None:
    numpy_spans.offsets(np.array([1 << 30, (1 << 30) - 1]))
    with pytest.raises(OverflowError, match="more than 2 GiB"):
        numpy_spans.offsets(np.array([1 << 30, 1 << 30]))

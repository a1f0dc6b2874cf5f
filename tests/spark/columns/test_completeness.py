"""Each record once and in order, and what is missing by name, whatever an answer holds."""

from __future__ import annotations

import numpy as np
import pytest

from kappamq.protocol.records.record import SYS_INNER_BATCH
from kappamq.spark.columns.batches import DAMAGED, QUEUE_OFFSET, SYS_FLAG
from kappamq.spark.columns.completeness import LEFT_OUT, SPOILED, Missing, examine


def seen(
    offsets: list[int], start: int, stop: int, *, damaged: tuple[int, ...] = (), everything: bool = True, flag: int = 0
) -> tuple[list[int], list[Missing]]:
    """`damaged` are rows, not offsets."""
    places = np.zeros((len(offsets), 16), np.int64)
    places[:, QUEUE_OFFSET] = offsets
    places[:, SYS_FLAG] = flag
    places[list(damaged), DAMAGED] = 1
    good, missing = examine(places, start, stop, everything=everything)
    return good[:, QUEUE_OFFSET].tolist(), missing


def test_a_whole_answer_is_handed_through() -> None:
    places = np.zeros((3, 16), np.int64)
    places[:, QUEUE_OFFSET] = [5, 6, 7]
    good, missing = examine(places, 5, 8, everything=True)
    assert good is places
    assert missing == []


@pytest.mark.parametrize(
    ("offsets", "damaged", "found", "missing"),
    [
        ([5, 7, 8], (), [5, 7, 8], [(6, 7, LEFT_OUT), (9, 10, LEFT_OUT)]),
        ([], (), [], [(5, 10, LEFT_OUT)]),
        ([5, 6, 7, 8, 9], (1, 2), [5, 8, 9], [(6, 8, SPOILED)]),
        ([5, 6, 8, 9], (1,), [5, 8, 9], [(6, 7, SPOILED), (7, 8, LEFT_OUT)]),
        ([5, 6, 7, 7, 8, 9], (), [5, 6, 7, 8, 9], []),  # two stripes had it
        ([5, 6, 7, 8, 9, 10, 11], (), [5, 6, 7, 8, 9], []),
        ([5, 8, 7, 8, 9], (), [5, 7, 8, 9], [(6, 7, LEFT_OUT)]),  # the second one lies
        ([5, 6, 99, 8, 9], (2,), [5, 6, 8, 9], [(7, 8, LEFT_OUT)]),
    ],
)
def test_what_is_not_as_it_should_be(
    offsets: list[int], damaged: tuple[int, ...], found: list[int], missing: list[Missing]
) -> None:
    assert seen(offsets, 5, 10, damaged=damaged) == (found, missing)


def test_what_a_broker_left_out_because_of_its_tag_is_not_missing() -> None:
    assert seen([5, 9], 5, 10, everything=False) == ([5, 9], [])
    assert seen([5, 7, 9], 5, 10, damaged=(1,), everything=False) == ([5, 9], [(7, 8, SPOILED)])
    assert seen([5, 99], 5, 10, damaged=(1,), everything=False) == ([5], [(5, 6, SPOILED)])


def test_a_record_that_holds_a_batch_stands_for_several_offsets() -> None:
    assert seen([5, 8], 5, 10, flag=SYS_INNER_BATCH) == ([5, 8], [])

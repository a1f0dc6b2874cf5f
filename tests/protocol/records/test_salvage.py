"""Good records are found around damaged ones, and never invented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.protocol.records.record import Record
from kappamq.protocol.records.salvage import Spoiled, out_of_order, salvage
from kappamq.protocol.records.view import RecordView

RECORDS = [
    Record(
        topic="t" * (200 if number == 3 else 4), body=b"body %d" % number, properties="a\x01b\x02", queue_offset=number,
        log_offset=1000 * number, tail_crc=True, born_host=bytes(16 if number == 2 else 4),
    )
    for number in range(6)
]  # fmt: skip
DATA = b"".join(record.encode() for record in RECORDS)


def test_good_records_pass() -> None:
    assert [item.body for item in salvage(DATA) if isinstance(item, RecordView)] == [record.body for record in RECORDS]
    assert list(salvage(b"")) == []


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_one_flipped_bit_costs_at_most_what_lies_behind_and_invents_nothing(at: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= 1 << bit
    items = list(salvage(bytes(damaged)))
    good = [item for item in items if isinstance(item, RecordView)]
    bad = [item for item in items if isinstance(item, Spoiled)]
    assert len(bad) <= 1
    bodies = [record.body for record in RECORDS]
    kept = [item.body for item in good]
    if bad and bad[0].last:
        assert kept == bodies[: len(kept)]
    else:
        assert [body for body in bodies if body in kept] == kept
        assert len(kept) >= 5


@given(st.binary(max_size=400))
def test_any_bytes_end(data: bytes) -> None:
    items = list(salvage(data + RECORDS[0].encode()))
    assert all(isinstance(item, RecordView | Spoiled) for item in items)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_what_is_left_ascends(numbers: list[int]) -> None:
    left_out = out_of_order(numbers)
    kept = [number for position, number in enumerate(numbers) if position not in left_out]
    assert kept == sorted(set(kept))


def test_as_few_as_possible_are_left_out() -> None:
    assert out_of_order([]) == set()
    assert out_of_order([3, 6, 5, 6, 7]) == {1}
    assert out_of_order([9, 1, 2, 3]) == {0}
    assert out_of_order([1, 2, 3, 0]) == {3}

"""Tags, keys and SQL92 conditions select rows on the executor."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError
from kappamq.protocol.records.record import Record
from kappamq.spark.columns.batches import Batches
from kappamq.spark.columns.selection import Selection, compile_filter
from kappamq.spark.topic.options import ReadOptions

RECORDS = [
    Record(topic="t", body=b"", properties="TAGS\1paid\2KEYS\1a b\2price\0019\2"),
    Record(topic="t", body=b"", properties="TAGS\1sent\2KEYS\1c\2price\00110\2"),
    Record(topic="t", body=b"", properties="price\1cheap\2"),
]
DATA = b"".join(record.encode() for record in RECORDS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [True, True, True]),
        ({"tags": "*"}, [True, True, True]),
        ({"tags": "paid || other"}, [True, False, False]),
        ({"keys": "b,c"}, [True, True, False]),
        ({"keys": "ab"}, [False, False, False]),
        ({"filter": "price > 9"}, [False, True, False]),
        ({"filter": "price IS NOT NULL AND TAGS IS NULL"}, [False, False, True]),
        ({"tags": "paid || sent", "keys": "c", "filter": "price = 10"}, [False, True, False]),
    ],
)
def test_rows(options: dict[str, str], expected: list[bool]) -> None:
    selection = Selection(ReadOptions.parse({"nameservers": "x:1", "topic": "t", **options}))
    batches = Batches(selection.columns or ("queueId",))
    assert selection.rows(batches.make(DATA, batches.locate(DATA), "b")).tolist() == expected


def test_only_what_is_needed_is_looked_at() -> None:
    def columns(**options: str) -> tuple[str, ...]:
        return Selection(ReadOptions.parse({"nameservers": "x:1", "topic": "t", **options})).columns

    assert columns() == columns(tags="*") == ()
    assert columns(tags="a", keys="b") == ("tags", "keys")
    assert columns(filter="a = 1") == ("properties",)


def test_a_wrong_condition_is_shown() -> None:
    with pytest.raises(ConfigError, match="filter='price >'"):
        compile_filter("price >")
    assert compile_filter(None) is None

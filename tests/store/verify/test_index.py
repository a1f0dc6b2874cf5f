from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kappamq.store.files import Files
from kappamq.store.index.view import file_name
from kappamq.store.verify.index import IndexCheck
from kappamq.store.verify.report import Report
from tests.store.java_index import ENTRY, Key, build

BEGIN = 1_700_000_000_000
SLOTS, ENTRIES = 5, 8
KEYS: list[Key] = [(3, 100, BEGIN), (8, 100, BEGIN), (4, 200, BEGIN), (3, 300, BEGIN), (9, 300, BEGIN), (1, 400, BEGIN)]
KEYS += [(2, 500, BEGIN), (3, 500, BEGIN), (5, 600, BEGIN)]
RECORDS = [(100, [3, 8]), (150, []), (200, [4]), (300, [3, 9]), (400, [1]), (500, [2, 3]), (600, [5])]


def write(folder: Path, keys: list[Key], change: Callable[[bytearray], None] | None = None) -> None:
    """Index files of `keys`; `change` is done to the first."""
    name = ""
    for number, file in enumerate(build(keys, SLOTS, ENTRIES)):
        image = bytearray(file.image())
        if change is not None and number == 0:
            change(image)
        name = file_name(BEGIN, name)
        (folder / name).write_bytes(image)


def check(folder: Path, records: list[tuple[int, list[int]]], indexed_to: int = 0, log_min: int = 0) -> Report:
    report = Report(folder, problems_max=20, log_min=log_min)
    index = IndexCheck(folder, SLOTS, ENTRIES, indexed_to, report, Files())
    for offset, hashes in records:
        index.expect(offset, hashes)
    list(index.finish())
    return report


def meanings(report: Report) -> list[str]:
    return [f"{problem.offset}: {problem.meaning}" for problem in report.problems]


def test_all_is_well(tmp_path: Path) -> None:
    write(tmp_path, KEYS)
    report = check(tmp_path, RECORDS)
    assert report.ok
    assert (report.index_files, report.index_entries, report.unindexed) == (2, 9, 0)


def test_without_an_index_nothing_is_promised(tmp_path: Path) -> None:
    report = check(tmp_path, RECORDS)
    assert report.ok
    assert report.unindexed == 0


def test_keys_still_on_their_way(tmp_path: Path) -> None:
    write(tmp_path, KEYS[:-1])
    assert check(tmp_path, RECORDS).unindexed == 1
    assert check(tmp_path, RECORDS).ok
    report = check(tmp_path, RECORDS, indexed_to=601)
    assert meanings(report) == ["600: the record's key with hash 5 is not in the index"]


def test_a_key_that_is_missing_or_too_many(tmp_path: Path) -> None:
    write(tmp_path, [*KEYS[:4], (7, 300, BEGIN), *KEYS[5:]])
    assert meanings(check(tmp_path, RECORDS)) == [
        "300: the record's key with hash 9 is not in the index",
        "300: the index has a key with hash 7 that the record does not have",
    ]


def test_a_key_entered_twice_does_no_harm(tmp_path: Path) -> None:
    write(tmp_path, [*KEYS[:3], KEYS[2], *KEYS[3:]])
    assert check(tmp_path, RECORDS).ok


def test_prepared_records_may_or_may_not_be_indexed(tmp_path: Path) -> None:
    write(tmp_path, KEYS[:2])
    report = Report(tmp_path, 20)
    index = IndexCheck(tmp_path, SLOTS, ENTRIES, 1000, report, Files())
    index.expect(50, [77], optional=True)
    index.expect(100, [3, 8], optional=True)
    list(index.finish())
    assert report.ok


def test_entries_that_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path, KEYS)
    report = check(tmp_path, [record for record in RECORDS if record[0] not in (200, 600)])
    assert meanings(report) == [
        "200: there is no valid record for key hash 4",
        "600: there is no valid record for key hash 5",
    ]
    assert check(tmp_path, RECORDS[4:], log_min=400).ok  # what retention has deleted is not missed


def test_a_broken_link(tmp_path: Path) -> None:
    def change(image: bytearray) -> None:
        at = 40 + SLOTS * 4 + 4 * 20
        image[at : at + 20] = ENTRY.pack(3, 300, 0, 1)  # entry 2 lies between

    write(tmp_path, KEYS, change)
    assert meanings(check(tmp_path, RECORDS)) == [
        "300: entry 4 links to entry 1, but the previous entry of its slot is 2"
    ]


def test_a_wrong_slot(tmp_path: Path) -> None:
    def change(image: bytearray) -> None:
        image[40 + 3 * 4 + 3] = 2

    write(tmp_path, KEYS, change)
    assert meanings(check(tmp_path, RECORDS)) == ["500: slot 3 leads to entry 2, its newest is 4"]


def test_slots_that_are_older_than_the_entries_are_not_judged(tmp_path: Path) -> None:
    def change(image: bytearray) -> None:
        image[36:40] = bytes(4)
        image[40:60] = bytes(20)

    write(tmp_path, KEYS, change)
    assert check(tmp_path, RECORDS).ok


def test_out_of_log_order(tmp_path: Path) -> None:
    write(tmp_path, [*KEYS[:3], (4, 150, BEGIN), *KEYS[3:]])
    assert meanings(check(tmp_path, RECORDS)) == ["150: there is no valid record for key hash 4"]


@pytest.mark.parametrize(("size", "problems"), [(0, 0), (99, 1)])
def test_odd_sizes(tmp_path: Path, size: int, problems: int) -> None:
    write(tmp_path, KEYS[:7])
    (tmp_path / file_name(BEGIN + 1000)).write_bytes(bytes(size))
    assert check(tmp_path, [*RECORDS[:5], (500, [2])]).problem_count == problems


def test_a_broker_that_we_cannot_ask_writes_slots_meanwhile(tmp_path: Path) -> None:
    """`kappamq store verify` beside a running broker: there are new entries and slots, and still the old header."""
    write(tmp_path, KEYS[:4])
    report = Report(tmp_path, 20)
    index = IndexCheck(tmp_path, SLOTS, ENTRIES, 0, report, Files())
    for offset, hashes in [*RECORDS[:3], (300, [3])]:
        index.expect(offset, hashes)
    (path,) = tmp_path.iterdir()
    header = path.read_bytes()[:40]
    write(tmp_path, KEYS[:7], lambda image: image.__setitem__(slice(40), header))
    list(index.finish())
    assert report.problems == []

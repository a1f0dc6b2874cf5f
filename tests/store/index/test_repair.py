"""A repair of the index that only looks right: it is confirmed against the entries, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.protocol.records.entries import INDEX_SLOT, entry_position, slot_position
from kappamq.store.message_store import MessageStore
from kappamq.store.verify.repair import StoreRepair
from kappamq.store.verify.report import BytesFix, Kind, Problem
from tests.store.stores import Writer, config, opened
from tests.store.verify.test_scrub import index_files, run, send_keys

SLOTS = 97
FIELDS = [(0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4)]


def number_at(path: Path, position: int, size: int = 4) -> int:
    with path.open("rb") as file:
        file.seek(position)
        return int.from_bytes(file.read(size), "big", signed=True)


def put(path: Path, position: int, number: int, size: int = 4) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(number.to_bytes(size, "big", signed=True))


def repair(store: MessageStore, path: Path, position: int, right: int, size: int = 4) -> bool:
    """Mend what lies there now, as if a check had found that it should be `right`."""
    wrong = number_at(path, position, size).to_bytes(size, "big", signed=True)
    fix = BytesFix(path, position, wrong, right.to_bytes(size, "big", signed=True))
    return StoreRepair(store).repair(Problem(Kind.INDEX, path.name, 0, "wrong", fix))


def two_entries_of_a_slot(path: Path) -> tuple[int, int, int]:
    """(slot, its newest entry, the one before it)"""
    for slot in range(SLOTS):
        newest = number_at(path, slot_position(slot))
        older = number_at(path, entry_position(SLOTS, newest) + 16) if newest else 0
        if older:
            return slot, newest, older
    raise AssertionError("no slot has two entries")


@pytest.mark.parametrize("which", [0, 1], ids=["full", "growing"])
def test_old_values_are_not_written_over_new_ones(tmp_path: Path, which: int) -> None:
    with opened(config(tmp_path, index_entries=301)) as store:
        send_keys(Writer(store), 0, 500)
        before = index_files(tmp_path)
        path = sorted((tmp_path / "index").iterdir())[which]
        slot, _newest, older = two_entries_of_a_slot(path)
        assert not repair(store, path, slot_position(slot), older)
        assert not repair(store, path, slot_position(slot), 0)
        for position, size in FIELDS:
            assert not repair(store, path, position, number_at(path, position, size) - 1, size)
        assert index_files(tmp_path) == before


@pytest.mark.parametrize("which", [0, 1], ids=["full", "growing"])
@pytest.mark.parametrize("damage", ["older", "of another slot", "beyond the file", "none"])
def test_a_damaged_slot_is_repaired(tmp_path: Path, which: int, damage: str) -> None:
    with opened(config(tmp_path, index_entries=301)) as store:
        send_keys(Writer(store), 0, 500)
        before = index_files(tmp_path)
        path = sorted((tmp_path / "index").iterdir())[which]
        slot, newest, older = two_entries_of_a_slot(path)
        others = {number_at(path, slot_position(other)) for other in range(SLOTS)} - {newest}
        wrong = {"older": older, "of another slot": max(others), "beyond the file": 1 << 30, "none": 0}[damage]
        put(path, slot_position(slot), wrong)
        assert repair(store, path, slot_position(slot), newest)
        assert index_files(tmp_path) == before


@pytest.mark.parametrize("which", [0, 1], ids=["full", "growing"])
@pytest.mark.parametrize(("position", "size"), FIELDS)
def test_a_damaged_header_is_repaired(tmp_path: Path, which: int, position: int, size: int) -> None:
    with opened(config(tmp_path, index_entries=301)) as store:
        send_keys(Writer(store), 0, 500)
        before = index_files(tmp_path)
        path = sorted((tmp_path / "index").iterdir())[which]
        right = number_at(path, position, size)
        put(path, position, right ^ 4, size)
        assert repair(store, path, position, right, size)
        assert index_files(tmp_path) == before


def test_damage_that_was_read_into_memory_does_not_come_back(tmp_path: Path) -> None:
    """The slot table was read from the file before anybody noticed."""
    with opened(config(tmp_path)) as store:
        send_keys(Writer(store), 0, 200)
    (path,) = (tmp_path / "index").iterdir()
    slot, newest, older = two_entries_of_a_slot(path)
    put(path, slot_position(slot), older)
    with opened(config(tmp_path)) as store:
        while store.catching_up():
            store.catch_up()
        writer = Writer(store)
        send_keys(writer, 200, 201)
        growing = store.index.growing(path)
        assert growing is not None
        assert growing.slot_in_memory(slot) == older, "the new key lies in another slot"
        (problem,) = run(store).report.problems
        assert isinstance(problem.fix, BytesFix)
        assert problem.fix.right == INDEX_SLOT.pack(newest)
        assert StoreRepair(store).repair(problem)
        assert growing.slot_in_memory(slot) == number_at(path, slot_position(slot)) == newest
        send_keys(writer, 201, 900)
        assert run(store).report.problems == []


def test_slots_that_are_to_be_written_anyway_are_left_alone(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        send_keys(writer, 0, 200)
        (path,) = (tmp_path / "index").iterdir()
        slot, newest, older = two_entries_of_a_slot(path)
        put(path, slot_position(slot), older)
        growing = store.index.growing(path)
        assert growing is not None
        growing.slot_was_repaired(slot, newest + 1)  # as if it had got another entry
        assert not repair(store, path, slot_position(slot), newest)
        growing.slot_was_repaired(slot, newest)
        growing.on_disk = growing.on_disk._replace(flushed=0)  # as after a write that failed
        assert not repair(store, path, slot_position(slot), newest)
        assert not repair(store, path, 36, number_at(path, 36, 4) - 1)
        assert not repair(store, path, 32, 5)

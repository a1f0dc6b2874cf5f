from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.native.layout import ENTRY
from kappamq.store.position import Position
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.repair import StoreRepair
from kappamq.store.verify.report import BytesFix, EntryFix, Fix, Kind, Problem, WriteAgain
from tests.store.stores import Writer, bodies, config, opened
from tests.store.verify.test_scrub import fill, flip, run


def problem(fix: Fix | None, kind: Kind = Kind.QUEUE) -> Problem:
    return Problem(kind, "somewhere", 0, "wrong", fix)


def test_what_a_pass_finds_is_repaired(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = fill(store)
        store.index.flush()
        store.sync_derived(store.collect())
        queue = tmp_path / "consumequeue" / "t" / "1" / f"{0:020d}"
        index = sorted((tmp_path / "index").iterdir())[0]
        before = queue.read_bytes(), index.read_bytes()
        for at in (3, 40, 40 + 4 * 97 + 20 * 50 + 2, 40 + 4 * 97 + 20 * 60 + 18, 25):
            flip(index, at)
        flip(queue, 40 * 20 + 7)
        flip(tmp_path / "checkpoint", 5)
        found = run(store).report.problems
        assert len(found) >= 7
        repair = StoreRepair(store)
        assert all(repair.repair(one) for one in found if one.fix != WriteAgain("checkpoint"))
        assert any(repair.repair(one) for one in found if one.fix == WriteAgain("checkpoint"))
        assert (queue.read_bytes(), index.read_bytes()) == before
        assert run(store).report.problems == []
        assert not any(repair.repair(one) for one in found), "nothing of it is wrong any more"
        assert bodies(store, "t", 1) == writer.expected["t", 1]


@pytest.mark.parametrize("bit", range(160))
def test_every_bit_of_an_index_entry_is_repaired(tmp_path: Path, bit: int) -> None:
    with opened(config(tmp_path)) as store:
        fill(store, 60)
        store.index.flush()
        index = sorted((tmp_path / "index").iterdir())[0]
        before = index.read_bytes()
        spoilt = bytearray(before)
        spoilt[40 + 4 * 97 + 20 * 31 + bit // 8] ^= 0x80 >> bit % 8
        index.write_bytes(spoilt)
        found = run(store).report.problems
        assert len(found) == 1, [str(one) for one in found]
        assert StoreRepair(store).repair(found[0])
        assert index.read_bytes() == before


def test_what_changed_meanwhile_is_not_touched(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(store)
        repair = StoreRepair(store)
        path = tmp_path / "file"
        path.write_bytes(b"abcdef")
        assert not repair.repair(problem(BytesFix(path, 2, b"xx", b"yy")))
        assert repair.repair(problem(BytesFix(path, 2, b"cd", b"yy")))
        assert path.read_bytes() == b"abyyef"
        assert not repair.repair(problem(BytesFix(tmp_path / "gone", 2, b"cd", b"yy")))
        right = ENTRY.pack(*(store.entry("t", 0, 3) or ()))
        assert not repair.repair(problem(EntryFix("t", 0, 3, right)))
        assert not repair.repair(problem(EntryFix("t", 0, 10_000, right))), "not in a file yet"
        assert not repair.repair(problem(EntryFix("nobody", 0, 3, right)))
        assert repair.repair(problem(None)), "nothing to compare with: it is believed"


def test_messages_that_a_damaged_entry_hid_at_the_start_come_back(tmp_path: Path) -> None:
    """A start looks for the first message of a queue by bisection, and a flip may lead it astray."""
    with opened(config(tmp_path)) as store:
        writer = fill(store)
        store.kernel.set_queue_min("t", 0, 100)
        found = run(store).report.problems
        assert {one.kind for one in found} == {Kind.QUEUE}
        assert StoreRepair(store).repair(found[0])
        assert store.kernel.queue_state("t", 0).first == 0
        assert bodies(store, "t", 0) == writer.expected["t", 0]


def test_a_queue_that_was_deleted_stays_so(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = fill(store, 128)
        for queue_id in range(2):
            end = store.kernel.queue_state("t", queue_id).end
            assert end == 64, "the next entry begins a file, so there is no filler before it"
            store.kernel.set_queue("t", queue_id, end, end)
        store.forget_topic("t")
        writer.expected.clear()
        for number in range(20):
            writer.send(b"new %d" % number, queue_id=number % 2)
        writer.write()
        writer.write_derived()
        repair = StoreRepair(store)
        assert not any(repair.repair(one) for one in run(store).report.problems)
        assert store.kernel.queue_state("t", 0).first == 64
        assert bodies(store, "t", 0) == writer.expected["t", 0]


@pytest.mark.parametrize("name", ["kappamq.position", "checkpoint"])
def test_marks_are_written_again(tmp_path: Path, name: str) -> None:
    with opened(config(tmp_path)) as store:
        fill(store)
        store.sync_derived(store.collect())
        flip(tmp_path / name, 12)
        assert StoreRepair(store).repair(problem(WriteAgain(name), Kind.CONFIG))
        assert not StoreRepair(store).repair(problem(WriteAgain(name), Kind.CONFIG))
        position, why = Position.load(tmp_path / "kappamq.position")
        assert why == ""
        assert position is not None
        assert position.wrote((tmp_path / "checkpoint").read_bytes())


def test_a_snapshot_is_confirmed_and_left_to_its_owner(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        Writer(store)
        Snapshots(tmp_path / "config").save("topics.json", {"a": 1}, 0)
        wrong = problem(WriteAgain("topics.json"), Kind.CONFIG)
        assert not StoreRepair(store).repair(wrong)
        flip(tmp_path / "config" / "topics.json", 6)
        assert StoreRepair(store).repair(wrong)


def test_a_snapshot_that_was_ahead_of_the_log_is_looked_at_again(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(store, 20)
        Snapshots(tmp_path / "config").save("topics.json", {"a": 1}, store.log.end + 1)
        (ahead,) = run(store).report.problems
        assert (ahead.kind, ahead.fix) == (Kind.CONFIG, None)
        assert StoreRepair(store).repair(ahead), "it is still there, and is told"
        fill(store, 20)
        assert not StoreRepair(store).repair(ahead)

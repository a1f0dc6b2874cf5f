"""The end of a log is cut off while no broker has it open."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kappamq import native
from kappamq.errors import StoreError
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.store.cutting import Cut, OfflineCut
from kappamq.store.log.commit_log import CommitLog
from kappamq.store.log.log_reader import LogReader
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.verify import verify
from tests.store.faulty import FaultyFiles
from tests.store.stores import Writer, bodies, check, config, kernels, make, opened

KERNELS = kernels()


def cut(root: Path, log_offset: int, kind: str = "twin", files: FaultyFiles | None = None) -> Cut:
    log = LogReader(root / "commitlog", files)
    try:
        offline = OfflineCut(root, log, native.load(kind), files)
        done = offline.plan(log_offset)
        store = make(config(root), kind, files)
        offline.carry_out(done, CommitLog(root / "commitlog", log.segment_bytes, store.files, store.kernel))
        return done
    finally:
        log.close()


def written(root: Path, kind: str, clean: bool = True) -> tuple[list[int], list[dict[Any, list[bytes]]]]:
    """A store of some files, with queue and index files: places at which it can be cut, and what is there then."""
    places, expected = [0], [dict[Any, list[bytes]]()]
    with opened(config(root), kind, clean=clean) as store:
        writer = Writer(store)
        for number in range(300):
            if number % 10 == 5:
                writer.batch([b"%d %d" % (number, member) for member in range(3)], queue_id=1)
            else:
                writer.send(b"%d" % number + b"." * 400, queue_id=number % 2, properties=b"KEYS\x01k%d\x02" % number)
            writer.write()
            places.append(store.log.end)
            expected.append({queue: list(found) for queue, found in writer.expected.items()})
            if number in (100, 200):
                writer.write_derived()
        assert store.log.end > 2 * store.config.segment_bytes
    return places, expected


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [290, 101, 3, 0])
@pytest.mark.parametrize("position", ["ours", "lost"])
def test_the_rest_is_as_if_the_end_had_never_been(
    tmp_path: Path, kind: str, clean: bool, number: int, position: str
) -> None:
    places, expected = written(tmp_path, kind, clean)
    raw = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
    if position == "lost":
        (tmp_path / "kappamq.position").unlink()
    done = cut(tmp_path, places[number], kind)
    assert (done.log_end, done.log_offset) == (places[-1], places[number])
    assert done.records == sum(map(len, expected[-1].values())) - sum(map(len, expected[number].values()))
    assert done.kept == tmp_path / f"cut-{places[number]}-{places[-1]}-1.bin"
    assert done.kept.read_bytes() == raw[places[number] : places[-1]]
    with opened(config(tmp_path), kind) as store:
        assert store.log.end == places[number]
        writer = Writer(store)
        writer.expected = {queue: list(found) for queue, found in expected[number].items()}
        check(store, writer)
        for queue_id in (0, 1):
            assert len(bodies(store, queue_id=queue_id)) == len(expected[number].get(("t", queue_id), []))
        while store.catching_up():
            store.catch_up()
        writer.write_derived()
        found = {n for n in range(300) if store.query("t", f"k{n}", 10, 0, 1 << 60)}
        assert found == {n for n in range(number) if n % 10 != 5}
        writer.send(b"anew", properties=b"KEYS\x01anew\x02")
        writer.write()
        writer.write_derived()
        check(store, writer)
        assert store.query("t", "anew", 10, 0, 1 << 60) == [places[number]]
    report = verify(tmp_path, index_slots=97, index_entries=1000)
    assert report.ok, report.problems


def test_places_between_records_are_offered(tmp_path: Path) -> None:
    places, _expected = written(tmp_path, "twin")
    before = contents(tmp_path)
    for number in (0, 5, 100):  # 5 -> 6 is a batch
        for wrong in (places[number] + 1, places[number + 1] - 1):
            with pytest.raises(StoreError, match=f"nearest places are {places[number]} or {places[number + 1]}"):
                cut(tmp_path, wrong)
    for wrong in (places[-1] + 1, 1 << 50):
        with pytest.raises(StoreError, match=f"the offsets 0 to {places[-1]}: it cannot be cut to {wrong}"):
            cut(tmp_path, wrong)
    assert contents(tmp_path) == before
    assert cut(tmp_path, places[-1]).kept is None


def test_snapshots_that_know_more_make_way(tmp_path: Path) -> None:
    places, _expected = written(tmp_path, "twin")
    low, middle, high = places[10], places[50], places[200]
    snapshots = Snapshots(tmp_path / "config")
    for name, stamps in {
        "both.json": (middle, high),
        "backup.json": (low, high),
        "good.json": (low, low),
        "one.json": (high,),
    }.items():
        for stamp in stamps:
            snapshots.save(name, {"at": stamp}, stamp)
    (tmp_path / "config" / "java.json").write_text('{"of": "another broker"}')
    (tmp_path / "config" / "broken.json").write_text("{")
    done = cut(tmp_path, places[20])
    left = Snapshots(tmp_path / "config")
    assert {
        name: getattr(left.load(name), "log_offset", "gone")
        for name in ("both.json", "backup.json", "good.json", "one.json")
    } == {
        "both.json": "gone",
        "backup.json": low,
        "good.json": low,
        "one.json": "gone",
    }
    assert getattr(left.load("java.json"), "table", None) == {"of": "another broker"}
    assert [note.split()[0] for note in done.notes] == ["config/backup.json", "config/both.json", "config/one.json"]


def test_without_the_log_s_beginning_a_table_that_knows_more_is_better_than_none(tmp_path: Path) -> None:
    places, _expected = written(tmp_path, "twin")
    first = sorted((tmp_path / "commitlog").iterdir())[0]
    first.unlink()
    place = next(place for place in places if place > config(tmp_path).segment_bytes)
    Snapshots(tmp_path / "config").save("topics.json", {"known": 1}, places[-1])
    done = cut(tmp_path, place)
    found = Snapshots(tmp_path / "config").load("topics.json")
    assert found is not None
    assert (found.table, found.log_offset) == ({"known": 1}, place)
    assert "there is no older state" in done.notes[0]


def test_timer_files_go_if_a_timer_was_cut(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        writer.send(b"timer", topic=TIMER_TOPIC)
        writer.write()
        timer = store.log.end
        writer.send(b"other")
        writer.write()
        end = store.log.end
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "config").mkdir()
    names = ("timerwheel", "config/timercheck", "timerlog/00")
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert end > timer
    assert cut(tmp_path, timer).notes == []
    assert all((tmp_path / name).exists() for name in names)
    assert "timer files were removed" in cut(tmp_path, 0).notes[0]
    assert not any((tmp_path / name).exists() for name in names)


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "sync_folder", "remove", "rename", "zero"])
def test_a_cut_that_fails_can_be_given_again(tmp_path: Path, operation: str) -> None:
    places, expected = written(tmp_path / "store", "twin")
    Snapshots(tmp_path / "store" / "config").save("table.json", {}, places[-1])
    for skip in range(30):
        root = tmp_path / str(skip)
        shutil.copytree(tmp_path / "store", root)
        files = FaultyFiles()
        files.fail(operation, skip=skip, times=1)
        try:
            cut(root, places[40], files=files)
        except OSError:
            done = cut(root, places[40])
            assert done.log_offset == places[40]
        else:
            break
        with opened(config(root)) as store:
            writer = Writer(store)
            writer.expected = expected[40]
            check(store, writer)
            assert store.log.end == places[40]
    assert skip > 0, "the disk never failed"

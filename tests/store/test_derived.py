"""Files behind the log: sweeps, what the position promises, and what happens when a promise cannot be believed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kappamq.store import derived
from kappamq.store.files import Files
from kappamq.store.position import Position
from tests.store.stores import Writer, bodies, check, config, kernels, opened

KERNELS = kernels()


def position(root: Path) -> Position:
    found, why = Position.load(root / "kappamq.position")
    assert found is not None, why
    return found


@pytest.mark.parametrize("kind", KERNELS)
def test_a_sweep_over_many_queues_ends_although_they_go_on_growing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "_QUEUES_PER_ROUND", 16)
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        seen = []
        for round_number in range(30):
            for queue_id in range(100):
                writer.send(b"%d" % round_number, queue_id=queue_id)
            writer.write()
            store.write_derived(store.collect())
            seen.append(position(tmp_path).dispatched)
        assert seen[-1] > seen[10] > 0, "the position moves"
    with opened(config(tmp_path), kind) as store:
        assert store.recovered.writer == "ours"
        assert not store.recovered.rebuilt
        assert store.recovered.scanned_from == seen[-1]
        check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_failed_round_comes_again_as_it_was(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        writer.send(b"one")
        writer.write()
        work = store.collect()
        assert work.entries
        assert store.collect() is work
        store.write_derived(work)
        assert not store.collect().entries


@pytest.mark.parametrize("kind", KERNELS)
def test_a_stale_checkpoint_after_a_power_cut_costs_nothing(tmp_path: Path, kind: str) -> None:
    """The checkpoint's page may be older than the position, and queue pages may be missing in between."""
    with opened(config(tmp_path), kind, clean=False) as store:
        old = b""
        writer = Writer(store)
        for number in range(200):
            writer.send(b"%d" % number)
            writer.write()
            if number % 50 == 49:
                work = store.collect()
                store.write_derived(work)
                store.sync_derived(work)
                old = old or (tmp_path / "checkpoint").read_bytes()
        writer.write_derived()
    (tmp_path / "checkpoint").write_bytes(old)
    hole = tmp_path / "consumequeue" / "t" / "0" / f"{64 * 20:020d}"
    data = bytearray(hole.read_bytes())
    data[10 * 20 : 30 * 20] = bytes(20 * 20)
    hole.write_bytes(data)
    with opened(config(tmp_path), kind, boot="another boot") as store:
        check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("lost", ["consumequeue/new", "consumequeue"])
def test_queue_files_lost_with_the_power_are_noticed(tmp_path: Path, kind: str, lost: str) -> None:
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        for number in range(100):
            writer.send(b"%d" % number, topic="new")
            writer.send(b"%d" % number, topic="old")
        writer.write()
        work = store.collect()
        store.write_derived(work)
        store.sync_derived(work)
        writer.send(b"late", topic="old")
        writer.write()
        writer.write_derived()
    shutil.rmtree(tmp_path / lost)
    with opened(config(tmp_path), kind, boot="another boot") as store:
        assert store.recovered.rebuilt
        check(store, writer)


def test_a_topic_deleted_just_before_a_crash_is_no_reason_to_rebuild(tmp_path: Path) -> None:
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        for number in range(50):
            writer.send(b"%d" % number)
            writer.send(b"%d" % number, topic="gone")
        writer.write()
        writer.write_derived()
        store.forget_topic("gone")
    with opened(config(tmp_path)) as store:
        assert not store.recovered.rebuilt
        assert len(bodies(store)) == 50


def test_files_behind_a_cut_go_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the middle of removing them must leave a log that opens."""
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        offsets = [writer.send(bytes(1000) + b"%d" % number) for number in range(400)]
        writer.write()
        assert len(list(store.log.segments())) > 4
    place = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(place.read_bytes())
    data[offsets[30] + 90] ^= 1
    place.write_bytes(data)
    files_before = sorted((tmp_path / "commitlog").iterdir())
    removed: list[Path] = []
    real = Files.remove

    def remove(self: Files, path: Path) -> None:
        if path.parent.name == "commitlog":
            removed.append(path)
        real(self, path)

    monkeypatch.setattr(Files, "remove", remove)
    with opened(config(tmp_path)) as store:
        assert len(bodies(store)) == 30, "nothing of this was flushed: the log ends at the first bad record"
    assert removed == sorted(files_before[1:], reverse=True)

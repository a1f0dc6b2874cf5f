"""Cutting a log: every cut is where a record begins, and all stretches together are the log."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kappamq import Message
from kappamq.protocol.records.entries import QUEUE_ENTRY
from kappamq.store.files import Files
from kappamq.store.log.stretches import Stretches
from kappamq.store.position import Position
from kappamq.store.reader import StoreReader
from kappamq.testing import BrokerKit


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stretches")
    sizes = {"mappedFileSizeCommitLog": 256 << 10, "maxMessageSize": 64 << 10}
    with BrokerKit(data=folder, properties=sizes) as broker, broker.producer() as producer:
        for first in range(0, 3000, 100):
            producer.send_batch([Message("tea", b"%d" % number) for number in range(first, first + 100)])
    return folder


@pytest.mark.parametrize("size", [1, 5000, 100_000, 1 << 30])
def test_cuts_lie_between_records(store: Path, size: int) -> None:
    with StoreReader(store) as reader:
        begins = {record.log_offset for record in reader.read_log()} | set(reader.log.starts)
        stretches = Stretches(reader)
        end = stretches.end()
        found = stretches.cut(end, size)
        assert (found[0].start, found[-1].stop) == (0, end)
        assert all(earlier.stop == later.start for earlier, later in pairwise(found))
        assert {stretch.start for stretch in found} <= begins
        assert len(found) == 1 if size == 1 << 30 else len(found) > 2


def test_the_end_is_where_the_last_record_ends(store: Path) -> None:
    with StoreReader(store) as reader:
        assert Stretches(reader).end() == reader.log.end()
        (store / "kappamq.position").rename(store / "aside")
        try:
            assert Stretches(reader).end() == reader.log.end(), "a Java store: a scan proves it"
        finally:
            (store / "aside").rename(store / "kappamq.position")


def test_a_store_without_a_checkpoint_yet_is_not_searched(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new broker writes its position long before its first checkpoint."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "checkpoint").unlink()
    position, _why = Position.load(copy / "kappamq.position")
    assert position is not None
    replace(position, checkpoint=bytes(40), checkpoint_before=bytes(40)).save(copy / "kappamq.position")
    searched: list[int] = []
    with StoreReader(copy) as reader:
        monkeypatch.setattr(reader.log, "next_good", searched.append)
        assert Stretches(reader).end() == position.dispatched
    assert not searched


def test_boundaries_behind_an_offset(store: Path) -> None:
    with StoreReader(store) as reader:
        begins = sorted(record.log_offset for record in reader.read_log() if record.topic == "tea")
        stretches = Stretches(reader)
        for place in range(10, len(begins), 97):
            assert stretches.next_boundary(begins[place]) == begins[place]
            nearest = stretches.next_boundary(begins[place - 1] + 1)
            assert nearest is not None
            assert begins[place - 1] < nearest <= begins[place]
        assert stretches.next_boundary(1 << 50) is None


@pytest.fixture
def java(store: Path, tmp_path: Path) -> Path:
    """A copy without our position, as a Java broker leaves it."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "kappamq.position").unlink()
    return copy


def spoil(root: Path, log_offset: int, data: bytes) -> None:
    start = log_offset - log_offset % (256 << 10)
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(log_offset - start)
        file.write(data)


@pytest.mark.parametrize("data", [b"\xff" * 30, bytes(5000)], ids=["garbage", "zeros"])
@pytest.mark.parametrize("witness", ["queues", "checkpoint"])
def test_damage_is_not_the_end_of_a_java_store(java: Path, data: bytes, witness: str) -> None:
    with StoreReader(java) as reader:
        end = reader.log.end()
        begins = [record.log_offset for record in reader.read_log()]
    last_file = [offset for offset in begins if offset // (256 << 10) == begins[-1] // (256 << 10)]
    shutil.rmtree(java / "consumequeue") if witness == "checkpoint" else (java / "checkpoint").unlink()
    for place in (len(last_file) // 2, len(last_file) // 4):
        spoil(java, last_file[place], data)
    with StoreReader(java) as reader:
        assert reader.log.end() < end
        assert Stretches(reader).end() == end


def test_what_no_queue_and_no_checkpoint_knows_is_not_read_behind_damage(java: Path) -> None:
    """A Java broker leaves old records behind the end to which it has cut its log."""
    with StoreReader(java) as reader:
        begins = [record.log_offset for record in reader.read_log()]
    shutil.rmtree(java / "consumequeue")
    (java / "checkpoint").unlink()
    spoil(java, begins[-10], b"\xff" * 30)
    with StoreReader(java) as reader:
        assert Stretches(reader).end() <= begins[-10]


def test_a_torn_end_is_an_end(java: Path) -> None:
    with StoreReader(java) as reader:
        last = max(record.log_offset for record in reader.read_log())
    spoil(java, last, b"\xff" * 30)
    with StoreReader(java) as reader:
        assert Stretches(reader).end() == last


def test_damage_in_what_was_flushed_is_not_the_end_of_our_own_store(store: Path, tmp_path: Path) -> None:
    """Behind the position that queues have reached, a stopped or crashed broker may have flushed more."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    with StoreReader(copy) as reader:
        end = reader.log.end()
        begins = [record.log_offset for record in reader.read_log()]
    path = copy / "kappamq.position"
    position, _why = Position.load(path, Files())
    assert position is not None
    assert position.flushed == end
    replace(position, dispatched=begins[-30]).save(path, Files())
    spoil(copy, begins[-10], b"\xff" * 30)
    with StoreReader(copy) as reader:
        assert Stretches(reader).end() == end


# --- queue entries that are damaged while the log is not ------------------------------------------------------------------


@pytest.fixture
def one_queue(tmp_path: Path) -> Path:
    """One queue, so that no other knows a boundary."""
    with BrokerKit(data=tmp_path / "data") as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=1)
        with broker.producer() as producer:
            producer.send_batch([Message("tea", b"%d" % number) for number in range(200)])
    return tmp_path / "data"


def spoil_entry(root: Path, number: int, flipped: int) -> None:
    path = root / "consumequeue" / "tea" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at, size, code = QUEUE_ENTRY.unpack_from(data, number * QUEUE_ENTRY.size)
    QUEUE_ENTRY.pack_into(data, number * QUEUE_ENTRY.size, at ^ flipped, size, code)
    path.write_bytes(data)


def tea_offsets(root: Path) -> list[int]:
    with StoreReader(root) as reader:
        return [record.log_offset for record in reader.read_log() if record.topic == "tea"]


@pytest.mark.parametrize("flipped", [1 << bit for bit in (0, 5, 8, 12, 13, 14, 40, 62)])
def test_an_entry_that_the_log_does_not_confirm_is_no_boundary(one_queue: Path, flipped: int) -> None:
    """Whichever entry is wrong, and to which side: the boundary is where a record begins, and the nearest but for that entry."""
    begins = tea_offsets(one_queue)
    for number in (0, 50, 99, 100, 101, 150, 199):
        spoil_entry(one_queue, number, flipped)
        with StoreReader(one_queue) as reader:
            stretches = Stretches(reader)
            for wanted in (1, 49, 50, 51, 99, 100, 101, 102, 149, 150, 198):
                nearest = wanted + 1 if wanted == number else wanted
                assert stretches.next_boundary(begins[wanted]) == begins[nearest], (number, wanted)
            assert {stretch.start for stretch in stretches.cut(stretches.end(), 2000)} <= {0, *begins}
        spoil_entry(one_queue, number, flipped)


def test_an_entry_below_the_log_hides_boundaries_and_invents_none(one_queue: Path) -> None:
    """The queue seems to begin behind it."""
    begins = tea_offsets(one_queue)
    spoil_entry(one_queue, 100, -(1 << 63))
    with StoreReader(one_queue) as reader:
        stretches = Stretches(reader)
        assert {stretches.next_boundary(at) for at in begins[:-1]} <= set(begins)


def test_behind_a_long_damage_of_the_log_the_first_record_is_found(one_queue: Path) -> None:
    """More entries lead into it than are passed over elsewhere: what lies behind must not be lost with it."""
    begins = tea_offsets(one_queue)
    with (one_queue / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(begins[20])
        file.write(bytes(begins[120] - begins[20]))
    with StoreReader(one_queue) as reader:
        assert Stretches(reader).next_boundary(begins[20] + 1) == begins[120]


def test_a_record_whose_size_cannot_be_is_no_boundary(one_queue: Path) -> None:
    begins = tea_offsets(one_queue)
    with (one_queue / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(begins[30])
        file.write(b"\x7f")
    with StoreReader(one_queue) as reader:
        assert Stretches(reader).next_boundary(begins[30]) == begins[31]

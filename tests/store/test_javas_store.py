"""Two small stores that Apache RocketMQ 5.3.3 wrote: one killed with -9, the other started on it and stopped in good order.

300 messages `body <n> x...` in golden0/1 and golden1/0 in turn, tag<n % 5>, keys k<n> and even<n % 2>, and a batch of ten
in golden_batch/1. Log files of 64 KiB, 100 entries to a queue file, index files of 100 slots and 200 entries.
(tests/interop asks a living one; this needs no Java.)
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from kappamq import native
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.store.index.index_file import IndexFiles
from kappamq.store.log.log_reader import Found
from kappamq.store.reader import QueueRange, StoreReader
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.verify import verify
from tests.store.stores import config, kernels, make

SLOTS, ENTRIES = 100, 200
FOREVER = 1 << 62
ENDS = ["killed", "stopped"]


@pytest.fixture(scope="module", params=ENDS)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param) / request.param
    with tarfile.open(Path(__file__).parent / "data" / f"java-5.3.3-{request.param}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return Path(place)


def reader_of(root: Path) -> StoreReader:
    return StoreReader(root, index_slots=SLOTS, index_entries=ENTRIES)


def place_of(number: int) -> tuple[str, int]:
    return f"golden{number % 2}", 1 - number % 2


def test_everything_fits_together(root: Path) -> None:
    report = verify(root, index_slots=SLOTS, index_entries=ENTRIES)
    assert report.problems == []
    assert (report.records, report.queue_entries, report.undispatched, report.unindexed) == (310, 310, 0, 0)
    assert report.index_files == 5


def test_every_message_is_read(root: Path) -> None:
    with reader_of(root) as reader:
        assert reader.queues() == [
            QueueRange("golden0", 1, 0, 150), QueueRange("golden1", 0, 0, 150), QueueRange("golden_batch", 1, 0, 10),
        ]  # fmt: skip
        for parity in (0, 1):
            found = list(reader.read(*place_of(parity)))
            assert [record.body for record in found] == [
                b"body %d " % n + b"x" * (n % 100) for n in range(parity, 300, 2)
            ]
            assert [record.to_message().tags for record in found] == [f"tag{n % 5}" for n in range(parity, 300, 2)]
        assert [record.body for record in reader.read("golden_batch", 1)] == [b"batch %d" % n for n in range(10)]
        assert len(list(reader.read_log())) == 310


def test_every_key_and_id_is_found(root: Path) -> None:
    with reader_of(root) as reader:
        for number in range(300):
            (record,) = reader.by_key(place_of(number)[0], f"k{number}")
            assert record.body.startswith(b"body %d " % number)
            again = reader.by_id(record.offset_id)
            assert again is not None
            assert again.body == record.body
        evens = reader.by_key("golden0", "even0", count_max=64)
        assert [record.body.split()[1] for record in evens] == [b"%d" % number for number in range(172, 300, 2)]


@pytest.mark.parametrize("kind", kernels())
def test_an_index_built_from_the_log_has_the_same_bytes(root: Path, tmp_path: Path, kind: str) -> None:
    store = make(config(tmp_path / "none", segment_bytes=64 << 10), kind)
    index = IndexFiles(tmp_path / "index", SLOTS, ENTRIES, Files(), index_apply=store.kernel_module.index_apply)
    with reader_of(root) as reader:
        for item in reader.log.scan():
            assert isinstance(item, Found)
            store.kernel.dispatch(reader.log.read(item.offset, item.size), item.offset)
    index.apply(store.kernel.take_index())
    index.flush()
    index.close()
    ours = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    javas = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    if root.name == "killed":
        assert ours == javas
    else:
        # Started after the kill, Java entered the last record of the file before once more.
        assert ours[:-1] == javas[:-1]
        assert ours[-1] != javas[-1]


def test_the_index_goes_on_where_java_left_it(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "index", tmp_path / "index")
    index = IndexFiles(tmp_path / "index", SLOTS, ENTRIES, Files(), index_apply=native.load().index_apply)
    index.load(FOREVER)
    with reader_of(root) as reader:
        last = max(record.log_offset for record in reader.read_log())
        assert index.indexed_to == last + 1
        for number in range(300):
            (offset,) = index.query(place_of(number)[0], f"k{number}", 64, 0, FOREVER)
            record = reader.at(offset)
            assert record is not None
            assert record.body.startswith(b"body %d " % number)
    index.close()


def test_the_checkpoint(root: Path) -> None:
    checkpoint = Checkpoint.load(root / "checkpoint")
    assert Checkpoint.decode((root / "checkpoint").read_bytes()).encode() == (root / "checkpoint").read_bytes()[:40]
    with reader_of(root) as reader:
        times = [record.stored_ms for record in reader.read_log()]
        assert checkpoint.logics_ms == times[-1]
        assert checkpoint.index_ms == reader.index_infos()[3].end_ms  # of the last full file
    assert 0 < checkpoint.min_timestamp() < times[-1]
    assert (root / "abort").exists() == (root.name == "killed")


def test_settings(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "config", tmp_path / "config")
    settings = Snapshots(tmp_path / "config")
    topics = settings.load("topics.json")
    assert topics is not None
    assert (topics.log_offset, topics.note) == (None, "")
    assert topics.table["topicConfigTable"]["golden0"]["writeQueueNums"] == 2
    delays = settings.load("delayOffset.json")
    assert delays is not None
    assert "offsetTable" in delays.table
    assert settings.notes == []
    # Ours on top of it, then Java's is the one to fall back to.
    settings.save("topics.json", topics.table, 77)
    again = Snapshots(tmp_path / "config").load("topics.json")
    assert again is not None
    assert (again.table, again.log_offset) == (topics.table, 77)

from __future__ import annotations

import os
import shutil
from itertools import chain
from pathlib import Path

import pytest

from kappamq.errors import StoreDamaged, StoreError, StoreFormatError
from kappamq.protocol.records.entries import QUEUE_ENTRY
from kappamq.store.files import Files
from kappamq.store.queues.queues import QueueFiles
from kappamq.store.reader import QueueRange, StoreReader
from tests.store.stores import START_MS, Writer, config, drop_oldest, opened


def small(root: Path) -> StoreReader:
    """A reader that knows the sizes of tests.store.stores.config."""
    return StoreReader(root, index_slots=97, index_entries=1000)


def fill(writer: Writer, count: int = 400) -> None:
    for number in range(count):
        texts = b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d even%d" % (number, number, number % 2)
        writer.send(b"m%d" % number + b"." * (number % 300), queue_id=number % 3, properties=texts)
        if number % 50 == 0:
            writer.batch([b"b%d.%d" % (number, member) for member in range(3)], topic="b")
        if number % 10 == 0:
            writer.write()
    writer.write()


def make_store(root: Path) -> dict[tuple[str, int], list[bytes]]:
    with opened(config(root)) as store:
        writer = Writer(store)
        fill(writer)
    return writer.expected


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, int], list[bytes]]]:
    root = tmp_path_factory.mktemp("store")
    return root, make_store(root)


def all_bodies(reader: StoreReader, topic: str, queue_id: int) -> list[bytes]:
    return [record.body for record in reader.read(topic, queue_id)]


def state(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*")) if path.is_file()
    }


class TestStopped:
    def test_queues(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        root, expected = made
        with StoreReader(root) as reader:
            assert reader.topics() == ["b", "t"]
            assert reader.queues() == [
                QueueRange(topic, queue_id, 0, len(bodies)) for (topic, queue_id), bodies in sorted(expected.items())
            ]
            assert [found.queue_id for found in reader.queues("t")] == [0, 1, 2]
            assert reader.queue("t", 9) == QueueRange("t", 9, 0, 0)
            assert reader.queue("../commitlog", 0).count == 0

    def test_every_message(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        root, expected = made
        with StoreReader(root) as reader:
            for (topic, queue_id), bodies in expected.items():
                assert all_bodies(reader, topic, queue_id) == bodies
                assert [record.body for record in reader.read(topic, queue_id, 5, 9)] == bodies[5:9]
            assert list(reader.read("t", 0, 10**9)) == []
            assert list(reader.read("unknown", 0)) == []

    def test_the_log(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        root, expected = made
        with StoreReader(root) as reader:
            found = list(reader.read_log())
            assert sorted(record.body for record in found) == sorted(chain(*expected.values()))
            assert [record.log_offset for record in found] == sorted(record.log_offset for record in found)
            part = list(reader.read_log(found[7].log_offset, found[11].log_offset))
            assert [record.body for record in part] == [record.body for record in found[7:11]]
            assert reader.log.end() == found[-1].log_offset + found[-1].size
            assert reader.log.end(found[3].log_offset) == reader.log.end()

    def test_by_id(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        with small(made[0]) as reader:
            record = next(reader.read("t", 1, 7))
            for text in (record.offset_id, record.offset_id.lower()):
                found = reader.by_id(text)
                assert found is not None
                assert found.body == record.body
            for text in ("nonsense", record.offset_id[:-2] + "01", "FF" * 16, ""):
                assert reader.by_id(text) is None
            unique = record.property_map()["UNIQ_KEY"]
            assert reader.by_id(unique) is None
            found = reader.by_id(unique, "t")
            assert found is not None
            assert found.body == record.body

    def test_by_key(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        with small(made[0]) as reader:
            assert len(reader.index_infos()) == 2
            assert sum(found.entries for found in reader.index_infos()) == 1200
            for number in (0, 7, 399):
                assert [record.body[: 1 + len(str(number))] for record in reader.by_key("t", f"k{number}")] == [
                    b"m%d" % number
                ]
            assert reader.by_key("b", "k7") == []
            newest = reader.by_key("t", "even1", count_max=5)
            assert [record.property_map()["UNIQ_KEY"] for record in newest] == ["U391", "U393", "U395", "U397", "U399"]
            middle = newest[0].stored_ms
            assert {record.stored_ms for record in reader.by_key("t", "even1", begin_ms=middle, end_ms=middle)} == {
                middle
            }

    def test_by_key_with_other_sizes_says_so(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        with StoreReader(made[0]) as reader, pytest.raises(StoreFormatError, match="maxHashSlotNum"):
            reader.by_key("t", "k1")

    def test_by_time(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        with StoreReader(made[0]) as reader:
            times = [record.stored_ms for record in reader.read("t", 2)]
            for ms in (0, START_MS, times[0], times[3] - 1, times[3], times[3] + 1, times[-1], times[-1] + 1):
                expected = next((number for number, stored in enumerate(times) if stored >= ms), len(times))
                assert reader.offset_at("t", 2, ms) == expected

    def test_nothing_is_touched(self, made: tuple[Path, dict[tuple[str, int], list[bytes]]]) -> None:
        root, _expected = made
        before, descriptors = state(root), len(os.listdir("/proc/self/fd"))
        with small(root) as reader:
            reader.queues()
            list(reader.read_log())
            list(reader.read("t", 0))
            reader.by_key("t", "k1")
            reader.index_infos()
        assert state(root) == before
        assert len(os.listdir("/proc/self/fd")) <= descriptors


class TestRunning:
    def test_a_store_that_grows(self, tmp_path: Path) -> None:
        with opened(config(tmp_path)) as store:
            assert not store.catching_up()  # from now on keys are indexed as they come
            writer = Writer(store)
            fill(writer, 50)
            with small(tmp_path) as reader:
                assert reader.topics() == []
                assert sum(1 for _ in reader.read_log()) == 53
                writer.write_derived()
                assert reader.topics() == ["b", "t"]
                assert all_bodies(reader, "t", 0) == writer.expected["t", 0]
                # Keys are found though their slots are still in the broker's memory.
                assert [record.body for record in reader.by_key("t", "k30")] == [writer.expected["t", 0][10]]
                store.index.flush()
                fill(writer, 30)
                writer.write_derived()
                assert [len(record.body) for record in reader.by_key("t", "k29")] == [32, 32]
                assert all_bodies(reader, "t", 0) == writer.expected["t", 0]
                fill(writer, 300)
                writer.write_derived()
                for (topic, queue_id), bodies in writer.expected.items():
                    assert all_bodies(reader, topic, queue_id) == bodies

    def test_files_that_go(self, tmp_path: Path) -> None:
        with opened(config(tmp_path)) as store:
            writer = Writer(store)
            fill(writer, 1200)
            writer.write_derived()
            with StoreReader(tmp_path) as reader:
                reading = reader.read("t", 0)
                first = next(reading)
                drop_oldest(store, 2)
                rest = list(reading)
                gone = store.log.min
                assert [record.body for record in rest[-3:]] == writer.expected["t", 0][-3:]
                assert {record.log_offset for record in rest if record.log_offset >= gone} == {
                    record.log_offset for record in reader.read("t", 0)
                }
                low = reader.queue("t", 0).min
                assert low > first.queue_offset
                assert all_bodies(reader, "t", 0) == writer.expected["t", 0][low:]


class TestDamaged:
    def test_a_record_that_is_not_what_it_was(self, tmp_path: Path) -> None:
        make_store(tmp_path)
        with StoreReader(tmp_path) as reader:
            record = next(reader.read("t", 1, 20))
        path = tmp_path / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(record.log_offset + 89)
            file.write(b"XX")
        with StoreReader(tmp_path) as reader:
            with pytest.raises(StoreDamaged, match=rf"message 20 of t/1 should lie at {record.log_offset}"):
                list(reader.read("t", 1))
            left = [found.queue_offset for found in reader.read("t", 1, skip_damage=True)]
            assert left == [number for number in range(reader.queue("t", 1).max) if number != 20]
            with pytest.raises(StoreDamaged, match=f"bytes {record.log_offset} to"):
                list(reader.read_log())
            assert record.log_offset not in {found.log_offset for found in reader.read_log(skip_damage=True)}
            assert reader.by_id(record.offset_id) is None

    def test_an_entry_that_points_to_somebody_elses_record(self, tmp_path: Path) -> None:
        make_store(tmp_path)
        files = Files()
        folder = tmp_path / "consumequeue" / "t"
        other = (folder / "1" / f"{0:020d}").read_bytes()[:20]
        fd = files.open(folder / "0" / f"{0:020d}")
        files.pwrite(fd, other, 0)
        files.close(fd)
        with StoreReader(tmp_path) as reader, pytest.raises(StoreDamaged, match="it holds message 0 of t/1"):
            list(reader.read("t", 0))


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory"):
        StoreReader(tmp_path)


def test_queue_file_of_an_odd_size(tmp_path: Path) -> None:
    make_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "consumequeue" / "t" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").write_bytes(bytes(33))
    with StoreReader(tmp_path) as reader, pytest.raises(StoreFormatError, match="33 bytes"):
        reader.topics()


def test_without_queue_files_the_log_is_there(tmp_path: Path) -> None:
    expected = make_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    with StoreReader(tmp_path) as reader:
        assert reader.topics() == []
        assert reader.by_key("t", "k1") == []
        assert sum(1 for _ in reader.read_log()) == sum(map(len, expected.values()))


def test_a_queue_file_that_retention_takes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    class Racing(Files):
        def list(self, folder: Path | str) -> list[str]:
            names = super().list(folder)
            if str(folder).endswith("consumequeue/t/0") and len(names) > 1:
                (Path(folder) / names[0]).unlink()  # between the look at the folder and the look at the file
            return names

    queues = QueueFiles(tmp_path / "consumequeue", 16, 16, Files())
    queues.write("t", 0, 0, b"".join(QUEUE_ENTRY.pack(100 * n, 100, 0) for n in range(40)), 0)
    queues.close()
    (tmp_path / "commitlog").mkdir()
    with StoreReader(tmp_path, files=Racing()) as reader:
        (found,) = reader.queues()
    assert found.max == 40
    assert found.min >= 16

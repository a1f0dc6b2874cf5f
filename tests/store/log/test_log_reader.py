from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import StoreFormatError
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Fault, Record, RecordError, blank
from kappamq.store.files import Files
from kappamq.store.log.log_reader import Damage, Found, LogReader

SEGMENT = 4096


class Log:
    """A log laid out by hand: records at their offsets, files closed with end marks."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self.folder = folder
        self.end = first
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        folder.mkdir(exist_ok=True)

    def put(self, data: bytes, at: int) -> None:
        path = self.folder / f"{at - at % SEGMENT:020d}"
        if not path.exists():
            path.write_bytes(bytes(SEGMENT))
        with path.open("r+b") as file:
            file.seek(at % SEGMENT)
            file.write(data)

    def add(self, body: bytes, texts: str = "", tail_crc: bool = True) -> int:
        record = Record(topic="t", body=body, properties=texts, queue_offset=len(self.offsets), tail_crc=tail_crc)
        room = SEGMENT - self.end % SEGMENT
        if record.size + 8 > room:
            self.put(blank(room), self.end)
            self.end += room
        record.log_offset = offset = self.end
        self.put(record.encode(), offset)
        self.end += record.size
        self.offsets.append(offset)
        self.bodies.append(body)
        return offset

    def batch(self, bodies: list[bytes]) -> list[int]:
        first = properties.encode({properties.BATCH_BYTES: properties.batch_bytes(0)})
        total = sum(
            Record(topic="t", body=body, properties=first if number == 0 else "", tail_crc=True).size
            for number, body in enumerate(bodies)
        )
        first = properties.encode({properties.BATCH_BYTES: properties.batch_bytes(total)})
        return [self.add(body, first if number == 0 else "") for number, body in enumerate(bodies)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "commitlog")


def scanned(log: Log, *args: int, thorough: bool = False) -> list[bytes | tuple[int, int, bool]]:
    """Bodies of records, (start, stop, tail) of damage."""
    reader = LogReader(log.folder)
    found = list(reader.scan(*args, thorough=thorough))
    reader.close()
    return [item.record.body if isinstance(item, Found) else (item.start, item.stop, item.tail) for item in found]


def fill(log: Log, count: int = 60) -> None:
    for number in range(count):
        log.add(b"%d" % number + b"x" * (number * 13 % 200))


def test_nothing_there(tmp_path: Path) -> None:
    reader = LogReader(tmp_path / "commitlog")
    assert list(reader.scan()) == []
    assert (reader.min, reader.limit, reader.starts, reader.segment_bytes) == (0, 0, [], 0)
    assert reader.read(0, 10) == b""
    with pytest.raises(RecordError):
        reader.record(0)


def test_every_record_over_several_files(log: Log) -> None:
    fill(log)
    reader = LogReader(log.folder)
    found = list(reader.scan())
    assert [item.offset for item in found if isinstance(item, Found)] == log.offsets
    assert len(reader.starts) > 2
    assert (reader.min, reader.limit) == (0, reader.starts[-1] + SEGMENT)
    assert scanned(log) == log.bodies
    reader.close()


def test_a_range(log: Log) -> None:
    fill(log)
    assert scanned(log, log.offsets[5], log.offsets[9]) == log.bodies[5:9]
    assert scanned(log, log.offsets[5], log.offsets[9] + 1) == log.bodies[5:10]
    assert scanned(log, log.end) == []


def test_files_made_ahead(log: Log) -> None:
    fill(log)
    for number in (1, 2):
        (log.folder / f"{log.end - log.end % SEGMENT + number * SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    assert scanned(log) == log.bodies
    assert scanned(log, thorough=True) == log.bodies


def test_an_empty_last_file_is_being_made(log: Log) -> None:
    fill(log)
    (log.folder / f"{log.end - log.end % SEGMENT + SEGMENT:020d}").write_bytes(b"")
    assert scanned(log) == log.bodies


def test_a_log_whose_beginning_was_deleted(log: Log) -> None:
    fill(log)
    (log.folder / f"{0:020d}").unlink()
    expected = [body for body, offset in zip(log.bodies, log.offsets, strict=True) if offset >= SEGMENT]
    assert scanned(log) == expected
    assert scanned(log, 0) == expected


def test_a_file_deleted_while_reading(log: Log) -> None:
    fill(log)
    reader = LogReader(log.folder)
    seen = []
    for item in reader.scan():
        assert isinstance(item, Found)
        seen.append(item.offset)
        if len(seen) == 1:
            for start in reader.starts[:2]:
                (log.folder / f"{start:020d}").unlink()
    # What was open or in memory may still be read; then it goes on with the first file that is left.
    assert seen == [offset for offset in log.offsets if offset < SEGMENT or offset >= 2 * SEGMENT]
    reader.close()


def test_records_longer_than_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.store.log.log_reader._WINDOW_BYTES", 600)
    monkeypatch.setattr("kappamq.store.log.log_reader._FIRST_READ_BYTES", 100)
    log = Log(tmp_path / "commitlog")
    for number in range(40):
        log.add(bytes([number]) * (number * 97 % 2000))
    assert scanned(log) == log.bodies


@pytest.mark.parametrize("number", [0, 7, 30])
@pytest.mark.parametrize("at", [1, 4, 10, 17, 30, 88])
def test_damage_in_the_middle(log: Log, number: int, at: int) -> None:
    fill(log)
    offset = log.offsets[number]
    was = LogReader(log.folder).read(offset + at, 1)
    log.put(bytes([was[0] ^ 0x55]), offset + at)
    # Wherever the byte lies, the record is not given out, and the next one is.
    expected: list[object] = [*log.bodies[:number], (offset, log.offsets[number + 1], False), *log.bodies[number + 1 :]]
    assert scanned(log) == expected


@pytest.mark.parametrize("window", range(180, 300, 7))
def test_the_next_record_is_found_wherever_a_read_ends(log: Log, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(b"first")
    bad = log.add(b"y" * 700)
    after = log.add(b"after")
    log.put(b"z", bad + 88)
    monkeypatch.setattr("kappamq.store.log.log_reader._WINDOW_BYTES", window)
    assert scanned(log) == [b"first", (bad, after, False), b"after"]


def test_zeros_in_the_middle_of_a_file(log: Log) -> None:
    fill(log)
    start, stop = log.offsets[3], log.offsets[5]
    log.put(bytes(stop - start), start)
    # Without looking at all of the file, zeros end it; records of later files show that the log goes on.
    later = next(number for number, offset in enumerate(log.offsets) if offset >= SEGMENT)
    assert scanned(log) == [*log.bodies[:3], (start, log.offsets[later], False), *log.bodies[later:]]
    assert scanned(log, thorough=True) == [*log.bodies[:3], (start, stop, False), *log.bodies[5:]]


def test_a_missing_file_in_the_middle(log: Log) -> None:
    fill(log)
    (log.folder / f"{SEGMENT:020d}").unlink()
    reader = LogReader(log.folder)
    damage = [item for item in reader.scan() if isinstance(item, Damage)]
    reader.close()
    assert damage == [Damage(SEGMENT, 2 * SEGMENT, "a file is missing")]


def test_a_record_in_the_wrong_place(log: Log) -> None:
    log.add(b"first")
    offset = log.add(b"second")
    record = Record(topic="t", body=b"second", queue_offset=1, log_offset=offset + 1, tail_crc=True)
    log.put(record.encode(), offset)
    reader = LogReader(log.folder)
    with pytest.raises(RecordError, match=f"it contains the log offset {offset + 1}") as caught:
        reader.record(offset)
    assert (caught.value.fault, caught.value.position) == (Fault.FIELDS, offset)
    reader.close()
    assert scanned(log) == [b"first", (offset, offset, True)]


@given(st.integers(0, 400))
def test_a_torn_tail(tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    log = Log(tmp_path_factory.mktemp("torn"))
    log.add(b"first")
    offset = log.add(b"second" * 40)
    kept = min(kept, log.end - offset - 1)
    log.put(bytes(log.end - offset - kept), offset + kept)
    (log.folder / f"{SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    for thorough in (False, True):
        found = scanned(log, thorough=thorough)
        assert found[0] == b"first"
        # A few zeros at the front are no trace of a record.
        assert found[1:] in ([], [(offset, offset, True)])
        assert kept < 3 or len(found) == 2


def test_a_batch_counts_as_a_whole(log: Log) -> None:
    log.add(b"before")
    members = log.batch([b"m%d" % number for number in range(4)])
    assert scanned(log) == [b"before", b"m0", b"m1", b"m2", b"m3"]
    assert scanned(log, 0, members[2]) == [b"before", b"m0", b"m1", b"m2", b"m3"]
    log.put(bytes(log.end - members[3]), members[3])
    assert scanned(log) == [b"before", (members[0], members[3], True)]
    log.end = members[3]
    after = log.add(b"after")
    log.put(b"\1", members[2] + 88)
    assert scanned(log) == [b"before", (members[0], after, False), b"after"]


def test_the_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.store.log.log_reader._SCAN_BYTES", 150)  # shorter than most records
    assert LogReader(log.folder).end() == 0
    fill(log)
    (log.folder / f"{log.end - log.end % SEGMENT + SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    reader = LogReader(log.folder)
    assert reader.end() == log.end
    for start in (0, log.offsets[5], log.end, -1, 1 << 40):
        assert reader.end(start) == log.end
    log.batch([b"member"] * 3)
    assert reader.end() == log.end
    log.put(b"\1", log.offsets[-1] + 88)
    assert reader.end() == log.offsets[-3]
    reader.close()


def test_records_at_given_places(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.store.log.log_reader._GAP_BYTES", 300)
    monkeypatch.setattr("kappamq.store.log.log_reader._WINDOW_BYTES", 1000)
    fill(log)
    sizes = [Record(topic="t", body=body, tail_crc=True).size for body in log.bodies]
    wanted = [number for number in range(60) if number % 7 in (0, 1, 5)]
    places = [(log.offsets[number], sizes[number]) for number in wanted]
    reads = 0

    class Counting(Files):
        def pread(self, fd: int, count: int, at: int) -> bytes:
            nonlocal reads
            reads += 1
            return super().pread(fd, count, at)

    reader = LogReader(log.folder, Counting())
    found = [item.record.body for _offset, item in reader.records_at(places) if isinstance(item, Found)]
    assert found == [log.bodies[number] for number in wanted]
    assert reads < len(wanted)
    wrong = [
        (log.offsets[3], sizes[3] - 1),
        (log.offsets[4] + 1, 50),
        (log.end, 90),
        (1 << 40, 90),
        (log.offsets[5], -1),
    ]
    results = [isinstance(item, Found) for _offset, item in reader.records_at(wrong)]
    assert results == [True, False, False, False, False]  # a size too small costs a read, not the record
    assert list(reader.records_at([])) == []
    reader.close()


def test_a_writer_at_work(log: Log) -> None:
    """Bytes that come between two reads are seen, and a record half written is no damage."""
    log.add(b"first")
    second = log.add(b"second")
    whole = LogReader(log.folder).read(second, log.end - second)
    log.put(bytes(len(whole) - 50), second + 50)

    class Late(Files):
        reads = 0

        def pread(self, fd: int, count: int, at: int) -> bytes:
            self.reads += 1
            if self.reads == 4:  # after the scan has found half a record
                log.put(whole, second)
                log.add(b"third")
            return super().pread(fd, count, at)

    reader = LogReader(log.folder, Late())
    assert [item.record.body if isinstance(item, Found) else item for item in reader.scan()] == [
        b"first", b"second", b"third",
    ]  # fmt: skip
    log.add(b"fourth")
    assert len(list(reader.scan())) == 4
    reader.close()


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("notes.txt", 5, "is not a log file"),
        (f"{77:020d}", SEGMENT, "not a multiple"),
    ],
)
def test_foreign_files(log: Log, name: str, size: int, why: str) -> None:
    log.add(b"first")
    (log.folder / name).write_bytes(bytes(size))
    with pytest.raises(StoreFormatError, match=why):
        LogReader(log.folder)


def test_descriptors_are_bounded_and_given_back(log: Log) -> None:
    fill(log, 700)
    before = len(os.listdir("/proc/self/fd"))
    reader = LogReader(log.folder)
    assert len(reader.starts) > 20
    assert sum(1 for _ in reader.scan()) == 700
    assert len(os.listdir("/proc/self/fd")) <= before + 16
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=40)), max_size=4))
def test_whatever_is_overwritten_only_whole_truth_comes_out(
    tmp_path_factory: pytest.TempPathFactory, scars: list[tuple[int, bytes]]
) -> None:
    log = Log(tmp_path_factory.mktemp("scars"))
    fill(log, 50)
    touched: set[int] = set()
    for at, data in scars:
        at = min(at, log.end - 1)
        data = data[: SEGMENT - at % SEGMENT]
        if LogReader(log.folder).read(at, len(data)) != data:
            log.put(data, at)
            touched |= set(range(at, at + len(data)))
    reader = LogReader(log.folder)
    items = list(reader.scan(thorough=True))
    reader.close()
    good = {item.offset: item.record.body for item in items if isinstance(item, Found)}
    assert good.items() <= dict(zip(log.offsets, log.bodies, strict=True)).items()
    ends = [*log.offsets[1:], log.end]
    for number, (offset, end) in enumerate(zip(log.offsets, ends, strict=True)):
        if not touched & set(range(offset, end)):
            assert good[offset] == log.bodies[number]
    # What is reported lies one behind the other and covers what is missing.
    covered = sorted([(i.offset, i.offset + i.size) if isinstance(i, Found) else (i.start, i.stop) for i in items])
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(covered))

from __future__ import annotations

import errno
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kappamq.errors import StoreDamaged, StoreError
from kappamq.native.layout import BLANK_BYTES, MAGIC_BLANK
from kappamq.store.log.commit_log import CommitLog, file_name
from tests.store.faulty import FaultyFiles

SIZE = 4096


class BytesKernel:
    """As much of a kernel as a log needs: appended bytes, and who was told what."""

    def __init__(self) -> None:
        self.pending = b""
        self.at = 0
        self.end = 0
        self.mapped: dict[int, object] = {}
        self.log_min = 0

    def append(self, data: bytes) -> bool:
        if self.at + len(self.pending) + len(data) + BLANK_BYTES > self.end:
            return False
        self.pending += data
        return True

    def take(self) -> tuple[int, bytes]:
        start, data = self.at, self.pending
        self.at, self.pending = start + len(data), b""
        return start, data

    def map_segment(self, start: int, view: object) -> None:
        if view is None:
            self.mapped.pop(start, None)
        else:
            self.mapped[start] = view

    def open_segment(self, position: int, end: int) -> None:
        self.at, self.end = position, end


class Log(CommitLog):
    """A log with its own kernel and a disk that can fail."""

    def __init__(self, folder: Path) -> None:
        self.kernel, self.disk = BytesKernel(), FaultyFiles()
        super().__init__(folder, SIZE, self.disk, self.kernel)

    def put(self, data: bytes) -> int:
        """Append as the broker does: write, and roll when the file is full."""
        while not self.kernel.append(data):
            self.roll()
        return self.write()[0]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    made.load()
    made.open_end(0)
    yield made
    made.close()


def test_bytes_lie_where_the_kernel_said(log: Log) -> None:
    first, second = log.put(b"a" * 100), log.put(b"b" * 50)
    assert (first, second, log.end) == (0, 100, 150)
    assert bytes(log.slice(90, 20)) == b"a" * 10 + b"b" * 10
    assert bytes(log.slice(140, 100)) == b"b" * 10, "cut short at the log's end"
    assert bytes(log.slice(9 * SIZE, 10)) == b"", "and nothing where there is no file"
    assert log.write() == (150, b""), "nothing appended, nothing written"


def test_a_full_file_ends_with_its_mark(log: Log, tmp_path: Path) -> None:
    log.put(b"a" * 4000)
    log.put(b"b" * 200)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file_name(0), file_name(SIZE)]
    assert (tmp_path / file_name(0)).read_bytes()[4000:] == struct.pack(">ii", 96, MAGIC_BLANK) + bytes(88)
    assert (log.end, sorted(log.kernel.mapped)) == (SIZE + 200, [0, SIZE])


def test_the_next_file_is_made_ahead_once(log: Log) -> None:
    assert log.is_fresh
    assert not log.is_cramped
    log.put(b"a" * 3600)
    assert (log.is_fresh, log.is_cramped, log.next_is_ready) == (False, True, False)
    log.prepared(log.prepare())
    assert (log.is_cramped, log.next_is_ready) == (False, True)
    made = log.disk.count("allocate")
    log.put(b"b" * 600)
    assert log.disk.count("allocate") == made, "the prepared file was used"
    assert (log.next_is_ready, log.is_fresh, log.end) == (False, False, SIZE + 600)


def test_without_space_nothing_is_left_lying_about(log: Log, tmp_path: Path) -> None:
    log.put(b"a" * 4000)
    before = sorted(tmp_path.iterdir())
    log.disk.free_bytes = SIZE - 1
    with pytest.raises(OSError) as raised:
        log.roll()
    assert raised.value.errno == errno.ENOSPC
    assert log.disk.count("allocate") == 1, "not even tried: it would take the last bytes from others"
    log.disk.repair()
    for operation in ("open", "allocate", "sync", "map"):
        log.disk.fail(operation, on=file_name(SIZE), times=1)
        with pytest.raises(OSError):
            log.roll()
        assert sorted(tmp_path.iterdir()) == before, operation
    assert (log.end, log.damaged) == (4000, False)
    assert log.put(b"b" * 200) == SIZE, "and when there is space, it goes on"


def test_a_file_left_from_a_failed_attempt_is_made_anew(log: Log, tmp_path: Path) -> None:
    log.put(b"a" * 4000)
    (tmp_path / file_name(SIZE)).write_bytes(b"old bytes that must not come back")
    assert log.put(b"b" * 200) == SIZE
    assert (tmp_path / file_name(SIZE)).read_bytes() == b"b" * 200 + bytes(SIZE - 200)


@pytest.mark.parametrize("place", ["write", "mark"])
def test_a_failed_write_is_for_ever(log: Log, place: str) -> None:
    log.put(b"a" * 4000)
    log.prepared(log.prepare())
    log.disk.fail("pwrite")
    if place == "write":
        log.kernel.append(b"b" * 80)
        with pytest.raises(OSError):
            log.write()
    else:
        with pytest.raises(OSError):
            log.roll()
    assert log.damaged
    assert log.end == 4000, "what was written before can still be read"
    assert bytes(log.slice(3990, 100)) == b"a" * 10


def test_files_go_from_the_front_while_a_reader_holds_on(log: Log, tmp_path: Path) -> None:
    for letter in b"abcd":
        log.put(bytes([letter]) * 4000)
    held = log.slice(0, 4000)
    gone = log.detach(0)
    assert (log.min, log.kernel.log_min, 0 in log.kernel.mapped) == (SIZE, SIZE, False)
    assert bytes(log.slice(0, 10)) == b""
    log.discard(gone)
    assert not (tmp_path / file_name(0)).exists()
    assert bytes(held) == b"a" * 4000, "whoever was reading reads on"
    with pytest.raises(AssertionError, match="oldest file"):
        log.detach(2 * SIZE)
    log.discard(log.detach(SIZE))
    log.discard(log.detach(2 * SIZE))
    with pytest.raises(AssertionError, match="last file"):
        log.detach(3 * SIZE)


def test_no_later_file_goes_before_an_earlier_one(log: Log, tmp_path: Path) -> None:
    for letter in b"abc":
        log.put(bytes([letter]) * 4000)
    for start in (0, SIZE):
        log.delete(log.detach(start))
        removed = [name for name, _path in log.disk.calls][-2:]
        assert removed == ["remove", "sync_folder"], "a power cut cannot bring this one back and not the next"
        assert not (tmp_path / file_name(start)).exists()


def test_the_end_is_cut_for_good(tmp_path: Path) -> None:
    first = Log(tmp_path)
    first.load()
    first.open_end(0)
    for letter in b"abc":
        first.put(bytes([letter]) * 4000)
    first.close()
    again = Log(tmp_path)
    again.load()
    again.open_end(SIZE + 1000)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file_name(0), file_name(SIZE)]
    assert (tmp_path / file_name(SIZE)).read_bytes() == b"b" * 1000 + bytes(SIZE - 1000)
    assert again.disk.count("sync", file_name(SIZE)) == 1, "durably, before anything is appended"
    assert again.put(b"x" * 10) == SIZE + 1000
    again.close()


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (lambda folder: (folder / "notes.txt").write_text("x"), StoreError, "not a log file"),
        (lambda folder: (folder / "1").write_text("x"), StoreError, "not a log file"),
        (lambda folder: (folder / file_name(SIZE)).unlink(), StoreDamaged, "missing or misnamed"),
        (lambda folder: (folder / file_name(0)).rename(folder / file_name(7)), StoreDamaged, "misnamed"),
        (
            lambda folder: (folder / file_name(2 * SIZE)).write_bytes(b"x" * 10),
            StoreDamaged,
            "is truncated: it has 10 of 4096",
        ),
        (lambda folder: (folder / file_name(0)).write_bytes(bytes(10)), StoreDamaged, "is truncated: it has 10 of"),
        (lambda folder: (folder / file_name(2 * SIZE)).write_bytes(bytes(SIZE + 1)), StoreError, "has 4097 bytes"),
    ],
    ids=["foreign", "short name", "gap", "misnamed", "cut", "cut at the front", "too long"],
)
def test_what_does_not_belong_is_named(tmp_path: Path, spoil: object, error: type[Exception], text: str) -> None:
    made = Log(tmp_path)
    made.load()
    made.open_end(0)
    for letter in b"abc":
        made.put(bytes([letter]) * 4000)
    made.close()
    spoil(tmp_path)  # type: ignore[operator]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = Log(tmp_path)
    with pytest.raises(error, match=text):
        again.load()
    again.close()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing was changed"


@pytest.mark.parametrize("size", [0, 10, SIZE - 1])
def test_a_last_file_that_was_not_finished_goes(tmp_path: Path, size: int) -> None:
    (tmp_path / file_name(0)).write_bytes(b"x" * SIZE)
    (tmp_path / file_name(SIZE)).write_bytes(bytes(size))
    made = Log(tmp_path)
    made.load()
    assert [segment.start for segment in made.segments()] == [0]
    assert not (tmp_path / file_name(SIZE)).exists()
    made.close()


class LogMachine(RuleBasedStateMachine):
    """Against a plain sequence of (offset, bytes): whatever happens in between, what was written can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kappamq-log-"))
        self.wrote: list[tuple[int, bytes]] = []

    @initialize()
    def open(self) -> None:
        self.log = Log(self.folder)
        self.log.load()
        self.log.open_end(self.log.end)

    @rule(data=st.binary(min_size=1, max_size=1500))
    def put(self, data: bytes) -> None:
        self.wrote.append((self.log.put(data), data))

    @rule()
    @precondition(lambda self: not self.log.next_is_ready)
    def prepare(self) -> None:
        self.log.prepared(self.log.prepare())

    @rule()
    @precondition(lambda self: len(list(self.log.segments())) > 1)
    def expire(self) -> None:
        self.log.discard(self.log.detach(self.log.min))
        self.wrote = [(at, data) for at, data in self.wrote if at >= self.log.min]

    @rule()
    @precondition(lambda self: self.wrote)
    def reopen(self) -> None:
        end = self.log.end
        self.log.close()
        self.log = Log(self.folder)
        self.log.load()
        self.log.open_end(end)

    @rule(data=st.data())
    @precondition(lambda self: self.wrote)
    def cut(self, data: st.DataObject) -> None:
        """Recovery found less than there was."""
        number = data.draw(st.integers(0, len(self.wrote) - 1))
        end = self.wrote[number][0]
        self.log.close()
        self.log = Log(self.folder)
        self.log.load()
        self.log.open_end(end)
        del self.wrote[number:]

    @invariant()
    def reads_what_was_written(self) -> None:
        if hasattr(self, "log"):
            for at, data in self.wrote:
                assert bytes(self.log.slice(at, len(data))) == data
            assert not any(self.log.whole_view(self.log.end)), "behind the end there are zeros"

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
        shutil.rmtree(self.folder)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=20, stateful_step_count=25)

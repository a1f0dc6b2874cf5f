"""The store when its disk fails: each outcome is clear, and nothing that was acknowledged is lost."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import DiskFull, StoreError, StoreReadOnly
from kappamq.native import pure
from kappamq.native.interface import Flusher
from kappamq.native.layout import BROKEN
from kappamq.store import message_store
from kappamq.store.message_store import MessageStore
from tests.store.faulty import CHANGING, FaultyFiles, FilesWithFlusher, SlowFlusher
from tests.store.stores import BOOT, Writer, bodies, check, config, kernels, make, make_room, opened

KERNELS = kernels()


def made(root: Path, kind: str = "twin", files: FaultyFiles | None = None, **changes: Any) -> MessageStore:
    store = make(config(root, **changes), kind, files)
    store.open(BOOT)
    return store


def fill(writer: Writer, count: int, size: int = 100) -> None:
    for number in range(count):
        writer.send(b"message %d." % number + b"." * size, queue_id=number % 3, properties=b"KEYS\x01k%d" % number)
    writer.write()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of syncs, and none of them is the point."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


# --- acknowledged is never lost, whichever single call fails -----------------------------------------------------------


class Sender:
    """Sends until the store says no, and knows what it promised."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.promised: list[bytes] = []
        self.unknown: list[bytes] = []
        self.now_ms = 1_700_000_000_000
        self.refusals: list[str] = []

    def send(self, body: bytes) -> None:
        full = self.store.kernel_module.SegmentFull
        self.now_ms += 1
        if self.store.failed is not None:
            return
        try:
            while True:
                try:
                    self.store.kernel.append("t", 0, 0, 0, self.now_ms, bytes(8), 0, 0, body, b"KEYS\x01k", self.now_ms)
                    break
                except full:
                    make_room(self.store, self.now_ms)
        except StoreReadOnly as error:
            self.refusals.append(str(error))
            return
        try:
            self.store.write(self.now_ms)
            self.promised.append(body)
        except StoreReadOnly as error:
            self.refusals.append(str(error))
            self.unknown.append(body)

    def derive(self, sync: bool = False) -> None:
        if self.store.failed is not None:
            return
        try:
            work = self.store.collect()
            self.store.write_derived(work)
            if sync:
                self.store.sync_derived(work)
        except OSError as error:
            self.refusals.append(str(error))


def one_life(store: MessageStore) -> Sender:
    """Sends over several log, queue and index files; entries are brought to their files now and then."""
    sender = Sender(store)
    for number in range(150):
        sender.send(b"%03d" % number + b"." * 1200)
        if number % 15 == 0:
            sender.derive(sync=number % 30 == 0)
        if number == 70 and store.log.next_is_ready is False and store.failed is None:
            try:
                store.log.prepared(store.log.prepare())
            except OSError as error:
                sender.refusals.append(str(error))
    return sender


def verify(root: Path, sender: Sender, boot: str = BOOT) -> None:
    with opened(config(root, queue_file_entries=32, index_entries=60), boot=boot) as store:
        found = bodies(store)
        assert found[: len(sender.promised)] == sender.promised
        assert found[len(sender.promised) :] in ([], sender.unknown)
        while store.catching_up():
            store.catch_up()
        writer = Writer(store)
        writer.write_derived()
        keys = store.index.query("t", "k", 1000, 0, 1 << 60)
        assert len(set(keys)) == len(found), "every key is found again, too"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("end", ["stop", "crash", "power cut"])
def test_no_single_failing_call_loses_what_was_promised(memory: Path, code: int, end: str) -> None:
    """SQLite's way: the same life again and again, each time the next call of the disk fails."""
    counting = FaultyFiles()
    store = made(memory / "whole", files=counting, queue_file_entries=32, index_entries=60)
    begin = len(counting.calls)
    assert one_life(store).refusals == []
    store.close()
    calls = sum(operation in CHANGING for operation, _path in counting.calls[begin:])
    assert calls > 150
    # All of them would take a while: a stride that meets every kind of call, another phase for every kind of end.
    for skip in range({"stop": 0, "crash": 1, "power cut": 2}[end], calls, 5):
        root = memory / str(skip)
        files = FaultyFiles()
        store = made(root, files=files, queue_file_entries=32, index_entries=60)
        files.fail(code=code, skip=skip, times=1)
        sender = one_life(store)
        store.close(clean=end == "stop")
        verify(root, sender, boot=BOOT if end != "power cut" else "another boot")
        shutil.rmtree(root)


# --- what each failure does ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KERNELS)
def test_a_failed_write_makes_the_store_read_only_and_readable(tmp_path: Path, kind: str) -> None:
    files = FaultyFiles()
    store = made(tmp_path, kind, files)
    writer = Writer(store)
    fill(writer, 30)
    files.fail("pwrite", on="commitlog")
    writer.send(b"lost")
    writer.expected["t", 0].pop()
    with pytest.raises(StoreReadOnly, match="writing the log failed"):
        writer.write()
    assert "Input/output error" in (store.failed or "")
    assert not store.kernel.accepting
    check(store, writer)
    store.close()
    assert (tmp_path / "abort").exists(), "the next start looks at everything again"
    with opened(config(tmp_path), kind) as again:
        check(again, writer)


@pytest.mark.parametrize("operation", ["remove", "sync_folder"])
def test_a_stop_that_cannot_remove_the_abort_file_is_still_a_stop(
    tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 30)
    files.fail(operation, on="abort" if operation == "remove" else str(tmp_path))
    store.close()
    assert (tmp_path / "abort").exists() == (operation == "remove")
    assert "the abort file could not be removed" in caplog.text
    with opened(config(tmp_path)) as again:  # the lock was given back
        check(again, writer)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_failed_fdatasync_makes_the_store_read_only_and_readable(tmp_path: Path, kind: str) -> None:
    settings = config(tmp_path, flush="sync")
    store = make(settings, kind, FilesWithFlusher(SlowFlusher))
    store.open(BOOT)
    flusher = SlowFlusher.made
    writer = Writer(store)
    fill(writer, 10)
    store.marks.answerable.wait(store.log.end, "early")
    flusher.sync()
    assert store.flush_done() == ["early"]
    check(store, writer)
    seen = {queue: list(expected) for queue, expected in writer.expected.items()}
    fill(writer, 10)
    store.marks.answerable.wait(store.log.end, "late")
    flusher.break_down()
    assert store.flush_done() == [], "nobody is told that it is safe"
    assert store.marks.answerable.give_up() == ["late"]
    assert "fdatasync" in (store.failed or "")
    writer.expected = seen
    check(store, writer)  # what was visible stays so, and nothing else became visible
    flusher.sync()
    store.flush_done()
    assert store.marks.flushed.offset < store.log.end, "a later sync that works proves nothing"
    store.close()


def test_without_room_for_the_next_file_nothing_is_lost_and_it_goes_on_later(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 30, size=1000)
    files.free_bytes = 1000
    with pytest.raises(StoreReadOnly, match="next log file"):
        fill(writer, 30, size=1000)
    assert store.failed is None
    check(store, writer)
    files.repair()
    fill(writer, 60, size=1000)
    check(store, writer)
    store.close()
    with opened(config(tmp_path)) as again:
        check(again, writer)


@pytest.mark.parametrize("where", ["consumequeue", "index", "kappamq.position", "checkpoint"])
@pytest.mark.parametrize("operation", ["pwrite", "open", "truncate"])
def test_derived_files_that_cannot_be_written_are_written_later(tmp_path: Path, where: str, operation: str) -> None:
    files = FaultyFiles()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 30)
    files.fail(operation, code=errno.ENOSPC, on=where)
    for _ in range(3):
        try:
            store.write_derived(store.collect())
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
        fill(writer, 10)
        check(store, writer)
    files.repair()
    writer.write_derived()  # what had failed,
    writer.write_derived()  # and what came since
    store.close(clean=False)
    with opened(config(tmp_path)) as again:
        assert again.recovered.records == 0, "all entries are in their files"  # type: ignore[attr-defined]
        check(again, writer)


def test_queue_files_that_could_not_be_synced_are_never_trusted_after_a_power_cut(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 30)
    work = store.collect()
    store.write_derived(work)
    files.fail("sync", on="consumequeue", times=1)
    store.sync_derived(work)
    fill(writer, 30)
    work = store.collect()
    store.write_derived(work)
    syncs = files.count("sync", "consumequeue")
    store.sync_derived(work)
    assert files.count("sync", "consumequeue") == syncs, "a second try would succeed and prove nothing"
    store.close()
    for path in (tmp_path / "consumequeue").rglob("0*0"):
        path.write_bytes(bytes(path.stat().st_size))  # the pages never got to the disk
    with opened(config(tmp_path), boot="another boot") as again:
        check(again, writer)


def test_a_stop_on_a_full_disk_ends_and_the_next_start_makes_up_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 30)
    files.fail("pwrite", "open", "truncate", code=errno.ENOSPC, on="consumequeue")
    store.close()
    assert "nothing is lost" in caplog.text
    assert (tmp_path / "abort").exists()
    with opened(config(tmp_path)) as again:
        assert not again.recovered.clean  # type: ignore[attr-defined]
        check(again, writer)


# --- a data directory that cannot be used -------------------------------------------------------------------------------


def a_file_at(name: str) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        root.mkdir(exist_ok=True)
        (root / name).write_text("not a folder")

    return spoil


def a_pipe_at(name: str) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        (root / name).parent.mkdir(parents=True)
        os.mkfifo(root / name)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda root: root.write_text("a file"), "File exists|Not a directory"),
        (a_file_at("commitlog"), "commitlog.*File exists"),
        (a_file_at("consumequeue"), "consumequeue.*Not a directory"),
        (a_file_at("index"), "index.*(Not a directory|not an index file)"),
        (lambda root: (root / "commitlog" / f"{0:020d}").mkdir(parents=True), "Is a directory"),
        (lambda root: (root / "checkpoint").mkdir(parents=True), "checkpoint.*Is a directory"),
        (lambda root: (root / "abort").mkdir(parents=True), "abort.*Is a directory"),
        (lambda root: (root / "lock").mkdir(parents=True), "lock: Is a directory"),
        (lambda root: [root.mkdir(), (root / "commitlog").symlink_to(root / "nowhere")], "commitlog.*File exists"),
        (
            lambda root: (root / "kappamq.position").mkdir(parents=True),
            "kappamq.position.*Is a directory.*move it away",
        ),
        (a_pipe_at("kappamq.position"), "kappamq.position.*Is a named pipe.*move it away"),
        (a_pipe_at("checkpoint"), "checkpoint.*Is a named pipe.*move it away"),
        (a_pipe_at("lock"), "lock: Is a named pipe"),
        (a_pipe_at(f"commitlog/{0:020d}"), "commitlog/0+ .*Is a named pipe"),
        (
            lambda root: [root.mkdir(), (root / "checkpoint").symlink_to(root / "checkpoint")],
            "checkpoint.*symbolic links",
        ),
    ],
    ids=[
        *("root", "commitlog", "consumequeue", "index", "log file", "checkpoint", "abort", "lock", "dangling link"),
        *("position", "pipe: position", "pipe: checkpoint", "pipe: lock", "pipe: log file", "link loop"),
    ],
)
def test_what_stands_in_the_way_is_named(tmp_path: Path, spoil: Callable[[Path], object], text: str) -> None:
    root = tmp_path / "data"
    spoil(root)
    with pytest.raises(StoreError, match=text), opened(config(root)):
        pass
    if root.is_dir():
        assert not (root / "abort").is_file(), "a start that failed is no crash"


def test_a_full_disk_at_the_start_says_so(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.free_bytes = 1000
    with pytest.raises(DiskFull, match="disk is full"):
        made(tmp_path, files=files)
    files.repair()
    store = made(tmp_path, files=files)
    writer = Writer(store)
    fill(writer, 3)
    check(store, writer)
    store.close()


def test_a_failed_open_gives_everything_back(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 200, size=500)
    descriptors = len(os.listdir("/proc/self/fd"))
    for changes in ({"segment_bytes": 128 << 10}, {"queue_file_entries": 128}):
        with pytest.raises(StoreError, match="open the store with the size it was written with"):
            make(config(tmp_path, **changes)).open(BOOT)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    with opened(config(tmp_path)) as store:
        assert store.recovered.clean  # type: ignore[attr-defined]
        check(store, writer)


@pytest.mark.parametrize("kind", kernels())
def test_a_rotten_record_costs_nobody_the_messages_before_it(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        offsets = [writer.send(b"%d" % number) for number in range(60)]
        writer.write()
        os.pwrite(store.log.current_fd, b"\0\0\0\x05", offsets[40])  # its size
        verdict, payload = store.kernel.pull("t", 0, 30, 32, None, 1, False, True)
        assert verdict == 0
        assert b'"nextBeginOffset":"40"' in payload
        assert store.kernel.pull("t", 0, 40, 32, None, 1, False, True) == (BROKEN, (40, 0, 60))
        verdict, payload = store.kernel.pull("t", 0, 41, 32, None, 1, False, True)
        assert (verdict, b'"nextBeginOffset":"60"' in payload) == (0, True)


@pytest.mark.parametrize("kind", kernels())
def test_many_recovered_queues_are_written_beside_serving(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is ready a broker does not make thousands of files; crashes in between cost nothing."""
    monkeypatch.setattr(message_store, "_STORE_AT_START_QUEUES", 3)
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        for queue_id in range(20):
            writer.send(b"%d" % queue_id, queue_id=queue_id)
            writer.send(b"again", queue_id=queue_id)
        writer.write()
    with opened(config(tmp_path), kind, clean=False) as store:
        assert store.kernel.dirty_queues() == 20
        check(store, writer)
    with opened(config(tmp_path), kind, clean=False) as store:
        check(store, writer)
        later = Writer(store, writer.now_ms)
        later.expected = writer.expected
        later.send(b"more", queue_id=3)
        later.write()
        later.write_derived()
        assert store.kernel.dirty_queues() == 0
    with opened(config(tmp_path), kind) as store:
        assert store.recovered.scanned_from == store.recovered.end
        check(store, later)


@pytest.mark.parametrize("kind", kernels())
def test_the_index_catches_up_around_damage(tmp_path: Path, kind: str) -> None:
    """A record with a bad checksum can be read, but its keys may be anything."""
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        places = [writer.send(b"message", properties=b"KEYS\x01k%d" % number) for number in range(9)]
        writer.write()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[4] + 90)  # in its body
        file.write(b"X")
    with opened(config(tmp_path, skip_damage=True), kind) as store:
        while store.catching_up():
            store.catch_up()
            store.write_derived(store.collect())
        found = [store.query("t", f"k{number}", 64, 0, 1 << 60) for number in range(9)]
        assert found == [[] if number == 4 else [places[number]] for number in range(9)]


def test_a_store_that_fails_to_open_late_leaves_no_flusher_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Flusher] = []

    def flusher() -> Flusher:
        made.append(pure.Flusher())
        return made[-1]

    def fail(self: MessageStore) -> None:
        raise MemoryError

    monkeypatch.setattr(MessageStore, "collect", fail)
    store = make(config(tmp_path), files=FilesWithFlusher(flusher))
    with pytest.raises(MemoryError):
        store.open(BOOT)
    assert [each.fileno() for each in made] == [-1]

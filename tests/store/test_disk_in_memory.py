"""A store that never touches a real disk: `Files` is all that stands between the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.errors import StoreLocked
from kappamq.sim.brokers.memory_disk import MemoryDisk
from kappamq.store.files import Files
from kappamq.store.lock import StoreLock
from kappamq.store.message_store import MessageStore
from kappamq.store.verify.verify import verify
from tests.store.stores import BOOT, Writer, check, config, drop_oldest, kernels, make
from tests.waiting import eventually

NOWHERE = Path("/nowhere/kappamq")


def fill(writer: Writer, count: int, topic: str = "t") -> None:
    for number in range(count):
        writer.send(b"%d" % number * 200, topic, number % 3, b"KEYS\x01key%d\x02" % number)
        writer.write()


def flush(store: MessageStore) -> None:
    store.request_flush()
    eventually(lambda: store.flush_done() or store.marks.flushed.offset == store.log.end)


def lives(root: Path, kind: str, files: Files) -> None:
    """A store is made, grows over several files, loses a topic and old files, stops, crashes, and recovers."""
    settings = config(root, flush="sync", queue_file_entries=32, index_entries=60)
    store = make(settings, kind, files)
    assert store.open(BOOT).clean
    writer = Writer(store)
    fill(writer, 300)
    fill(writer, 20, "gone")
    flush(store)
    writer.write_derived()
    store.forget_topic("gone")
    with pytest.raises(StoreLocked, match="open in this process already"):
        make(settings, kind, files).open(BOOT)
    store.close()
    del writer.expected["gone", 0], writer.expected["gone", 1], writer.expected["gone", 2]

    for clean in (True, False):  # how it was stopped before
        store = make(settings, kind, files)
        assert store.open(BOOT).clean == clean
        check(store, writer)
        writer.store = store
        fill(writer, 100)
        flush(store)
        writer.write_derived()
        store.close(clean=False)

    store = make(settings, kind, files)
    store.open("another boot")
    check(store, writer)
    assert store.index.query("t", "key7", 10, 0, 1 << 60)
    drop_oldest(store, 2)
    store.close()
    report = verify(root, index_slots=settings.index_slots, index_entries=settings.index_entries, files=files)
    assert report.problems == []


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))
    }


def test_every_call_of_a_disk_is_replaced() -> None:
    calls = {name for name in vars(Files) if not name.startswith("_")}
    assert calls <= set(vars(MemoryDisk)), "a new call of Files would go to the real disk"


@pytest.mark.parametrize("kind", kernels())
def test_a_store_lives_in_memory_as_on_a_disk(tmp_path: Path, kind: str) -> None:
    disk = MemoryDisk()
    lives(NOWHERE, kind, disk)
    assert not NOWHERE.parent.exists()
    assert disk.opened == 0, "every descriptor was closed"
    lives(tmp_path, kind, Files())
    memory, real = disk.tree(NOWHERE), tree(tmp_path)
    assert sorted(memory) == sorted(real)
    assert [name for name in real if memory[name] != real[name]] == []


def test_disks_do_not_share_locks() -> None:
    one, other = MemoryDisk(), MemoryDisk()
    for disk in (one, other):
        disk.make_folder(NOWHERE)
    with StoreLock(NOWHERE, one), StoreLock(NOWHERE, other), pytest.raises(StoreLocked):
        StoreLock(NOWHERE, one).acquire()

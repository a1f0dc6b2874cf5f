"""The log loses its unconfirmed end: durably, and as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.errors import StoreDamaged, StoreReadOnly
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import Record
from kappamq.sim.brokers.crash_disk import CrashDisk, crashes
from kappamq.sim.brokers.memory_disk import MemoryDisk
from kappamq.store.message_store import MessageStore
from kappamq.store.queues.deleted_topics import ForgottenTopics
from tests.store.faulty import FaultyFiles, FilesWithFlusher, SlowFlusher
from tests.store.stores import START_MS, Writer, bodies, check, config, flush, kernels, make, opened

KERNELS = kernels()


def slow_store(root: Path, kind: str) -> tuple[MessageStore, SlowFlusher]:
    """What is written is not seen before the test says so."""
    store = make(config(root, flush="sync"), kind, FilesWithFlusher(SlowFlusher))
    store.open("this boot")
    return store, SlowFlusher.made


def send(writer: Writer, count: int, name: bytes, size: int = 300) -> None:
    for number in range(count):
        writer.send(name + b" %d." % number + b"." * size, queue_id=number % 2)
    writer.write()


def settle(store: MessageStore, flusher: SlowFlusher) -> None:
    flusher.sync()
    store.flush_done()


def keep(writer: Writer) -> dict[tuple[str, int], list[bytes]]:
    return {queue: list(bodies) for queue, bodies in writer.expected.items()}


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("files", [1, 3], ids=["one file", "three files"])
def test_what_is_cut_was_never_there(tmp_path: Path, kind: str, files: int) -> None:
    store, flusher = slow_store(tmp_path, kind)
    writer = Writer(store)
    send(writer, 10, b"seen")
    settle(store, flusher)
    send(writer, 5, b"kept")
    end, expected = store.log.end, keep(writer)
    while store.log.end < (files - 1) * store.config.segment_bytes + 20_000:
        send(writer, 5, b"lost")
    store.log.prepared(store.log.prepare())
    flusher.sync()  # and has not been asked yet
    writer.send(b"not even written")
    for mark, offset in (
        (store.marks.answerable, end),
        (store.marks.answerable, end + 1),
        (store.marks.written, 1 << 40),
    ):
        mark.wait(offset, (mark, offset))
    assert [offset for _mark, offset in store.cut(end)] == [1 << 40, end + 1]
    assert (store.log.end, store.kernel.append_offset, store.generation) == (end, end, 1)
    assert len(list(store.log.segments())) == 1
    assert not any(store.log.whole_view(end)), "zeros behind it"
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == [f"{0:020d}"]
    assert store.kernel.queue_state("t", 0)[:3] == (0, 5, 8)
    # Other messages take the place and the numbers.
    writer.expected = expected
    send(writer, 7, b"anew", 10)
    assert store.flush_done() == [(store.marks.answerable, end)]
    assert store.marks.flushed.offset == end, "no earlier sync vouches for more"
    settle(store, flusher)
    check(store, writer)
    store.close()
    with opened(config(tmp_path), kind) as again:
        check(again, writer)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_cut_may_end_where_a_file_does(tmp_path: Path, kind: str) -> None:
    store, flusher = slow_store(tmp_path, kind)
    writer = Writer(store)
    send(writer, 3, b"seen")
    settle(store, flusher)
    before_mark, expected = store.log.end, keep(writer)
    store.roll()
    store.roll()
    send(writer, 3, b"lost")
    size = store.config.segment_bytes
    store.cut(2 * size)
    assert (store.log.end, store.log.is_fresh) == (2 * size, True)
    store.cut(size)
    assert (store.log.end, len(list(store.log.segments()))) == (size, 2)
    store.cut(before_mark)
    assert not any(store.log.whole_view(before_mark)), "without its end mark"
    writer.expected = expected
    send(writer, 3, b"anew")
    settle(store, flusher)
    check(store, writer)
    store.close()


@pytest.mark.parametrize("kind", KERNELS)
def test_only_what_is_not_dispatched_is_cut_and_only_between_records(tmp_path: Path, kind: str) -> None:
    store, flusher = slow_store(tmp_path, kind)
    writer = Writer(store)
    send(writer, 3, b"seen")
    settle(store, flusher)
    seen = store.log.end
    writer.batch([b"a", b"b"])
    writer.write()
    end = store.log.end
    middle = seen + int.from_bytes(store.log.slice(seen, 4), "big")
    for offset in (seen + 1, middle, end - 1):
        with pytest.raises(ValueError, match="no record or batch ends there"):
            store.cut(offset)
    for offset in (0, seen - 1, end + 1):
        with pytest.raises(AssertionError):
            store.cut(offset)
    assert store.cut(end) == []
    settle(store, flusher)
    check(store, writer)
    store.close()


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("operation", ["zero", "sync", "remove", "rename"])
def test_a_disk_that_fails_makes_the_store_read_only(tmp_path: Path, kind: str, operation: str) -> None:
    class Disk(FaultyFiles, FilesWithFlusher):
        def __init__(self) -> None:
            FaultyFiles.__init__(self)
            FilesWithFlusher.__init__(self, SlowFlusher)

    files = Disk()
    store = make(config(tmp_path, flush="sync"), kind, files)
    store.open("this boot")
    writer = Writer(store)
    send(writer, 3, b"seen")
    settle(store, SlowFlusher.made)
    end = store.log.end
    send(writer, 3, b"lost")
    store.log.prepared(store.log.prepare())
    files.fail(operation)
    for _ in range(2):
        with pytest.raises(StoreReadOnly, match="cutting the log failed"):
            store.cut(end)
    assert not store.kernel.accepting
    assert len(bodies(store)) == 2, "what was seen can be read"
    store.close()


# --- crashes -------------------------------------------------------------------------------------------------------------


class SlowCrashDisk(CrashDisk):
    def flusher(self, kernel: Any) -> Any:
        return SlowFlusher()


@pytest.mark.parametrize("files", [1, 3], ids=["one file", "three files"])
@pytest.mark.parametrize("noted", [False, True], ids=["position older", "position newer"])
def test_a_crash_at_any_point_leaves_the_old_tail_or_the_new_end(tmp_path: Path, files: int, noted: bool) -> None:
    disk, root = SlowCrashDisk(), Path("/store")
    settings = config(root, flush="sync")
    store = make(settings, files=disk)
    store.open("this boot")
    writer = Writer(store)
    send(writer, 10, b"seen")
    settle(store, SlowFlusher.made)
    writer.write_derived()
    work = store.collect()
    store.sync_derived(work)
    send(writer, 3, b"kept")
    end, kept = store.log.end, list(writer.expected["t", 0])
    while store.log.end < (files - 1) * settings.segment_bytes + 4000:
        send(writer, 3, b"lost")
    whole = writer.expected["t", 0]
    for segment in store.log.segments():
        disk.sync(segment.fd)
    if noted:  # all of it was flushed, and the position file says so; but it has not been confirmed
        store.marks.flushed.advance(store.log.end)
        store.derived._note(store.collect(), 2, 10)
    before, states = store.log.end, 0

    def look() -> None:
        nonlocal states
        for found in crashes(disk, states, 8):
            states += 1
            after_crash(found, settings, end, before, kept, whole)

    disk.before_each = look
    store.cut(end)
    disk.before_each = lambda: None
    for found in crashes(disk, 1, 8):
        after_crash(found, settings, end, end, kept, kept)
    assert states >= 60


def after_crash(disk: MemoryDisk, settings: Any, low: int, high: int, kept: list[bytes], whole: list[bytes]) -> None:
    with opened(settings, files=disk, boot="another boot") as store:
        assert low <= store.log.end <= high
        found = bodies(store)
        assert whole[: len(found)] == found
        assert len(found) >= len(kept)
        assert store.recovered.damage == []  # type: ignore[attr-defined]
        writer = Writer(store, START_MS + 10_000)
        writer.send(b"after")
        writer.write()
        flush(store)
        assert bodies(store) == [*found, b"after"]


@pytest.mark.parametrize("kind", kernels())
def test_a_topic_that_was_forgotten_begins_at_0_once_more_behind_what_is_confirmed(tmp_path: Path, kind: str) -> None:
    """Its queue file still has the former message 0, which nobody has hidden here yet."""
    settings = config(tmp_path, flush="sync")
    store = make(settings, kind)
    store.open("this boot")
    writer = Writer(store)
    writer.send(b"old")
    writer.write()
    flush(store)
    writer.write_derived()
    store.sync_derived(store.collect())
    confirmed = store.log.end
    writer.send(b'{"kind":"topic-forgotten","change":"t"}', METADATA_TOPIC)
    store.kernel.set_queue("t", 0, 0, 0)
    writer.send(b"new")
    writer.write()
    flush(store)
    store.close(clean=False)
    with opened(settings, kind, enter_up_to=confirmed) as again:
        assert again.log.end > confirmed
        again.follow_marks()
        assert again.kernel.queue_state("t", 0)[:3] == (0, 1, 1)
        assert bodies(again) == [b"new"]


@pytest.mark.parametrize("topic", ["t", METADATA_TOPIC])
def test_what_a_user_sends_forgets_no_topic(tmp_path: Path, topic: str) -> None:
    """The same bytes as in the body of the record that does, or even such a record within a body."""
    settings = config(tmp_path, flush="sync")
    store = make(settings)
    store.open("this boot")
    writer = Writer(store)
    body = b'{"kind":"topic-forgotten","change":"t"}'
    writer.send(body if topic == "t" else b"a whole record: " + Record(topic=topic, body=body).encode())
    writer.write()
    flush(store)
    writer.write_derived()
    store.sync_derived(store.collect())
    confirmed = store.log.end
    store.kernel.set_queue("t", 0, 0, 0)
    writer.send(b"who is this?")
    writer.write()
    flush(store)
    store.close(clean=False)
    with pytest.raises(StoreDamaged, match="is message 0 of queue t/0, whose next message is 1"):
        make(settings).open("another boot", enter_up_to=confirmed)


def test_the_log_is_searched_once_for_all_topics_that_were_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        writer.send(b"x")
        at = store.append_offset
        for name in "ab":
            writer.send(b'{"kind":"topic-forgotten","change":"%s"}' % name.encode(), METADATA_TOPIC)
        writer.write()
        forgotten = ForgottenTopics(store.log)
        assert not forgotten.is_forgotten("a", at)
        assert forgotten.is_forgotten("b", store.log.end)
        with monkeypatch.context() as during:
            during.delattr(type(store.log), "whole_view")
            assert forgotten.is_forgotten("a", store.log.end)
            assert not forgotten.is_forgotten("a", at)
            assert not forgotten.is_forgotten("c", store.log.end)


def test_a_number_that_does_not_fit_is_damage(tmp_path: Path) -> None:
    settings = config(tmp_path, flush="sync")
    store = make(settings)
    store.open("this boot")
    writer = Writer(store)
    writer.send(b"old")
    writer.write()
    flush(store)
    writer.write_derived()
    store.sync_derived(store.collect())
    confirmed = store.log.end
    store.kernel.set_queue("t", 0, 0, 0)
    writer.send(b"who is this?")
    writer.write()
    flush(store)
    store.close(clean=False)
    with pytest.raises(StoreDamaged, match="is message 0 of queue t/0, whose next message is 1"):
        make(settings).open("another boot", enter_up_to=confirmed)

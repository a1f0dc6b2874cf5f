"""Opening a store after every kind of end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import StoreDamaged, StoreError, StoreLocked
from kappamq.protocol.codes import ResponseCode
from kappamq.store.message_store import MessageStore
from tests.store.stores import BOOT, Writer, bodies, check, config, drop_oldest, kernels, make, opened, read
from tests.store.unreadable import UnreadablePages

KERNELS = kernels()


def fill(writer: Writer, count: int = 300) -> None:
    for number in range(count):
        writer.send(
            b"message %d" % number + b"." * (number % 200),
            queue_id=number % 3,
            properties=b"UNIQ_KEY\x01U%d\x02KEYS\x01k%d" % (number, number),
        )
        if number % 7 == 0:
            writer.batch([b"batch %d.%d" % (number, member) for member in range(5)], topic="b")
        if number % 10 == 0:
            writer.write()
    writer.write()


@pytest.mark.parametrize("kind", KERNELS)
def test_a_clean_stop_needs_no_scan(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        fill(writer)
        end = store.log.end
    assert not (tmp_path / "abort").exists()
    with opened(config(tmp_path), kind) as store:
        found = store.recovered
        assert (found.clean, found.writer, found.records) == (True, "ours", 0)
        assert store.log.end == end
        check(store, writer)
        writer.store = store
        fill(writer, 50)
        check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("derived_at", [0, 100, 300])
def test_after_a_crash_everything_written_is_there(tmp_path: Path, kind: str, derived_at: int) -> None:
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        fill(writer, derived_at)
        writer.write_derived()
        fill(writer, 300 - derived_at)
    with opened(config(tmp_path), kind, clean=False) as store:
        assert not store.recovered.clean
        check(store, writer)
    with opened(config(tmp_path), kind) as store:  # and recovering twice changes nothing
        check(store, writer)
    with opened(config(tmp_path), kind) as store:
        check(store, writer)


def test_what_was_appended_but_not_written_is_gone_as_a_whole(tmp_path: Path) -> None:
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        fill(writer, 20)
        expected = {key: list(found) for key, found in writer.expected.items()}
        writer.send(b"never written")
    with opened(config(tmp_path)) as store:
        writer.expected = expected
        check(store, writer)


@given(cut=st.integers(1, 4000), flip=st.booleans())
@settings(max_examples=60)
def test_a_torn_tail_costs_only_whole_records_and_whole_batches(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: bool
) -> None:
    root = tmp_path_factory.mktemp("torn")
    with opened(config(root), clean=False) as store:
        writer = Writer(store)
        fill(writer, 15)
        end = store.log.end
    place = root / "commitlog" / f"{0:020d}"
    data = bytearray(place.read_bytes())
    at = max(0, end - cut)
    if flip:
        data[at] ^= 0x41
    else:
        data[at:] = bytes(len(data) - at)
    place.write_bytes(data)
    with opened(config(root)) as store:
        for (topic, queue_id), expected in writer.expected.items():
            found = bodies(store, topic, queue_id)
            assert found == expected[: len(found)], "a prefix, nothing else"
            if topic == "b":
                assert len(found) % 5 == 0, "a batch is all there or not at all"


@pytest.mark.parametrize("kind", KERNELS)
def test_a_batch_whose_end_reads_as_zeros_is_gone_at_every_length(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        start = writer.send(b"before")
        writer.write()
        start = store.log.end
        writer.batch([b"one", b"two", b"three"])
        writer.write()
        end = store.log.end
        data = bytes(store.log.slice(start, end - start))
        for lost in range(1, len(data)):
            torn = data[: len(data) - lost] + bytes(lost + 100)
            good, _why, records, _ms = store.kernel_module.scan(torn, start, True)
            assert (good, records) == (0, 0), f"{lost} bytes lost"


def test_a_new_tail_never_revives_old_records(tmp_path: Path) -> None:
    """Old records behind a cut lie at the offsets they name, with CRCs that hold: they must be gone before new ones come."""
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        offsets = [writer.send(b"old %03d" % number) for number in range(50)]
        writer.write()
    place = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(place.read_bytes())
    data[offsets[10] + 90] ^= 1  # record 10 breaks; 11 to 49 are good, but nobody was promised them
    place.write_bytes(data)
    with opened(config(tmp_path), clean=False) as store:
        assert bodies(store) == [b"old %03d" % number for number in range(10)]
        late = Writer(store)
        late.send(b"new 010")  # exactly as long as the old record that it replaces
        late.write()
    with opened(config(tmp_path)) as store:
        assert bodies(store) == [*(b"old %03d" % number for number in range(10)), b"new 010"]


@pytest.mark.parametrize("kind", KERNELS)
def test_damage_below_the_flushed_offset_is_not_the_end_of_the_log(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        offsets = [writer.send(b"message %03d" % number) for number in range(100)]
        writer.write()
    (tmp_path / "abort").write_text("1")
    shutil.rmtree(tmp_path / "consumequeue")  # so that the whole log is looked at again
    place = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(place.read_bytes())
    data[offsets[40] + 90] ^= 1
    place.write_bytes(data)
    before = place.read_bytes()
    with pytest.raises(StoreDamaged, match=f"damaged at {offsets[40]}.*skip_damage"), opened(config(tmp_path), kind):
        pass
    assert place.read_bytes() == before, "nothing was changed"
    with opened(config(tmp_path, skip_damage=True), kind) as store:
        assert store.recovered.damage == [(offsets[40], offsets[41])]
        assert bodies(store) == [b"message %03d" % n for n in range(100) if n != 40]
        assert [record.queue_offset for record in read(store)] == [n for n in range(100) if n != 40]
    with opened(config(tmp_path), kind) as store:
        assert len(bodies(store)) == 99, "what was passed over once is not looked at again"


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize(
    "lost", ["consumequeue", "index", "consumequeue/t/1", "kappamq.position", "checkpoint", "config"]
)
def test_derived_files_come_back_with_the_same_bytes(tmp_path: Path, kind: str, lost: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        fill(writer)
    before = _contents(tmp_path)
    target = tmp_path / lost
    if target.exists():
        remove(target)
    with opened(config(tmp_path), kind) as store:
        check(store, writer)
    assert _contents(tmp_path) == before


def _contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("consumequeue", "index")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def test_a_power_cut_trusts_only_what_was_synced(tmp_path: Path) -> None:
    """Queue pages written after the last sync may be lost in any order: holes in the middle must not end a queue."""
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        fill(writer, 60)
        work = store.collect()
        store.write_derived(work)
        store.sync_derived(work)
        fill(writer, 60)
        writer.write_derived()
    hole = tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}"
    data = bytearray(hole.read_bytes())
    data[25 * 20 : 28 * 20] = bytes(60)
    hole.write_bytes(data)
    with opened(config(tmp_path), boot="another boot") as store:
        check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("topic", ["../../outside", "/outside", "..", "n" * 1000])
@pytest.mark.parametrize("lost", ["", "kappamq.position", "consumequeue"])
def test_topics_that_are_no_folders_get_no_files(
    tmp_path: Path, kind: str, topic: str, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No broker accepts them, but the log may come from anywhere: nothing is made outside of its folder, and all else is there."""
    root = tmp_path / "a" / "store"
    with opened(config(root), kind, clean=False) as store:
        writer = Writer(store)
        writer.send(b"bad", topic=topic)
        fill(writer, 20)
        writer.write_derived()
        del writer.expected[topic, 0]
    if lost:
        remove(root / lost)
    for _ in range(2):
        with opened(config(root), kind, clean=False) as store:
            check(store, writer)
            store.queues.delete_topic(topic)
    assert "is not a valid folder name" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["store"]
    assert {path.name for path in (root / "consumequeue").iterdir()} <= {"t", "b"}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    with opened(config(tmp_path)), pytest.raises(StoreLocked, match=str(tmp_path)):
        make(config(tmp_path)).open(BOOT)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda root: (root / "commitlog" / "notes.txt").write_text("hello"), "not a log file"),
        (
            lambda root: (root / "commitlog" / f"{0:020d}").write_bytes(b"short"),
            "is truncated: it has 5 of 65536 bytes",
        ),
        (
            lambda root: (root / "commitlog" / f"{0:020d}").rename(root / "commitlog" / f"{1 << 20:020d}"),
            "missing or misnamed",
        ),
    ],
    ids=["foreign file", "wrong size", "gap"],
)
def test_files_that_do_not_belong_are_named(tmp_path: Path, spoil: object, text: str) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 400)
        assert len(list(store.log.segments())) > 1
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(StoreError, match=text), opened(config(tmp_path)):
        pass


def test_an_empty_last_file_is_a_crash_while_it_was_made(tmp_path: Path) -> None:
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        fill(writer, 20)
    (tmp_path / "commitlog" / f"{64 << 10:020d}").write_bytes(b"")
    with opened(config(tmp_path)) as store:
        check(store, writer)


def test_without_a_log_queues_start_over(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(Writer(store), 20)
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "kappamq.position").unlink()
    with opened(config(tmp_path)) as store:
        assert bodies(store) == []
        writer = Writer(store)
        fill(writer, 20)
        check(store, writer)


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "an empty file"])
def test_a_log_that_is_not_there_is_no_new_store(tmp_path: Path, left: str) -> None:
    """A file system that was not mounted: when it is back, everything is as before."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 20)
    before = _contents(tmp_path)
    (tmp_path / "commitlog").rename(tmp_path / "elsewhere")
    if left != "nothing":
        (tmp_path / "commitlog").mkdir()
    if left == "an empty file":
        (tmp_path / "commitlog" / f"{0:020d}").touch()
    with pytest.raises(StoreDamaged, match=r"has no log files: is a file system not mounted"):
        make(config(tmp_path)).open(BOOT)
    shutil.rmtree(tmp_path / "commitlog", ignore_errors=True)
    (tmp_path / "elsewhere").rename(tmp_path / "commitlog")
    assert _contents(tmp_path) == before
    with opened(config(tmp_path)) as store:
        check(store, writer)


def test_keys_missing_from_the_index_are_caught_up_in_the_background(tmp_path: Path) -> None:
    with opened(config(tmp_path), clean=False) as store:
        writer = Writer(store)
        fill(writer, 100)  # no derived files at all: everything is to be done again
    with opened(config(tmp_path)) as store:
        assert store.index.query("t", "k50", 10, 0, 1 << 60) == []
        rounds = 0
        while store.catching_up():
            store.catch_up()
            rounds += 1
        writer.store = store
        writer.write_derived()
        found = store.index.query("t", "k50", 10, 0, 1 << 60)
        assert [store.record(offset) is not None for offset in found] == [True]
        assert rounds >= 1


def test_the_story_of_a_start(tmp_path: Path) -> None:
    with opened(config(tmp_path), KERNELS[0], clean=False) as store:
        assert store.recovered.story(0.1) == "a new store"
        writer = Writer(store)
        fill(writer, 20)
    with opened(config(tmp_path), KERNELS[0]) as store:
        found = store.recovered
        told = found.story(1.25)
        assert told.startswith(f"the last broker (process {os.getpid()}) did not stop cleanly: 35 records in ")
        assert told.endswith(f"the log ends at {store.log.end}; ready after 1.25 s")
    with opened(config(tmp_path), KERNELS[0]) as store:
        told = store.recovered.story(0.0)
        assert told.startswith("the store was closed cleanly: its queues are complete, the log ends at ")
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(config(tmp_path), KERNELS[0]) as store:
        assert "(queue files were missing: all of it)" in store.recovered.story(0.0)


# --- pages that cannot be read -------------------------------------------------------------------------------------------

needs_native = pytest.mark.skipif("native" not in KERNELS, reason="no compiled kernel: nothing survives SIGBUS")


@needs_native
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_an_unreadable_page_is_never_the_end_of_the_log(
    tmp_path: Path, kind: str, clean: bool, foreign: bool, part: float
) -> None:
    """Wherever it lies: the log keeps every byte, whether the store opens or not, and all is there when the disk is well again."""
    with opened(config(tmp_path), kind, clean=clean) as store:
        writer = Writer(store)
        fill(writer, 20)
        writer.write_derived()
        fill(writer, 60)
        end = store.log.end
    assert 8192 < end < 64 << 10
    if foreign:
        (tmp_path / "kappamq.position").unlink()
        shutil.rmtree(tmp_path / "consumequeue")
    place = tmp_path / "commitlog" / f"{0:020d}"
    before = place.read_bytes()
    try:
        with opened(config(tmp_path), kind, clean=False, files=UnreadablePages(int(part * (end - 1)))) as store:
            assert store.log.end == end, "it may open if nobody had to look there"
    except StoreDamaged as error:
        told = str(error)
    else:
        told = f"{place} cannot be read"
    assert str(place) in told
    assert "cannot be read" in told
    assert place.read_bytes() == before
    with opened(config(tmp_path), kind) as store:
        assert store.log.end == end
        check(store, writer)


@needs_native
@pytest.mark.parametrize("kind", KERNELS)
def test_unreadable_pages_are_passed_over_only_if_records_follow(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        offsets = [writer.send(b"message %03d" % number) for number in range(200)]
        writer.write()
        end = store.log.end
    place = tmp_path / "commitlog" / f"{0:020d}"
    before = place.read_bytes()
    skipping = config(tmp_path, skip_damage=True)
    last = UnreadablePages(end - 1)
    with pytest.raises(StoreDamaged, match="cannot be read"), opened(skipping, kind, files=last):
        pass
    assert place.read_bytes() == before
    with opened(skipping, kind, clean=False, files=UnreadablePages(8192)) as store:
        ((start, stop),) = store.recovered.damage  # type: ignore[attr-defined]
        assert start <= 8192
        assert stop >= 12288
        assert stop in offsets
        assert store.log.end == end
    assert place.read_bytes() == before


@needs_native
def test_an_unreadable_fingerprint_does_not_make_the_log_anothers(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(Writer(store), 30)
        end = store.log.end
    with pytest.raises(StoreDamaged, match="cannot be read"), opened(config(tmp_path), files=UnreadablePages(end - 1)):
        pass
    with opened(config(tmp_path)) as store:
        assert store.recovered.writer == "ours"  # type: ignore[attr-defined]


# --- records that may not be confirmed ---------------------------------------------------------------------------------


def ends(store: MessageStore) -> list[int]:
    return [store.kernel.queue_state("t", queue_id).end for queue_id in range(2)]


def nexts(store: MessageStore) -> list[int]:
    return [store.kernel.queue_state("t", queue_id).next for queue_id in range(2)]


def tail(root: Path, kind: str) -> tuple[Writer, list[int]]:
    """A crashed store; where each of its records ends, one batch and one end mark among them."""
    with opened(config(root), kind, clean=False) as store:
        writer, places = Writer(store), [0]
        for number in range(12):
            if number == 5:
                writer.batch([b"5a", b"5b"], queue_id=1)
            elif number == 8:
                store.roll()
            else:
                writer.send(b"%d" % number, queue_id=number % 2)
            writer.write()
            places.append(store.log.end)
    return writer, places


@pytest.mark.parametrize("kind", KERNELS)
def test_records_that_may_not_be_confirmed_wait_outside_of_their_queues(tmp_path: Path, kind: str) -> None:
    writer, places = tail(tmp_path, kind)
    expected = writer.expected
    for place in places:
        for limit in {place, place + 1, place + 60, max(0, place - 1)}:
            with opened(config(tmp_path), kind, clean=False, enter_up_to=limit) as store:
                entered = max(end for end in places if end <= limit)
                marks = store.marks
                assert (marks.written.offset, marks.flushed.offset) == (places[-1], places[-1])
                assert {
                    mark.offset for mark in (marks.answerable, marks.visible, marks.confirmed, marks.dispatched)
                } == {entered}
                assert sum(ends(store)) < 12 or entered == places[-1]
                assert nexts(store) == [5, 7], "messages to come have numbers behind them"
                assert store.kernel.append_offset == places[-1]
            (tmp_path / "kappamq.position").unlink()
            shutil.rmtree(tmp_path / "consumequeue", ignore_errors=True)
    with opened(config(tmp_path), kind, enter_up_to=places[5]) as store:
        assert ends(store) == [3, 2]
        store.marks.visible.advance(places[6])
        store._dispatch_visible()
        assert ends(store) == [3, 4], "both of the batch"
        Writer(store).write_derived()
        assert store.derived.noted.dispatched == places[6]
        writer.store = store
        writer.send(b"new")
        writer.write()  # a mode in which all that is written is seen
        check(store, writer)
    assert expected is writer.expected
    with opened(config(tmp_path), kind) as store:
        check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
def test_what_was_once_in_its_queue_is_confirmed(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind, enter_up_to=0) as store:
        writer = Writer(store)
        for number in range(6):
            writer.send(b"%d" % number)
        writer.write()
        end = store.log.end
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "consumequeue")
        with opened(config(tmp_path), kind, enter_up_to=0) as store:
            assert store.marks.dispatched.offset == end
            check(store, writer)


@pytest.mark.parametrize("kind", KERNELS)
def test_the_unconfirmed_end_can_be_cut_after_a_restart(tmp_path: Path, kind: str) -> None:
    _writer, places = tail(tmp_path, kind)
    for cut_to in (places[9], places[8], places[4], places[3]):
        with opened(config(tmp_path), kind, enter_up_to=places[3]) as store:
            store.marks.mode = Held(places[3])
            store.cut(cut_to)
            assert store.log.end == cut_to
    assert (ends(store), nexts(store)) == ([2, 1], [2, 1])


class Held:
    """Nothing more is confirmed."""

    name, in_turn, late = "held", False, ResponseCode.FLUSH_DISK_TIMEOUT

    def __init__(self, confirmed: int) -> None:
        self._confirmed = confirmed

    def follow(self, written: int, flushed: int) -> tuple[int, int, int]:
        return self._confirmed, self._confirmed, self._confirmed


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_copy_of_a_log_whose_beginning_is_gone(tmp_path: Path, kind: str, clean: bool) -> None:
    theirs, ours = config(tmp_path / "theirs"), config(tmp_path / "ours")
    with opened(theirs, kind) as store:
        writer = Writer(store)
        while store.log.end < 2 * theirs.segment_bytes + 10_000:
            writer.send(b"." * 500)
            writer.write()
        drop_oldest(store, 2)
        base, end = store.log.min, store.log.end
        data = bytes(store.log.whole_view(base)[: end - base])
        first = store.first_at_or_behind("t", 0, base)
    assert base == 2 * theirs.segment_bytes
    with opened(ours, kind, clean=clean, begin_at=base) as store:
        assert (store.log.min, store.log.end, store.marks.dispatched.offset, store.recovered.end) == (base,) * 4  # type: ignore[attr-defined]
    with opened(ours, kind, clean=clean) as store:
        assert (store.log.min, store.log.end) == (base, base), "still without a record"
        assert store.receive(base, data)[0] == end
        assert store.kernel.queue_state("t", 0)[:2] == (first, len(writer.expected["t", 0]))
        found = bodies(store)
    with opened(ours, kind) as store:
        assert bodies(store) == found == writer.expected["t", 0][first:]

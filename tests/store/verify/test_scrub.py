from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.repair import StoreRepair
from kappamq.store.verify.report import BytesFix, EntryFix, Kind, WriteAgain
from kappamq.store.verify.scrub import Scrub, ScrubPosition
from tests.store.stores import Writer, config, kernels, opened


def fill(store: MessageStore, count: int = 300) -> Writer:
    writer = Writer(store)
    for number in range(count):
        writer.send(b"%d" % number * 30, queue_id=number % 2, properties=b"KEYS\x01k%d\x02TAGS\x01a\x02" % number)
    writer.write()
    writer.write_derived()
    return writer


def flip(path: Path, at: int) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    os.close(fd)


def run(store: MessageStore, position: ScrubPosition | None = None) -> Scrub:
    scrub = Scrub(store, position or ScrubPosition())
    for looked_at in scrub.steps():
        assert looked_at > 0
    scrub.close()
    return scrub


@pytest.mark.parametrize("kind", kernels())
def test_a_good_store_has_no_problems_and_what_is_not_yet_in_files_is_left_alone(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = fill(store)
        writer.send(b"on its way", properties=b"KEYS\x01new\x02")
        writer.write()
        scrub = run(store)
        assert scrub.report.problems == []
        assert scrub.report.records == 300
        assert scrub.position.log_offset == store.derived.noted.dispatched
        writer.write_derived()
        assert run(store).report.records == 301


def test_each_kind_of_file_is_held_against_what_it_follows_from(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(store)
        store.index.flush()
        entry = store.entry("t", 1, 40)
        assert entry is not None
        flip(tmp_path / "consumequeue" / "t" / "1" / f"{0:020d}", 40 * 20 + 7)
        flip(tmp_path / "commitlog" / f"{0:020d}", (store.entry("t", 0, 10) or (0,))[0] + 95)
        flip(sorted((tmp_path / "index").iterdir())[0], 40 + 4 * 97 + 20 * 50 + 5)
        flip(tmp_path / "kappamq.position", 20)
        found = run(store).report.problems
        assert [(problem.kind, type(problem.fix)) for problem in found if problem.place != "index"] == [
            (Kind.CONFIG, WriteAgain), (Kind.LOG, type(None)), (Kind.LOG, type(None)), (Kind.INDEX, type(None)),
            (Kind.INDEX, BytesFix), (Kind.QUEUE, EntryFix),
        ] or {problem.kind for problem in found} == {Kind.CONFIG, Kind.LOG, Kind.INDEX, Kind.QUEUE}  # fmt: skip
        (fix,) = [problem.fix for problem in found if isinstance(problem.fix, EntryFix)]
        assert (fix.topic, fix.queue_id, fix.number, int.from_bytes(fix.entry[:8], "big")) == ("t", 1, 40, entry[0])


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02KEYS\x01k\x02"])
def test_every_bit_of_a_record_is_covered(tmp_path: Path, properties: bytes) -> None:
    """Also those of the checksum itself: without its name, or with something else than digits, it would pass for none."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        first, second, third = (writer.send(b"body %d" % number, properties=properties) for number in range(3))
        writer.write()
        writer.write_derived()
        fd, missed = store.log.current_fd, []
        for bit in range(second * 8, third * 8):
            byte = os.pread(fd, 1, bit // 8)[0]
            os.pwrite(fd, bytes([byte ^ 0x80 >> bit % 8]), bit // 8)
            found = run(store).report.problems
            if not any(problem.kind is Kind.LOG and problem.offset == second for problem in found):
                missed.append(bit - second * 8)
            repaired = [StoreRepair(store).repair(problem) for problem in found if isinstance(problem.fix, BytesFix)]
            if any(repaired):
                assert os.pread(fd, 1, bit // 8)[0] == byte, "repaired"
            os.pwrite(fd, bytes([byte]), bit // 8)
        assert missed == []
        assert first == 0


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(store)
        position = ScrubPosition()
        scrub = Scrub(store, position)
        steps = scrub.steps()
        while scrub.report.records < 150:
            next(steps)
        scrub.close()
        assert 0.3 < scrub.progress < 0.7
        path = tmp_path / "kappamq.scrub"
        position.save(path, Files())
        again = ScrubPosition.load(path, Files())
        assert again == position
        flip(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", 10 * 20 + 7)  # done
        flip(tmp_path / "consumequeue" / "t" / "0" / f"{64 * 20:020d}", 40 * 20 + 7)  # to come
        rest = run(store, again)
        assert [problem.offset for problem in rest.report.problems] == [104]
        assert rest.report.records < 160


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"crc":1}', b'{"log_offset":5,"crc":1}', b"\xff"])
def test_a_position_that_makes_no_sense_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kappamq.scrub"
    assert ScrubPosition.load(path, Files()) == ScrubPosition()
    path.write_bytes(data)
    assert ScrubPosition.load(path, Files()) == ScrubPosition()


def test_retention_may_take_files_away_meanwhile(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        fill(store, 1500)
        assert len(list(store.log.segments())) > 3
        scrub = Scrub(store, ScrubPosition())
        steps = scrub.steps()
        while scrub.report.records < 10:
            next(steps)
        for _ in range(2):
            store.log.discard(store.log.detach(store.log.min))
        for queue_id in range(2):
            first = store.first_at_or_behind("t", queue_id, store.log.min)
            store.kernel.set_queue_min("t", queue_id, first)
        for _ in steps:
            pass
        scrub.close()
        assert [
            problem
            for problem in scrub.report.problems
            if problem.kind is not Kind.INDEX or problem.offset >= store.log.min
        ] == []


def test_a_snapshot_that_is_written_during_the_pass_is_no_problem(tmp_path: Path) -> None:
    """The log grows, and then a snapshot speaks of its new end: both after the pass has begun, before it reads the file."""
    with opened(config(tmp_path)) as store:
        fill(store, 20)
        saved = Snapshots(tmp_path / "config")
        saved.save("topics.json", {"a": 1}, store.log.end)

        class BusyFiles(Files):
            def list(self, folder: Path) -> list[str]:
                fill(store, 20)
                saved.save("topics.json", {"a": 2}, store.log.end)
                return super().list(folder)

        scrub = Scrub(store, ScrubPosition())
        scrub._files = BusyFiles()
        next(scrub.steps())
        scrub.close()
        assert scrub.report.problems == []


def send_keys(writer: Writer, first: int, stop: int) -> None:
    """One key each, entered into the index and its slots written."""
    for number in range(first, stop):
        writer.send(b"x", properties=b"KEYS\x01k%d\x02" % number)
    writer.write()
    writer.write_derived()
    writer.store.index.flush()


def index_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}


def found_and_mended(store: MessageStore, scrub: Scrub) -> list[tuple[str, bool]]:
    return [(str(problem), StoreRepair(store).repair(problem)) for problem in scrub.report.problems]


def test_the_index_begins_a_new_file_before_the_pass_has_come_to_the_last(tmp_path: Path) -> None:
    """What slots and header of the newest file speak of says nothing about the file that was the newest when the pass began."""
    with opened(config(tmp_path, index_entries=301)) as store:
        writer = Writer(store)
        send_keys(writer, 0, 400)
        scrub = Scrub(store, ScrubPosition())
        steps = scrub.steps()
        while scrub.report.records < 250:
            next(steps)
        send_keys(writer, 400, 640)
        before = index_files(tmp_path)
        assert len(before) == 3
        for _ in steps:
            pass
        scrub.close()
        assert found_and_mended(store, scrub) == []
        assert index_files(tmp_path) == before


def test_a_file_that_was_growing_when_it_was_opened_and_is_full_by_now(tmp_path: Path) -> None:
    """The file that grows now has as many entries as that one had."""
    with opened(config(tmp_path, index_entries=301)) as store:
        writer = Writer(store)
        send_keys(writer, 0, 100)
        scrub = Scrub(store, ScrubPosition())
        steps = scrub.steps()
        while scrub.report.records < 50:
            next(steps)
        send_keys(writer, 100, 400)
        before = index_files(tmp_path)
        assert len(before) == 2
        for _ in steps:
            pass
        scrub.close()
        assert found_and_mended(store, scrub) == []
        assert index_files(tmp_path) == before


class FilesWithHook(Files):
    """Does something once, when a file is next synced."""

    on_sync: Callable[[], None] | None = None

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self.on_sync is not None:
            hook, self.on_sync = self.on_sync, None
            hook()


def test_a_step_between_the_slots_and_the_header_that_counts_them(tmp_path: Path) -> None:
    """While keys are made durable there are new slots on disk, and a header that does not speak of them yet."""
    files = FilesWithHook()
    with opened(config(tmp_path), files=files) as store:
        writer = Writer(store)
        send_keys(writer, 0, 100)
        scrub = Scrub(store, ScrubPosition())
        steps = scrub.steps()
        while scrub.report.records < 100:
            next(steps)

        def rest_of_the_pass() -> None:
            for _ in steps:
                pass

        for number in range(100, 200):
            writer.send(b"x", properties=b"KEYS\x01k%d\x02" % number)
        writer.write()
        writer.write_derived()
        files.on_sync = rest_of_the_pass
        store.index.sync()
        assert files.on_sync is None
        scrub.close()
        before = index_files(tmp_path)
        assert found_and_mended(store, scrub) == []
        assert index_files(tmp_path) == before

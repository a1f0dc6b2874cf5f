"""Ranges of the log read side by side give what one gives who reads it from its beginning."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq import native
from kappamq.native.layout import GAP_ENTRIES_MAX
from kappamq.protocol.records.record import Record
from kappamq.store.files import Files
from kappamq.store.log.log_end import LogEnd
from kappamq.store.log.log_ranges import Part, RangeReader, cut
from kappamq.store.log.log_reader import LogReader
from kappamq.store.log.stretches import Stretch
from kappamq.store.rebuilding import NewFiles, Sizes
from tests.store.derived_files import assert_same, derived
from tests.store.stores import START_MS, Writer, config, kernels, opened

SIZES = Sizes(queue_file_entries=64, index_slots=97, index_entries=1000)
SEGMENT = 64 << 10


def put(root: Path, records: list[Record]) -> LogReader:
    """A log of exactly these records."""
    data = bytearray()
    for record in records:
        record.log_offset = len(data)
        data += record.encode()
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(data).ljust(SEGMENT, b"\0"))
    return LogReader(root / "commitlog")


def build(root: Path, log: LogReader, stretches: list[Stretch], kind: str) -> dict[str, bytes]:
    module = native.load(kind)
    new = NewFiles(root, SIZES, module, Files())
    reader = RangeReader(log, LogEnd(), module)
    at = 0
    for stretch in stretches:
        if stretch.stop > at:
            part = reader.read(Stretch(at, stretch.stop))
            new.add(part)
            at = part.reached
            if part.is_end:
                break
    new.index.flush()
    found = derived(new.folder)
    new.remove()
    return found


@pytest.mark.parametrize("kind", kernels())
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 70) | st.just(GAP_ENTRIES_MAX + 100)), max_size=60),
    st.integers(1, 4000),
)
def test_numbers_that_jump_and_go_back(
    tmp_path_factory: pytest.TempPathFactory, kind: str, numbers: list[tuple[str, int]], stretch_bytes: int
) -> None:
    """As in a log that lost parts, or whose topics were made again by a Java broker."""
    root = tmp_path_factory.mktemp("store")
    log = put(
        root, [Record(topic=topic, body=b"m", queue_offset=number, stored_ms=START_MS) for topic, number in numbers]
    )
    one = build(root, log, [Stretch(0, SEGMENT)], kind)
    assert_same(build(root, log, cut(log, stretch_bytes), kind), one)
    log.close()


def test_cuts_lie_at_records_and_file_starts(tmp_path: Path) -> None:
    places = []
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        for number in range(300):
            places.append(writer.send(b"x" * (number % 700)))
        writer.write()
    log = LogReader(tmp_path / "commitlog")
    stretches = cut(log, 5000)
    assert len(stretches) > 10
    assert stretches[0].start == 0
    assert stretches[-1].stop == log.limit
    assert all(one.stop == other.start for one, other in pairwise(stretches))
    assert {one.start for one in stretches} <= {*places, *log.starts}
    log.close()


def test_cuts_lie_at_the_first_record_of_a_batch(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        firsts = set()
        for _ in range(12):
            writer.write()
            firsts.add(store.log.end)
            writer.batch([b"member" * 20] * 15)
        writer.write()
    log = LogReader(tmp_path / "commitlog")
    reader = RangeReader(log, LogEnd(), native.load("twin"))
    stretches = cut(log, 4000)
    # (In the last batch of all there is no next one.)
    assert {one.start for one in stretches if one.start < max(firsts)} <= firsts
    for stretch in stretches[:-2]:
        assert reader.read(stretch).reached == stretch.stop
    # One that begins within a batch: who reads the one before goes to the end of the batch.
    assert reader.read(Stretch(0, 500)).reached in firsts | {log.end()}
    log.close()


def test_a_record_longer_than_what_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        places = [writer.send(b"x" * 15_000) for _ in range(6)]
        writer.write()
        end = store.log.end
    monkeypatch.setattr("kappamq.store.log.log_ranges.READ_BYTES", 512)
    log = LogReader(tmp_path / "commitlog")
    reader = RangeReader(log, LogEnd(), native.load("twin"))
    part = reader.read(Stretch(0, log.limit))
    assert (part.records, part.reached, part.is_end) == (6, end, True)
    part = reader.read(Stretch(0, places[1] + 1))
    assert part.reached > places[1]
    log.close()


def test_parts_are_kept_in_files(tmp_path: Path) -> None:
    part = Part(7, 99, 3, False, "", [(20, 30)], [("t", 1, 5, b"e" * 40), ("ü", 0, 0, b"")], b"k" * 20)
    (tmp_path / "aside").write_bytes(b"of another attempt that was killed" * 100)
    part.save(tmp_path / "part", tmp_path / "aside", Files())
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
    again = Part.load(tmp_path / "part", Files())
    assert (again.start, again.reached, again.records, again.damage, again.keys) == (7, 99, 3, [(20, 30)], b"k" * 20)
    assert [(*rest, bytes(entries)) for *rest, entries in again.queues] == part.queues

"""What a power cut may leave of queue files and of the position, and that a start makes the same of it as if nothing had been missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.stores import START_MS, Writer, check, config, drop_oldest, flush, kernels, make, opened

QUEUE_FILE_ENTRIES = 64


@pytest.mark.parametrize("kind", kernels())
def test_a_queue_that_has_lost_its_first_file_gets_it_back(tmp_path: Path, kind: str) -> None:
    settings = config(tmp_path, flush="sync", queue_file_entries=QUEUE_FILE_ENTRIES)
    store = make(settings, kind)
    store.open("one boot")
    writer = Writer(store)
    for number in range(QUEUE_FILE_ENTRIES + 10):
        writer.send(b"%d" % number)
    writer.write()
    flush(store)
    writer.write_derived()
    store.close(clean=False)
    (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").unlink()
    with opened(settings, kind, boot="another boot") as again:
        check(again, writer)
        assert again.kernel.queue_state("t", 0)[:2] == (0, QUEUE_FILE_ENTRIES + 10)


@pytest.mark.parametrize("kind", kernels())
def test_a_log_that_has_lost_files_since_its_queues_were_synced_is_still_ours(tmp_path: Path, kind: str) -> None:
    settings = config(tmp_path, flush="sync")
    store = make(settings, kind)
    store.open("one boot")
    writer = Writer(store)
    while store.log.end < 2 * settings.segment_bytes:
        writer.send(bytes(2_000))
        writer.write()
    flush(store)
    writer.write_derived()
    drop_oldest(store, 1)
    assert store.derived.noted.synced < store.log.min
    store.close(clean=False)
    with opened(settings, kind, boot="another boot") as again:
        found = again.recovered  # type: ignore[attr-defined]
        assert (found.writer, found.contradicted) == ("ours", False)
        first, end, *_rest = again.kernel.queue_state("t", 0)
        assert 0 < first < end == len(writer.expected["t", 0])
        entry = again.entry("t", 0, first)
        assert entry is not None
        assert entry[0] >= again.log.min


def test_a_position_that_is_torn_says_nothing_about_who_wrote_the_log(tmp_path: Path) -> None:
    settings = config(tmp_path, flush="sync")
    store = make(settings)
    store.open("one boot")
    writer = Writer(store)
    writer.send(b"x")
    writer.write()
    flush(store)
    writer.write_derived()
    store.close(clean=False)
    (tmp_path / "kappamq.position").write_bytes(b"")
    with opened(settings, boot="another boot") as again:
        check(again, writer)
        assert not again.recovered.contradicted  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", kernels())
def test_a_copy_looks_through_its_whole_log_where_the_position_is_torn_and_times_went_back(
    tmp_path: Path, kind: str
) -> None:
    """Its leaders' clocks differed, so the checkpoint, which speaks of times, vouches for less than it seems to."""
    settings = config(tmp_path, flush="sync", queue_file_entries=1000)
    store = make(settings, kind)
    store.open("one boot")
    writer = Writer(store)
    writer.send(b"first", queue_id=0)
    writer.write()
    writer.now_ms += 60_000
    writer.send(b"of one whose clock is ahead", queue_id=1)
    writer.write()
    flush(store)
    writer.write_derived()
    store.sync_derived(store.collect())
    writer.now_ms = START_MS
    while store.log.end < 3 * settings.segment_bytes:
        for queue_id in (0, 1):
            writer.send(bytes(1_000), queue_id=queue_id)
        writer.write()
    flush(store)
    writer.write_derived()
    store.close(clean=False)
    (tmp_path / "kappamq.position").write_bytes(b"")
    with (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").open("r+b") as queue:
        queue.seek(20)
        queue.write(bytes(999 * 20))  # what was not synced
    with opened(settings, kind, boot="another boot", enter_up_to=0) as again:
        again.follow_marks()
        check(again, writer)

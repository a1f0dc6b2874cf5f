"""Where queues begin and end, as a broker sets it."""

from __future__ import annotations

from pathlib import Path

from kappamq.native.layout import ENTRY
from tests.store.stores import Writer, config, opened


def test_a_queue_that_restarts_is_empty_and_goes_on_numbering(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        for body in (b"a", b"b"):
            writer.send(body)
        writer.write()
        assert store.queue_state("t", 0).end == 2
        store.restart_queue("t", 0, 7)
        state = store.queue_state("t", 0)
        assert (state.first, state.end, state.next) == (7, 7, 7)
        assert store.queue_ids("t") == [0]


def test_a_raised_minimum_hides_what_lies_below(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        for body in (b"a", b"b", b"c"):
            writer.send(body)
        writer.write()
        store.raise_minimum("t", 0, 2)
        assert store.queue_state("t", 0).first == 2
        assert store.entry("t", 0, 1) is None
        assert store.entry("t", 0, 2) is not None


def test_entries_in_memory_and_records_are_asked_of_the_store(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        writer.send(b"a")
        assert store.append_offset > store.log.end, "appended, not written"
        writer.write()
        assert store.append_offset == store.log.end
        assert len(store.tail_entries("t", 0, 0, 10)) == ENTRY.size
        assert store.put_count == 1


def test_only_the_end_of_the_log_is_taken_to_be_in_memory(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        writer.send(b"a" * 500)
        writer.write()
        store.keep_hot(store.log.end)
        assert store.hot_from == 0
        store.keep_hot(100)
        assert store.hot_from == store.log.end - 100
        store.keep_hot(store.log.end)
        assert store.hot_from == store.log.end - 100, "what was let go is read by a worker"

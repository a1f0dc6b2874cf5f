"""What can be found in an open store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.stores import START_MS, Writer, config, kernels, opened


@pytest.mark.parametrize("kind", kernels())
def test_messages_are_found_by_place_number_time_and_key(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        places = [writer.send(b"%d" % number, properties=b"KEYS\x01k%d\x02" % number) for number in range(9)]
        other = writer.send(b"other", queue_id=1)
        writer.write()
        found = store.decoded(places[4])
        assert found is not None
        assert (found.body, found.queue_offset) == (b"4", 4)
        assert store.record(places[4]) == bytes(store.log.slice(places[4], places[5] - places[4]))
        assert store.record(places[4] + 1) is None
        assert store.record(store.log.end) is None
        assert [(store.entry("t", 0, number) or (None,))[0] for number in (0, 8, 9)] == [places[0], places[8], None]
        assert store.first_at_or_behind("t", 0, places[3] + 1) == 4
        assert store.first_at_or_behind("t", 0, other) == 9
        assert store.store_ms("t", 0, 2) == START_MS + 3
        assert (store.search("t", 0, START_MS + 3), store.search("t", 0, START_MS + 3, upper=True)) == (2, 2)
        writer.write_derived()
        assert store.query("t", "k7", 10, 0, 1 << 60) == [places[7]]
        assert store.query("t", "k7", 10, START_MS + 2000, 1 << 60) == []


def test_what_is_warmed_is_entered_where_the_loop_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(config(tmp_path), kernels()[0]) as store:
        writer = Writer(store)
        for number in range(3):
            writer.send(b"%d" % number)
        writer.write()
        end, entered = store.log.end, []
        monkeypatch.setattr(store.log, "enter", lambda at, size: entered.append((at, size)))
        store.warm(10, end)
        store.warm(store.config.segment_bytes - 5, 10)
        assert entered == [(10, end - 10)], "nothing behind the end of the log"
        monkeypatch.undo()
        store.log.enter(10, 100)
        store.log.enter(7 * store.config.segment_bytes, 100)  # deleted meanwhile

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kappamq.native.layout import ENTRY
from kappamq.protocol.names import SCHEDULE_TOPIC
from kappamq.store.log.log_reader import Found, LogReader
from kappamq.store.message_store import MessageStore
from kappamq.store.queues.entry_repair import entry_of, find_record
from tests.store.stores import Writer, config, opened


def find(store: MessageStore, number: int, wrong: dict[int, tuple[int, int, int]], queue_id: int = 0) -> Found | int:
    reader = LogReader(store.log.folder)
    try:
        bounds = store.kernel.queue_state("t", queue_id)[:2]
        return find_record(
            reader,
            "t",
            queue_id,
            number,
            bounds,
            store.log.end,
            lambda n: wrong.get(n) or store.entry("t", queue_id, n),
        )
    finally:
        reader.close()


@pytest.mark.parametrize("number", [0, 1, 57, 99])
@pytest.mark.parametrize("spread", [0, 1, 40])
def test_the_record_is_found_between_its_neighbours(tmp_path: Path, number: int, spread: int) -> None:
    """Also at both ends of the queue, and if neighbours lead elsewhere, too."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        for place in range(100):
            writer.send(b"%d" % place)
            writer.send(b"other %d" % place, queue_id=1)
        writer.write()
        other = store.entry("t", 1, 5)
        assert other is not None
        wrong = dict.fromkeys(range(number - spread, number + spread + 1), other)
        found = find(store, number, wrong)
        assert isinstance(found, Found)
        assert found.record.body == b"%d" % number
        assert entry_of(found, ()) == ENTRY.pack(*(store.entry("t", 0, number) or ()))


def test_a_record_that_the_log_lost_is_not_found(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        offsets = [writer.send(b"%d" % place) for place in range(20)]
        writer.write()
        os.pwrite(store.log.current_fd, b"\xff" * 30, offsets[7])
        assert find(store, 7, {}) == 8
        assert isinstance(find(store, 8, {7: (0, 100, 0), 8: (0, 100, 0)}), Found)
        os.pwrite(store.log.current_fd, bytes(offsets[15] - offsets[9]), offsets[9])
        assert find(store, 9, {}) == 15, "and not one by one"
        assert find(store, 7, {}) == 8
        os.pwrite(store.log.current_fd, bytes(store.log.end - offsets[9]), offsets[9])
        assert find(store, 9, {}) == 20, "the queue's end"


def test_entries_say_what_dispatch_says(tmp_path: Path) -> None:
    """Tags, and in the schedule topic the time at which a message is due."""
    delays = (1000, 5000, 10_000)
    with opened(config(tmp_path)) as store:
        store.kernel.delays_ms = delays
        writer = Writer(store)
        for topic, text in [
            ("t", b"TAGS\x01TagA\x02"), ("t", b""), ("t", b"TAGS\x01\xc3\xa9t\xc3\xa9\x02"), (SCHEDULE_TOPIC, b"DELAY\x013\x02"),
            (SCHEDULE_TOPIC, b"DELAY\x0199\x02TAGS\x01x\x02"), (SCHEDULE_TOPIC, b"DELAY\x01odd\x02"), (SCHEDULE_TOPIC, b"TAGS\x01x\x02"),
        ]:  # fmt: skip
            store.kernel.append(topic, 0, 0, 0, 1_700_000_000_000, bytes(8), 0, 0, b"body", text, 1_700_000_000_000)
        writer.write()
        reader = LogReader(store.log.folder)
        entries = {(name, first + at // 20): data[at : at + 20]
                   for name, _id, first, data in store.kernel.take_entries(9) for at in range(0, len(data), 20)}  # fmt: skip
        assert len(entries) == 7
        for item in reader.scan():
            assert isinstance(item, Found)
            assert entry_of(item, delays) == entries[item.record.topic, item.record.queue_offset]
        reader.close()

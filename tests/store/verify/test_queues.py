from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.native.layout import ENTRY
from kappamq.protocol.names import SCHEDULE_TOPIC
from kappamq.store.log.log_reader import Found, LogReader
from kappamq.store.verify.queues import QueueCheck
from kappamq.store.verify.report import EntryFix, Report
from tests.store.stores import Writer, config, opened

DELAYS = (1000, 5000, 60_000)


class Entries:
    """The entries of one queue."""

    def __init__(self, rows: list[bytes], low: int = 0) -> None:
        self.rows = rows
        self.low = low

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.low, len(self.rows)

    def read(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        return b"".join(self.rows[first : first + count])


def stored(tmp_path: Path, topic: str, texts: list[bytes]) -> tuple[list[Found], list[bytes]]:
    """Records and their entries, as dispatch makes them."""
    with opened(config(tmp_path)) as store:
        store.kernel.delays_ms = DELAYS
        writer = Writer(store)
        for text in texts:
            writer.send(b"body", topic=topic, properties=text)
        writer.write()
        ((_topic, _id, _first, data),) = store.kernel.take_entries(9)
        reader = LogReader(store.log.folder)
        found = [item for item in reader.scan() if isinstance(item, Found)]
        reader.close()
    return found, [data[at : at + 20] for at in range(0, len(data), 20)]


def checked(found: list[Found], entries: Entries) -> Report:
    report = Report(Path(), 100)
    check = QueueCheck(entries, 1 << 62, report, DELAYS)
    for item in found:
        check.record(item, item.record.property_map())
    return report


@pytest.mark.parametrize("topic", ["t", SCHEDULE_TOPIC])
@pytest.mark.parametrize("bit", range(160))
def test_every_bit_of_an_entry_is_covered(tmp_path: Path, topic: str, bit: int) -> None:
    found, rows = stored(tmp_path, topic, [b"TAGS\x01a\x02DELAY\x012\x02"] * 6)
    assert checked(found, Entries(rows)).ok
    spoilt = bytearray(rows[3])
    spoilt[bit // 8] ^= 0x80 >> bit % 8
    if (topic == SCHEDULE_TOPIC and bit >= 160 - 16) or (topic == "t" and bit >= 96 and spoilt[12] & 0x80):
        return  # a due time less than a minute off, or what looks like an address in a file of Java's queue extension
    report = checked(found, Entries([*rows[:3], bytes(spoilt), *rows[4:]]))
    assert [problem.fix for problem in report.problems] == [EntryFix(topic, 0, 3, rows[3])]


def test_delays_that_were_others_once_are_believed(tmp_path: Path) -> None:
    found, rows = stored(tmp_path, SCHEDULE_TOPIC, [b"DELAY\x013\x02"] * 6)
    moved = [ENTRY.pack(*ENTRY.unpack(row)[:2], ENTRY.unpack(row)[2] + 540_000) for row in rows]
    assert checked(found, Entries(moved)).ok, "all of them"
    assert checked(found, Entries(moved[:3] + rows[3:])).ok, "those before the change"
    assert not checked(found, Entries([*rows[:3], moved[3], *rows[4:]])).ok, "but not one alone"


def test_a_jump_in_the_numbers_is_told(tmp_path: Path) -> None:
    found, rows = stored(tmp_path, "t", [b""] * 4)
    report = checked([found[0], *found[2:]], Entries(rows))
    assert [problem.meaning for problem in report.problems] == ["the record has queue offset 2, expected was 1"]

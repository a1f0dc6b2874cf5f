"""Timers on disk: entering, loading, and going on after whoever was here before."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.timers.book import WEEK_MS, Loaded, TimerBook
from kappamq.broker.timers.progress import FOREVER, Late, TimerProgress
from kappamq.broker.timers.upcoming import Timer, Upcoming
from kappamq.errors import StoreDamaged
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records.tags import java_hash
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from kappamq.store.timer.entries import CANCEL, PLAIN, ROLL, ROLL_MS, TimerCheckpoint
from kappamq.store.timer.files import TimerFiles
from tests.store.stores import BORN, config, make

T = 1_700_000_000_000
NEVER = 1 << 62


class Bench:
    """A store with a timer topic, and a book over it."""

    def __init__(self, root: Path, store: MessageStore, boot: str = "boot") -> None:
        self.root = root
        self.store = store
        self.progress = TimerProgress()
        self.book = TimerBook(store, TimerFiles(root, 52 * 100 + 16, Files(), boot))

    def park(self, due: int, stored: int = T, topic: str = "tea", **more: str) -> int:
        """One more message of the timer topic; its log offset."""
        out = (T + due - 1) // 1000 * 1000
        pairs = {
            "TIMER_OUT_MS": str(out),
            "TIMER_DELIVER_MS": str(T + due),
            "REAL_TOPIC": topic,
            "REAL_QID": "0",
        } | more
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
        log_offset: int = self.store.kernel.append(TIMER_TOPIC, 0, 0, 0, stored, BORN, 0, 0, b"x", text, stored)[0]
        self.store.write(stored)
        return log_offset

    def enter(self, first: int = 0, loaded_ms: int = 0) -> Any:
        end = self.store.kernel.queue_state(TIMER_TOPIC, 0).end
        return self.book.enter(first, end - first, b"", loaded_ms, self.progress, T, NEVER)

    def load(self, low: int = 0, high: int = 100_000, count_max: int = 1000) -> tuple[list[Timer], Loaded]:
        loaded = self.book.load(T + low, T + high, T + WEEK_MS, count_max, self.progress)
        near = Upcoming()
        near.load(loaded.buckets)
        return sorted(near), loaded


@contextmanager
def bench(root: Path, boot: str = "boot") -> Iterator[Bench]:
    store = make(config(root))
    store.open(boot)
    try:
        yield Bench(root, store, boot)
    finally:
        store.close()


def test_entered_and_loaded(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        opened = it.book.open(it.progress)
        assert (opened.queue_offset, opened.rebuilt, opened.change) == (0, True, None)
        offsets = [it.park(due) for due in (5500, 1001, 5400, 60_000)]
        it.park(5450, TIMER_DEL_UNIQKEY="tea+u")
        offsets.append(it.park(ROLL_MS + 5000))
        entered = it.enter(loaded_ms=T + 2000)
        assert (entered.queue_offset, entered.stored_ms, entered.counts) == (6, T, {b"tea": 5})
        assert [timer[:2] for timer in entered.upcoming] == [(T + 1001, offsets[1])]
        assert entered.slots == [T + 5000, T + 59_000, T + ROLL_MS // 2 - 1000]
        timers, loaded = it.load(high=10_000)
        assert [(timer.due_ms - T, timer.kind) for timer in timers] == [
            (1001, PLAIN), (5400, PLAIN), (5450, PLAIN | CANCEL), (5500, PLAIN)
        ]  # fmt: skip
        assert (loaded.upto_ms, loaded.cancels, loaded.next_slot) == (T + 10_000, [("tea+u", T + 5450)], T + 59_000)
        timers, loaded = it.load(60_000, ROLL_MS)
        assert [(timer.due_ms, timer.log_offset, timer.kind) for timer in timers] == [
            (T + ROLL_MS // 2, offsets[4], PLAIN | ROLL)
        ]
        assert loaded.next_slot is None
        # No more than asked for, but whole slots.
        timers, loaded = it.load(count_max=2)
        assert (len(timers), loaded.upto_ms, loaded.next_slot) == (4, T + 6000, T + 59_000)
        it.progress.apply("timer", {"due": [T + 5400, offsets[2]]})
        assert [timer.due_ms - T for timer in it.load(high=10_000)[0]] == [5450, 5500], "what is done is left out"


def test_records_that_are_at_hand_need_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is at hand, and up to where it makes sense: what is entered is the same."""
    entered = []
    for part in (0.0, 0.5, 0.9, 1.0):
        with bench(tmp_path / str(part)) as it:
            it.book.open(it.progress)
            places = [it.park(1000 * due) for due in (5, 3, 9, 1)]
            records = b"".join(bytes(it.store.record(place) or b"") for place in places)
            at_hand = records[: round(len(records) * part)]
            read: list[int] = []
            slice_of = it.store.log.slice

            def watched(at: int, size: int, slice_of: Any = slice_of, read: list[int] = read) -> memoryview:
                read.append(at)
                view: memoryview = slice_of(at, size)
                return view

            monkeypatch.setattr(it.store.log, "slice", watched)
            entered.append(it.book.enter(0, 4, b"", T + 5000, it.progress, T, NEVER, at_hand))
            assert len(read) == {0.0: 4, 0.5: 2, 0.9: 1, 1.0: 0}[part]
    assert entered[0].counts
    assert entered[1:] == entered[:-1]


def test_after_a_stop_or_a_death(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        for due in (1500, 2500, 2600):
            it.park(due)
        it.enter()
        it.park(3500)
    with bench(tmp_path) as it:
        opened = it.book.open(it.progress)
        assert (opened.queue_offset, opened.rebuilt) == (3, False)
        assert it.enter(3).queue_offset == 4
        it.progress.apply("timer", {"due": [T + 2500, FOREVER]})
        last = it.load()[0][0]
        it.book.close(T + 2500, T + 2500, 4, [last])
    with bench(tmp_path, "another boot") as it:
        opened = it.book.open(it.progress)
        assert (opened.queue_offset, opened.read_ms, opened.rebuilt) == (4, T, False), "what is done the log tells"
        timers, _loaded = it.load()
        assert [timer.due_ms - T for timer in timers] == [1500, 2600, 3500], "the slot that was begun has only its rest"
        it.book.save(T, T)
        assert it.book.files.checkpoint.queue_offset == 4, "as far as they were entered, whoever asks"
    with bench(tmp_path, "a third boot") as it:
        it.progress.apply("timer", {"due": [T + 2500, FOREVER]})
        opened = it.book.open(it.progress)
        assert (opened.queue_offset, opened.rebuilt) == (0, True), "after a power cut nothing is trusted"
        assert it.enter().counts == {b"tea": 2}


def test_what_makes_no_sense_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        for due in (1500, 1600):
            it.park(due)
        it.enter()
        it.book.files.close()
        path = tmp_path / "timerlog" / f"{0:020d}"
        path.write_bytes(bytes(52) + path.read_bytes()[52:])
        it.book.open(it.progress)
        with pytest.raises(StoreDamaged):
            it.load()
        assert it.book.rebuild(it.progress, "for a test").queue_offset == 0
        assert "for a test" in caplog.text
        it.enter()
        assert len(it.load()[0]) == 2
        (tmp_path / "timerwheel").write_bytes(b"x")
        assert it.book.open(it.progress).rebuilt


def test_records_that_are_no_timers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        it.store.kernel.append(TIMER_TOPIC, 0, 0, 0, T, BORN, 0, 0, b"x", b"KEYS\x01k\x02", T)
        it.park(1500)
        assert (it.enter().queue_offset, len(it.load()[0])) == (2, 1)
        assert "is not a timer" in caplog.text


def as_java(root: Path, checkpoint: TimerCheckpoint) -> None:
    """Make the files look as if RocketMQ had written them: no stamp, no exact times."""
    (root / "config" / "timercheck").write_bytes(checkpoint.encode().ljust(4096, b"\0"))
    for path in (root / "timerlog").iterdir():
        data = bytearray(path.read_bytes())
        for at in range(0, len(data) - 52, 52):
            if data[at : at + 4] == (52).to_bytes(4, "big"):
                struct.pack_into(">q", data, at + 44, 0)
        path.write_bytes(data)


def test_taking_over_from_rocketmq(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        for due in (1500, 2700, 2100, ROLL_MS + 5000):
            it.park(due)
        it.park(3600, TIMER_DELIVER_MS="0")  # only RocketMQ's own property says when
        it.enter()
        it.park(1800, stored=T + 1000)  # stored and not entered, and its slot has passed
        it.park(4000, stored=T + 1000)
        it.book.files.close()
    as_java(tmp_path, TimerCheckpoint(T + 2000, 5 * 52, 5, 5, 0, T, 9))
    with bench(tmp_path) as it:
        opened = it.book.open(it.progress)
        late = [5, 7, T + 2000]
        assert opened.change == {"due": [T + 2000, FOREVER], "late": late, "foreign": T + 2000}
        assert (opened.queue_offset, opened.read_ms) == (5, T + 2000)
        it.progress.apply("timer", opened.change)
        again = it.book.open(it.progress)
        assert (again.queue_offset, again.change) == (5, None), (
            "died before it was ours: the same, and nothing is undone"
        )
        assert it.enter(5).counts == {b"tea": 1}, "the late one is not for the slots"
        after, timers = it.book.late(Late(*late), 10)
        assert (after, [timer.due_ms - T for timer in timers]) == (7, [1800])
        timers, _loaded = it.load()
        assert [timer.due_ms - T for timer in timers] == [2100, 2700, 4000, 4000]
        assert it.book.reach_ms(it.progress) == WEEK_MS
        far = it.load(100_000, ROLL_MS)[0]
        assert [(timer.due_ms, timer.kind) for timer in far] == [(T + ROLL_MS // 2, PLAIN | ROLL)]
    assert (tmp_path / "timerlog").exists()


def test_what_is_needed(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        offsets = [it.park(number * 1000 + 1, stored=T + number * ROLL_MS) for number in range(4)]
        assert it.book.needed_from(it.progress, 999) == (offsets[0], 0)
        it.progress.apply("timer", {"due": [T + 2 * ROLL_MS + 5000, 0]})
        assert it.book.needed_from(it.progress, 999) == (offsets[2], 2)
        it.progress.apply("timer", {"due": [T + 9 * ROLL_MS, 0]})
        assert it.book.needed_from(it.progress, 999) == (999, 4)
        it.book.forget_below(0)


def test_what_waits_is_counted_by_topic(tmp_path: Path) -> None:
    with bench(tmp_path) as it:
        it.book.open(it.progress)
        first = it.park(1000)
        for due, topic in ((2000, "tea"), (3000, "milk"), (4000, "tea"), (5000, "gone")):
            it.park(due, topic=topic)
        it.park(5450, TIMER_DEL_UNIQKEY="tea+u")
        it.enter()
        it.progress.apply("timer", {"due": [T + 1000, first]})
        names, end = {java_hash(name): name for name in ("tea", "milk")}, it.book.files.checkpoint.log_position
        assert it.book.count(0, end, names, it.progress) == ({"tea": 2, "milk": 1}, end)
        assert it.book.count(end, end, names, it.progress) == ({}, None)

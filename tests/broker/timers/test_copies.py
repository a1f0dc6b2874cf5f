"""What becomes of a timer when its time has come."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.timers.copies import TimerCopies, delete_key_of, due_of, real_topic, rolled
from kappamq.broker.timers.upcoming import Timer
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, decode
from kappamq.store.log.clock_steps import ClockStep, ClockSteps
from kappamq.store.timer.entries import CANCEL, PLAIN, ROLL
from tests.broker.running import run, running

T = 1_700_000_000_000


def parked(key: str, topic: str = "tea", due: int = T + 1500, **more: str) -> bytes:
    pairs = {
        "UNIQ_KEY": key, "REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str((due - 1) // 1000 * 1000),
        "TIMER_DELIVER_MS": str(due),
    } | more  # fmt: skip
    text = properties.encode(pairs)
    return Record(
        topic=TIMER_TOPIC, body=key.encode(), properties=text, stored_ms=T, log_offset=7, tail_crc=True
    ).encode()


def test_copies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.topics.update(TopicConfig("tea", 4, 4, 6))
            copies = TimerCopies(broker.topics, broker.store)
            timer, now = Timer(T + 1500, 7, 1, PLAIN), T + 1500
            records = [parked("a"), parked("b", topic="deleted"), None, parked("c")]
            made, gone, recalls = copies.make([timer] * 4, records, now)
            assert [(member[0], member[8]) for member in made] == [("tea", b"a"), ("tea", b"c")]
            assert (gone, recalls) == ({"tea": 2, "deleted": 1}, {})
            assert "cannot be read" in caplog.text
            # On the way to a later time it is parked again, as is a wish to drop it.
            far = parked("far", due=T + 9_000_000)
            wish = parked("wish", due=T + 9_000_000, TIMER_DEL_UNIQKEY="tea+far")
            station = [Timer(T, 7, 1, PLAIN | ROLL), Timer(T, 7, 1, PLAIN | ROLL | CANCEL)]
            made, gone, recalls = copies.make(station, [far, wish], now)
            assert [member[0] for member in made] == [TIMER_TOPIC] * 2
            assert [b"TIMER_ROLL_TIMES\x011" in member[9] for member in made] == [True] * 2
            assert (gone, recalls) == ({"tea": 1}, {})
            made, gone, recalls = copies.make(station, [far, wish], T + 9_000_000)
            assert [(member[0], member[8]) for member in made] == [("tea", b"far")], "its time came while we were away"
            assert recalls == {"tea+far": T + 9_000_000}, "somebody else with this key may be still to come"

    run(scenario())


def test_what_was_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.topics.update(TopicConfig("tea", 4, 4, 6))
            copies = TimerCopies(broker.topics, broker.store)
            copies.cancel([("tea+a", T + 1500)])
            timers = [Timer(T + 1500, 7, 1, PLAIN), Timer(T + 1500, 8, 1, PLAIN), Timer(T + 1500, 9, 1, PLAIN | CANCEL)]
            records = [parked("a"), parked("b"), parked("a", TIMER_DEL_UNIQKEY="tea+a")]
            copies.passed(T + 1999)
            made, gone, _wishes = copies.make(timers, records, T + 1500)
            assert [member[8] for member in made] == [b"b"]
            assert gone == {"tea": 2}
            copies.passed(T + 2001)
            assert len(copies.make(timers, records, T + 1500)[0]) == 2, "forgotten with its second"

    run(scenario())


def test_reading_records() -> None:
    record = decode(parked("a"))
    never = ClockSteps()
    assert (due_of(record, never), delete_key_of(record), real_topic(parked("a"))) == (T + 1500, "tea+a", "tea")
    assert due_of(Record(topic="t", body=b"", properties=f"TIMER_OUT_MS\x01{T}\x02"), never) == T + 1000
    again = rolled(record, T + 1500)
    assert (again.waited, again.source, again.properties["TIMER_ROLL_TIMES"]) == (True, 7, "1")
    assert rolled(decode(parked("a", TIMER_ROLL_TIMES="1")), T + 1500).properties["TIMER_ROLL_TIMES"] == "2"


def test_a_delay_that_is_stored_again_says_its_time_by_todays_clock() -> None:
    """Else the copy, which lies behind the place where the clock was set, would go back to the old time."""
    set_back = ClockSteps((ClockStep(100, -5000, T),))
    record = decode(parked("a", TIMER_DELAY_MS="1500"))
    due = due_of(record, set_back)
    assert due == T - 3500
    again = rolled(record, due)
    assert (again.properties["TIMER_DELIVER_MS"], again.properties["TIMER_OUT_MS"]) == (str(T - 3500), str(T - 4000))
    assert due_of(decode(parked("a")), set_back) == T + 1500, "who named a time gets that time"

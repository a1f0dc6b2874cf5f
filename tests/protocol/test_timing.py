"""When a message is to be delivered, by its properties."""

from __future__ import annotations

import pytest

from kappamq.errors import IllegalMessage
from kappamq.protocol.records.record import Record
from kappamq.protocol.timing import Parked, asked_ms, due_ms, number, parked, value

T = 1_700_000_000_000


def test_numbers() -> None:
    assert number({}, "DELAY") is None
    for text, expected in [("3", 3), ("-1", -1), ("+2", 2), ("0", 0), ("9" * 18, 10**18 - 1)]:
        assert number({"DELAY": text}, "DELAY") == expected
    for text in ("x", "1.5", "", "-", "9" * 19, "\u0663", "1 "):
        with pytest.raises(IllegalMessage, match="DELAY must be an integer"):
            number({"DELAY": text}, "DELAY")


def test_what_is_asked_for() -> None:
    assert asked_ms({}, T) is None
    assert asked_ms({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "7"}, T) == T + 2000
    assert asked_ms({"TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "7"}, T) == T + 5
    assert asked_ms({"TIMER_DELIVER_MS": "7"}, T) == 7
    with pytest.raises(IllegalMessage, match="TIMER_DELAY_SEC"):
        asked_ms({"TIMER_DELAY_SEC": "soon"}, T)


def test_exact_or_at_the_end_of_the_second() -> None:
    assert due_ms(T, T + 1) == T + 1
    assert due_ms(T, T + 1000) == T + 1000
    for other in (0, T, T + 1001):
        assert due_ms(T, other) == T + 1000


@pytest.mark.parametrize("host", [bytes(4), bytes(16)])
@pytest.mark.parametrize("topic", ["t", "long" * 50])
@pytest.mark.parametrize("crc", [True, False])
def test_reading_a_parked_record(host: bytes, topic: str, crc: bool) -> None:
    def made(text: str) -> bytes:
        return Record(
            topic=topic, body=b"TIMER_OUT_MS\x017\x02", properties=text, stored_ms=T, born_host=host, store_host=host, tail_crc=crc
        ).encode()  # fmt: skip

    text = f"UNIQ_KEY\x01u\x02TIMER_OUT_MS\x01{T + 1000}\x02TIMER_DELIVER_MS\x01{T + 1700}\x02REAL_TOPIC\x01t\u00e9\x02"
    assert parked(made(text)) == Parked(T + 1700, T, "t\u00e9".encode(), b"")
    assert parked(memoryview(made(text + "TIMER_DEL_UNIQKEY\x01t+u"))) == Parked(
        T + 1700, T, "t\u00e9".encode(), b"t+u"
    )
    assert parked(made(f"TIMER_OUT_MS\x01{T}\x02")) == Parked(T + 1000, T, b"", b"")
    for bad in (made("KEYS\x01k"), made("TIMER_OUT_MS\x01x\x02"), made(text)[:40], b""):
        assert parked(bad) is None


def test_one_property() -> None:
    assert value(b"A\x011\x02B\x012\x02", b"B\x01") == b"2"
    assert value(b"A\x011\x02B\x012", b"B\x01") == b"2"
    assert value(b"XB\x011\x02B\x012\x02XB\x013\x02", b"B\x01") == b"2"
    assert value(b"XB\x011\x02", b"B\x01") == b""
    assert value(b"", b"B\x01") == b""

"""Messages that wait: what the kernel takes of them, what it stores, tells and answers, and what it leaves to Python."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.layout import (
    DONE,
    FULL,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    HALVES_MAX,
    LEFT,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    WAITING_PAIRS_MAX,
    HalfEnded,
    HalfOpened,
    LevelParked,
)
from kappamq.native.pure_record import parse, property_values
from kappamq.protocol import names
from tests.native import requests
from tests.native.conftest import BORN, HOST, NOW
from tests.native.requests import KEY, answers, properties, send
from tests.native.test_pure import records

Make = Callable[..., Any]
DAY = 86_400_000
HALF = properties(TRAN_MSG="true", PGROUP="pg", TAGS="a")


@pytest.fixture
def waits(make: Make) -> Make:
    """A kernel that lets messages wait, and whose log can be read."""

    def waits(**changed: Any) -> Any:
        kernel = make(**changed)
        kernel.let_wait(True, DAY, 18, "broker-a")
        return kernel

    return waits


def burst(kernel: Any, data: bytes, now_ms: int = NOW) -> Any:
    return kernel.burst(data, 0, BORN, now_ms)


def write(kernel: Any, log: bytearray) -> bytes:
    start, data = kernel.take()
    log[start : start + len(data)] = data
    kernel.map_segment(0, log)
    return bytes(data)


def end(log_offset: int = 0, *, binary: bool = False, flag: int = 0, body: bytes = b"", **changed: str | None) -> bytes:
    fields: dict[str, str | None] = {
        "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": str(log_offset), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": KEY, "transactionId": KEY,
    }  # fmt: skip
    sent = {name: value for name, value in {**fields, **changed}.items() if value is not None}
    head = requests.binary_header(37, sent, 9, flag) if binary else requests.header(37, sent, flag=flag)
    return requests.framed(head, body, binary)


def test_the_topics_are_those_of_the_protocol() -> None:
    assert (HALF_TOPIC, HALF_OP_TOPIC) == (names.HALF_TOPIC, names.HALF_OP_TOPIC)
    assert (TIMER_TOPIC, SCHEDULE_TOPIC) == (names.TIMER_TOPIC, names.SCHEDULE_TOPIC)


def test_nothing_waits_before_it_may(make: Make) -> None:
    kernel = make()
    for text in (HALF, properties(DELAY="1"), properties(TIMER_DELAY_SEC="5")):
        assert burst(kernel, send(i=text))[1] == LEFT
    assert burst(kernel, end())[1] == LEFT
    for levels, ms in ((64, 1), (-1, 1), (1, -1), (1, 1 << 60)):
        with pytest.raises(ValueError, match="there cannot be"):
            kernel.let_wait(True, ms, levels, "b")


@pytest.mark.parametrize("binary", [False, True])
def test_a_half_is_stored_told_and_answered(waits: Make, binary: bool) -> None:
    kernel, log = waits(), bytearray(1 << 20)
    _consumed, verdict, acks, _end, *_, notes = burst(kernel, send(i=HALF, f="5", binary=binary))
    assert verdict == DONE
    data = write(kernel, log)
    assert notes == [HalfOpened(0, 0, len(data), "pg", "tea")]
    ((head, _),) = answers(acks)
    assert (head["extFields"]["queueId"], head["extFields"]["transactionId"]) == ("1", KEY)
    (fields,) = records(data)
    assert (fields[8], fields[1], fields[4]) == (HALF_TOPIC.encode(), 0, 1)
    pairs = property_values(fields[9])
    assert (pairs[b"REAL_TOPIC"], pairs[b"REAL_QID"], pairs[b"__transactionId__"]) == (b"tea", b"1", KEY.encode())
    assert kernel.queue_state(HALF_TOPIC, 0).next == 1
    assert kernel.queue_state("tea", 1).next == 0


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("decision", "letter", "count"), [("8", b"c", 2), ("12", b"r", 1)])
def test_a_transaction_ends_once(
    waits: Make, module: ModuleType, binary: bool, decision: str, letter: bytes, count: int
) -> None:
    kernel, log = waits(), bytearray(1 << 20)
    burst(kernel, send(b"order", i=HALF, f="4", h="-7"))
    half = write(kernel, log)
    asked = end(binary=binary, commitOrRollback=decision)
    _consumed, verdict, acks, log_end, *_, notes = burst(kernel, asked + asked)
    assert verdict == LEFT, "the second time is Python's"
    ((head, body),) = answers(acks)
    assert (head["code"], head["opaque"], head["flag"], head.get("extFields", {}), body) == (0, 9, 1, {}, b"")
    data = write(kernel, log)
    assert notes == [HalfEnded(0, int(decision), 0, log_end)]
    assert log_end == len(half) + len(data)
    stored = records(data)
    assert len(stored) == count
    assert module.scan(data, len(half), True)[0] == len(data)
    op = stored[0]
    assert (op[8], property_values(op[9])[b"__END#"]) == (HALF_OP_TOPIC.encode(), letter)
    assert data[op[6] : op[6] + op[7]] == b"0,"
    if count == 2:
        message = data[op[0] :]
        size, queue_id, queue_offset, _log, sys_flag, _ms, body_at, body_bytes, topic, text = stored[1]
        assert size == len(message)
        assert (topic, queue_id, queue_offset, sys_flag & 0xC) == (b"tea", 1, 0, 8)
        assert data[body_at : body_at + body_bytes] == b"order"
        assert struct.unpack_from(">i", message, 16) == (-7,)
        assert text.startswith(HALF.encode())
        assert b"__BATCH#" not in text


def test_an_end_without_an_answer(waits: Make) -> None:
    kernel = waits()
    burst(kernel, send(i=HALF, flag=2))
    write(kernel, bytearray(1 << 20))
    result = burst(kernel, end(flag=2))
    assert (result[1], result[2], len(result[7])) == (DONE, b"", 1)


def test_ends_that_are_pythons(waits: Make) -> None:
    kernel, log = waits(), bytearray(1 << 20)
    burst(kernel, send(i=HALF))
    assert burst(kernel, end())[1] == LEFT, "it is not written yet"
    write(kernel, log)
    for changed in (
        {"producerGroup": "other"}, {"tranStateTableOffset": "1"}, {"commitLogOffset": "1"}, {"commitOrRollback": "0"},
        {"commitOrRollback": "4"}, {"msgId": "x", "transactionId": "y"}, {"msgId": "x", "transactionId": None},
        {"fromTransactionCheck": "maybe"}, {"producerGroup": None}, {"unknown": "1"},
    ):  # fmt: skip
        assert burst(kernel, end(**changed))[1] == LEFT, changed
    assert burst(kernel, end(body=b"x"))[1] == LEFT
    for name, value, before in (("accepting", False, True), ("hot_from", 1 << 30, 0), ("log_min", 1, 0)):
        setattr(kernel, name, value)
        assert burst(kernel, end())[1] == LEFT, name
        setattr(kernel, name, before)
    kernel.set_topic("tea", 1, 1, 3)
    assert burst(kernel, end())[1] == LEFT, "the queue it is for is gone"
    kernel.set_topic("tea", 4, 4, 2)
    assert burst(kernel, end())[1] == LEFT, "the topic is not for the kernel"
    kernel.set_topic("tea", 4, 4, 3)
    log[100] ^= 1
    assert burst(kernel, end())[1] == LEFT, "the half is damaged"
    log[100] ^= 1
    assert burst(kernel, end(msgId="x"))[1] == DONE, "one id is enough"


def test_a_half_that_python_has_touched_is_pythons(waits: Make) -> None:
    kernel, log = waits(), bytearray(1 << 20)
    burst(kernel, send(i=HALF) + send(i=HALF))
    second = parse(write(kernel, log), 0, 1 << 20)[0]  # type: ignore[index]
    kernel.forget_half(0)
    kernel.forget_half(77)
    assert burst(kernel, end())[1] == LEFT
    kernel.let_wait(True, DAY, 18, "broker-a")
    assert burst(kernel, end(second, tranStateTableOffset="1"))[1] == LEFT


def test_halves_are_pythons_when_the_log_was_cut(waits: Make) -> None:
    kernel = waits()
    burst(kernel, send(i=HALF))
    write(kernel, bytearray(1 << 20))
    kernel.rewind()
    assert burst(kernel, end())[1] == LEFT


def test_many_halves_are_open_at_once(waits: Make) -> None:
    """Ended in another order than they were opened; none is lost in the table."""
    kernel, log = waits(segment_bytes=1 << 24, pending_bytes_max=1 << 24), bytearray(1 << 24)
    data = send(b"x", i=HALF) * 3000
    opened = burst(kernel, data)[7]
    write(kernel, log)
    assert len(opened) == 3000
    order = sorted(range(3000), key=lambda number: number * 7919 % 3001)
    for number in order[::3]:
        kernel.forget_half(opened[number].log_offset)
    for place, number in enumerate(order):
        asked = end(opened[number].log_offset, tranStateTableOffset=str(number), commitOrRollback="12")
        assert burst(kernel, asked)[1] == (DONE if place % 3 else LEFT), number


def test_the_table_of_halves_is_bounded(waits: Make) -> None:
    kernel = waits(segment_bytes=1 << 27, pending_bytes_max=1 << 27)
    data = send(b"x", i=HALF) * (HALVES_MAX // 64 + 1)
    position, opened = 0, []
    for _ in range(64):
        opened += kernel.burst(data, position, BORN, NOW)[7]
    log = bytearray(1 << 27)
    write(kernel, log)
    assert len(opened) == HALVES_MAX + 64
    last, one_more = opened[HALVES_MAX - 1], opened[HALVES_MAX]
    assert burst(kernel, end(last.log_offset, tranStateTableOffset=str(last.queue_offset)))[1] == DONE
    assert burst(kernel, end(one_more.log_offset, tranStateTableOffset=str(one_more.queue_offset)))[1] == LEFT


def test_an_end_waits_for_room(waits: Make) -> None:
    kernel, log = waits(segment_bytes=1200), bytearray(1200)
    burst(kernel, send(b"x" * 300, i=HALF))
    start = len(write(kernel, log))
    assert start < 1200 - 8 - 200
    assert burst(kernel, end())[1] == FULL
    assert kernel.queue_state(HALF_OP_TOPIC, 0).next == 0
    at, data = kernel.take()
    assert (at, data) == (start, b"")
    kernel.open_segment(1200, 2400)
    assert burst(kernel, end())[1] == DONE


@pytest.mark.parametrize(
    ("wish", "value", "due"),
    [
        ("TIMER_DELAY_SEC", "60", NOW + 60_000),
        ("TIMER_DELAY_MS", "1", NOW + 1),
        ("TIMER_DELIVER_MS", str(NOW + 1234), NOW + 1234),
        ("TIMER_DELAY_MS", str(DAY), NOW + DAY),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_a_timer_is_parked(waits: Make, binary: bool, wish: str, value: str, due: int) -> None:
    kernel = waits()
    _consumed, verdict, acks, *_, notes = burst(kernel, send(i=properties(**{wish: value}), binary=binary))
    assert (verdict, notes) == (DONE, [LevelParked(0)])
    ((head, _),) = answers(acks)
    handle = base64.urlsafe_b64decode(head["extFields"]["recallHandle"]).decode()
    assert handle == f"v1 tea broker-a {due} {KEY}"
    (fields,) = records(kernel.take()[1])
    pairs = property_values(fields[9])
    assert fields[8] == TIMER_TOPIC.encode()
    assert (int(pairs[b"TIMER_OUT_MS"]), int(pairs[b"TIMER_DELIVER_MS"])) == ((due - 1) // 1000 * 1000, due)
    assert (pairs[b"REAL_TOPIC"], pairs[b"REAL_QID"], pairs[wish.encode()]) == (b"tea", b"1", value.encode())


def test_levels_are_told_once_each(waits: Make) -> None:
    kernel = waits()
    sends = b"".join(send(i=properties(DELAY=level)) for level in ("3", "18", "3", "1"))
    _consumed, verdict, acks, *_, notes = burst(kernel, sends)
    assert verdict == DONE
    assert notes == [LevelParked(1), LevelParked(3), LevelParked(18)]
    assert [head["extFields"]["queueOffset"] for head, _ in answers(acks)] == ["0", "0", "1", "0"]
    assert all("recallHandle" not in head["extFields"] for head, _ in answers(acks))
    assert [kernel.queue_state(SCHEDULE_TOPIC, queue).next for queue in (0, 2, 17)] == [1, 2, 1]


MANY = {f"n{number}": "v" for number in range(WAITING_PAIRS_MAX - 1)}


@pytest.mark.parametrize(
    "text",
    [
        properties(DELAY="0"), properties(DELAY="19"), properties(DELAY="01"), properties(DELAY="-1"), properties(DELAY="x"),
        properties(DELAY="1", TIMER_DELAY_SEC="1"), properties(DELAY="1") + "DELAY\x012\x02", properties(DELAY="1", WAIT="false"),
        properties(DELAY="1", REAL_TOPIC="t"), properties(DELAY="1", **MANY), properties(DELAY="1", big="x" * 8200),
        "DELAY\x011\x02", "UNIQ_KEY\x01\xe9\x02DELAY\x011\x02", properties(DELAY="1") + "\x02",
        properties(TIMER_DELAY_SEC="0"), properties(TIMER_DELAY_SEC="86401"), properties(TIMER_DELIVER_MS=str(NOW)),
        properties(TIMER_DELAY_MS="9999999999999999"), properties(TIMER_DELAY_SEC="999999999999999"),
        properties(TRAN_MSG="TRUE", PGROUP="p"), properties(TRAN_MSG="true"), properties(TRAN_MSG="true", PGROUP="p", DELAY="1"),
        properties(TRAN_MSG="true", PGROUP="p", CHECK_IMMUNITY_TIME_IN_SECONDS="5"),
        properties(TRAN_MSG="true", PGROUP="p", __transactionId__="x"),
        properties(TRAN_MSG="true", PGROUP="p", TRANSACTION_CHECK_TIMES="1"),
    ],
)  # fmt: skip
def test_wishes_that_are_pythons(waits: Make, text: str) -> None:
    kernel = waits()
    assert burst(kernel, send(i=text))[1] == LEFT
    assert kernel.append_offset == 0


def test_other_things_that_are_pythons(waits: Make) -> None:
    kernel = waits()
    assert burst(kernel, send(i=properties(DELAY="1"), f="4"))[1] == LEFT, "a half by its flag only"
    assert burst(kernel, send(i=properties(TAGS="a"), f="4"))[1] == LEFT
    assert burst(kernel, send(i=HALF, f="8"))[1] == LEFT
    assert burst(kernel, send(i=HALF, e="4"))[1] == LEFT, "there is no such queue"
    assert burst(kernel, send(b"", i=HALF))[1] == LEFT
    assert burst(kernel, send(requests.member(b"x"), code=320, i=HALF, m="true"))[1] == LEFT
    kernel.accepting = False
    assert burst(kernel, send(i=HALF))[1] == LEFT
    assert kernel.store_host == HOST

"""Pulls by condition: what is found, where the next pull goes on, and that one pull is no burden for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq import native
from kappamq.broker.pulling import sql_pull as sieve_module
from kappamq.broker.pulling.sql_pull import Get, Properties, Sieve
from kappamq.filters.sql import Sql
from kappamq.native.layout import COLD, EMPTY, FOUND, NO_MATCH, TOPIC_PULL, TOPIC_SEND
from kappamq.protocol.frame import decode
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record, iter_records
from tests.store.stores import kernels

with_each_kernel = pytest.mark.parametrize("kernel", kernels())


@dataclass
class Asked:
    offset: int = 0
    count: int = 32
    topic: str = "t"
    queue_id: int = 0
    opaque: int = 7
    binary: bool = False


class Log:
    """A kernel whose one log file holds messages with a property n = 0, 1, 2..."""

    def __init__(
        self, name: str, texts: list[str], *, body: bytes = b"body", topic: str = "t", ipv6: bool = False
    ) -> None:
        self.kernel = native.load(name).Kernel(
            segment_bytes=1 << 22, store_host=bytes(8), region="r", cluster="c", trace_on=True, tail_crc=True,
            message_bytes_max=1 << 20, frame_bytes_max=16 << 20, header_bytes_max=256 << 10, pending_bytes_max=32 << 10,
            transfer_bytes_max=256 << 10, transfer_count_max=1024,
        )  # fmt: skip
        self.kernel.set_topic(topic, 1, 1, TOPIC_SEND | TOPIC_PULL)
        data = bytearray()
        host = bytes(16 if ipv6 else 4)
        for number, text in enumerate(texts):
            record = Record(
                topic=topic, body=body, properties=text, queue_offset=number, log_offset=len(data), born_host=host, store_host=host
            )  # fmt: skip
            data += record.encode()
        self.topic = topic
        self.data = bytes(data).ljust(1 << 22, b"\0")
        self.kernel.map_segment(0, self.data)
        assert self.kernel.dispatch(bytes(data), 0)[0] == len(data)

    def pull(self, sql: str, *, bytes_max: int = 256 << 10, warm: bool = False, **asked: Any) -> tuple[int, Any]:
        return Sieve.of(Sql(sql)).pull(
            self.kernel, Asked(topic=self.topic, **asked), bytes_max, warm, lambda low, high: False
        )


def numbered(count: int) -> list[str]:
    return [f"n\x01{number}\x02k\x01v\x02" for number in range(count)]


def found(answer: tuple[int, Any]) -> tuple[list[int], int]:
    """The queue offsets in an answer, and where to go on."""
    verdict, payload = answer
    assert verdict == FOUND, answer
    frame = decode(payload)
    assert (frame.code, frame.opaque, frame.flag, frame.remark) == (0, 7, 1, "FOUND")
    return [record.queue_offset for record in iter_records(frame.body)], int(frame.ext["nextBeginOffset"])


@with_each_kernel
def test_only_what_is_wanted(kernel: str) -> None:
    log = Log(kernel, numbered(100))
    assert found(log.pull("n BETWEEN 10 AND 13 OR n = 90")) == ([10, 11, 12, 13, 90], 100)
    assert found(log.pull("n > 50", count=3)) == ([51, 52, 53], 54)
    assert found(log.pull("n > 50", offset=98)) == ([98, 99], 100)
    assert found(log.pull("k = 'v'", binary=True, count=2)) == ([0, 1], 2)
    assert log.kernel.get_count == 5 + 3 + 2 + 2, "what was looked at and left is not counted as given"


@with_each_kernel
def test_nothing_wanted(kernel: str) -> None:
    log = Log(kernel, numbered(100))
    assert log.pull("n > 1000") == (NO_MATCH, (100, 0, 100))
    assert log.pull("missing = 1", offset=40) == (NO_MATCH, (100, 0, 100))
    assert log.pull("n > 1000", offset=100) == (EMPTY, (100, 0, 100))
    assert log.kernel.get_count == log.kernel.get_bytes == 0


@with_each_kernel
def test_one_pull_looks_at_so_much_and_no_more(kernel: str) -> None:
    log = Log(kernel, numbered(1500))
    verdict, (at, _low, end) = log.pull("n > 100000")
    assert verdict == NO_MATCH
    assert 100 < at < 1000
    assert end == 1500
    costly = " OR ".join(["n = 'x'"] * 900)
    assert log.pull(costly) == (NO_MATCH, (3, 0, 1500)), "an expression that takes long is asked about few messages"
    seen, offset = [], 0
    while offset < 1500:  # and yet all of it is looked at
        verdict, payload = log.pull("n = 1400 OR n = 3", offset=offset)
        if verdict == FOUND:
            numbers, offset = found((verdict, payload))
            seen += numbers
        else:
            offset = payload[0]
    assert seen == [3, 1400]


@with_each_kernel
def test_large_messages(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(kernel, numbered(12), body=bytes(100_000))
    assert found(log.pull("n >= 0", bytes_max=250_000)) == ([0, 1], 2)
    assert found(log.pull("n >= 0", bytes_max=10)) == ([0], 1), "the first is given whatever its size"
    assert found(log.pull("n IN ('1', '9')", bytes_max=250_000)) == ([1, 9], 12)
    monkeypatch.setattr(sieve_module, "READ_BYTES_MAX", 300_000)
    verdict, (at, _low, _end) = log.pull("n > 100")
    assert verdict == NO_MATCH
    assert at < 8


@with_each_kernel
@pytest.mark.parametrize("ipv6", [False, True])
def test_other_layouts(kernel: str, ipv6: bool) -> None:
    assert found(Log(kernel, numbered(5), topic="t" * 200, ipv6=ipv6).pull("n = 3")) == ([3], 5)


@with_each_kernel
def test_cold_records_are_the_callers(kernel: str) -> None:
    log = Log(kernel, numbered(100))
    log.kernel.hot_from = 1 << 22
    verdict, span = log.pull("n = 50")
    assert verdict == COLD
    assert span[0] == 0
    assert log.pull("n = 50", warm=True) == (NO_MATCH, (32, 0, 100)), "it was vouched for the first ones only"
    warm = Sieve.of(Sql("n = 50"))
    assert found(warm.pull(log.kernel, Asked(), 1 << 20, True, lambda low, high: low < span[1] + 10_000)) == ([50], 100)


@with_each_kernel
def test_a_record_that_is_none_is_not_given(kernel: str) -> None:
    log = Log(kernel, ["n\x011\x02"] * 3)
    data = bytearray(log.data)
    size = int.from_bytes(data[:4], "big")
    data[size + 84 : size + 88] = (1 << 30).to_bytes(4, "big")  # the second one's body claims to be long
    damaged = bytes(data)
    log.kernel.map_segment(0, damaged)
    assert found(log.pull("n = 1")) == ([0], 1), "the next pull is told that the second one is broken"


@with_each_kernel
def test_a_record_that_cannot_be_read_is_passed_over(kernel: str) -> None:
    log = Log(kernel, ["n\x011\x02"] * 4)
    data = bytearray(log.data)
    size = int.from_bytes(data[:4], "big")
    text = data.index(b"n\x011\x02", size) - 2
    data[text : text + 2] = (1000).to_bytes(2, "big")  # the second one's properties claim to be long
    damaged = bytes(data)
    log.kernel.map_segment(0, damaged)
    assert found(log.pull("n = 1")) == ([0, 2, 3], 4)
    assert found(log.pull("n = 1", offset=1)) == ([2, 3], 4)


WIDE = " OR ".join(f"n{number} IS NOT NULL" for number in range(12))


@with_each_kernel
@pytest.mark.parametrize(
    "sql",
    ["a = '1'", "a > 1", "a > b AND c IS NULL", "TRUE", "a IN ('1', '2') OR NOT (b <> '1')", f"{WIDE} OR a = '1'"],
)
def test_the_same_as_one_by_one(kernel: str, sql: str) -> None:
    """However many properties a condition names, and whatever stands in them."""
    pieces = ["a\x011", "a\x012", "b\x011", "c\x01x\x01y", "a\x01", "n7\x01é", "noise", "\x01v", "UNIQ_KEY\x01%d"]
    texts = []
    for number in range(400):
        chosen = [piece for place, piece in enumerate(pieces) if (number * 7 + number // 9) >> place & 1]
        texts.append("\x02".join(chosen[:: -1 if number % 3 else 1]).replace("%d", str(number)) + "\x02" * (number % 2))
    log, condition = Log(kernel, texts), Sql(sql)
    expected = [number for number, text in enumerate(texts) if condition.matches(properties.decode(text).get)]
    seen, offset = [], 0
    while offset < len(texts):
        verdict, payload = log.pull(sql, offset=offset, count=7)
        if verdict == NO_MATCH:
            offset = payload[0]
        else:
            numbers, offset = found((verdict, payload))
            seen += numbers
    assert seen == expected


@with_each_kernel
def test_equal_properties_are_judged_once(kernel: str) -> None:
    log, asked = Log(kernel, numbered(60) * 2), []

    def wanted(get: Get) -> bool:
        asked.append(get("n"))
        return False

    sieve = Sieve(wanted, ["n"], 1)
    assert sieve.pull(log.kernel, Asked(), 1 << 20, False, lambda low, high: False) == (NO_MATCH, (120, 0, 120))
    assert asked == [str(number) for number in range(60)]


# -- properties ------------------------------------------------------------------------------------------------------------

_NAMES = ["a", "ab", "b", "a_b"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*_NAMES, ""]), st.sampled_from(["", "1", "a", "b\x01c", "é", "a\x01"])), max_size=8
    ),
    st.booleans(),
)
def test_properties_read_as_they_are_decoded(pairs: list[tuple[str, str]], closed: bool) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if closed else "")
    looked_at = Properties()
    looked_at.look_at(text.encode())
    expected = properties.decode(text)
    assert {name: looked_at.get(name) for name in _NAMES} == {name: expected.get(name) for name in _NAMES}

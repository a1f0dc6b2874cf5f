"""Declaring a body: what it writes, and how leniently it reads."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any

import pytest

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.body import Body, wire
from kappamq.protocol.later import complete


class Colour(Enum):
    RED = 5
    GREEN = 6


class Inner(Body):
    count: int = 0


class Sample(Body):
    some_name: str = ""
    other: int = wire("otherName", default=7)
    ratio: float = 0.0
    on: bool = False
    colour: Colour = Colour.RED
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    many: list[Inner] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    by_id: dict[int, str] = field(default_factory=dict)
    by_queue: dict[MessageQueue, list[int]] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)


def test_writes_wire_names_sorted_without_nulls() -> None:
    text = Sample("x", ratio=1, tags={"b", "a"}, by_id={2: "y"}).encode()
    assert text == (
        b'{"byId":{2:"y"},"byQueue":{},"colour":"RED","free":{},"inner":{"count":0},"many":[],"on":false,'
        b'"otherName":7,"ratio":1.0,"someName":"x","tags":["a","b"]}'
    )


def test_there_and_back() -> None:
    queue = MessageQueue("t", "b", 3)
    full = Sample(
        "x", 1, 2.5, True, Colour.GREEN, Inner(3), Inner(4), [Inner(5)], {"t"}, {0: "z"}, {queue: [1]}, {"k": [1]}
    )
    assert Sample.decode(full.encode()) == full
    assert Sample.decode(full.encode(standard=True)) == full
    assert Sample.decode(b"") == Sample.decode(b"{}") == Sample()


def test_reads_leniently() -> None:
    text = (
        b'{unknown:1,"someName":5,otherName:"-3",ratio:"0.5",on:"true",colour:1,tags:["a",null],many:null,byId:{7:1}}'
    )
    expected = Sample("5", -3, 0.5, True, Colour.GREEN, tags={"a"}, by_id={7: "1"})
    assert Sample.decode(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[]", "Sample is .*: expected an object"),
        (b'{"someName":[]}', "Sample.someName is .*: expected a text"),
        (b'{"otherName":"x"}', "Sample.otherName is 'x': expected a 64-bit integer"),
        (b'{"otherName":1.5}', "Sample.otherName is '1.5': expected a 64-bit integer"),
        (b'{"otherName":9223372036854775808}', "expected a 64-bit integer"),
        (b'{"ratio":"x"}', "Sample.ratio is 'x': expected a number"),
        (b'{"on":"maybe"}', "Sample.on is 'maybe': expected true or false"),
        (b'{"colour":"BLUE"}', "Sample.colour is 'BLUE': expected one of RED, GREEN"),
        (b'{"colour":2}', "Sample.colour is '2'"),
        (b'{"inner":3}', "Sample.inner is '3': expected an object"),
        (b'{"many":[{},{"count":"x"}]}', r"Sample.many\[1\].count is 'x'"),
        (b'{"tags":{}}', "Sample.tags is .*: expected a list"),
        (b'{"byId":{"x":"y"}}', "a name in Sample.byId is 'x'"),
        (b'{"byQueue":[]}', "Sample.byQueue is .*: expected an object"),
        (b'{"byQueue":{"5":[]}}', "a name in Sample.byQueue: expected an object with topic"),
    ],
)
def test_names_what_is_wrong(text: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Sample.decode(text)


def test_every_field_needs_a_default() -> None:
    class Wrong(Body):
        name: str

    with pytest.raises(AssertionError):
        complete(Wrong)

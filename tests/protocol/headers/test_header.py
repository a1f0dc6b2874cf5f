"""Declaring a header, and what reading one refuses."""

from __future__ import annotations

import dataclasses
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import HeaderError
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.header import Header, Int32, TopicHeader, camel_case, integer, wire


class Colour(Enum):
    RED = 1
    GREEN = 2


class Sample(TopicHeader):
    consumer_group: str
    count_max: Int32 = wire("maxMsgNums")
    offset: int
    hold: bool | None = None
    colour: Colour | None = None
    retries: Int32 = wire("retryTimes", default=3)


FULL = {"consumerGroup": "g", "maxMsgNums": "32", "offset": "-7"}


def test_names_on_the_wire() -> None:
    assert camel_case("consumer_group") == "consumerGroup"
    assert camel_case("topic") == "topic"
    assert Sample.wire_names["count_max"] == "maxMsgNums"
    assert Sample.wire_names["logical_broker"] == "bname"


def test_encodes_strings_and_leaves_out_none() -> None:
    header = Sample(consumer_group="g", count_max=32, offset=-7, hold=True, colour=Colour.GREEN)
    assert header.encode() == FULL | {"hold": "true", "colour": "GREEN", "retryTimes": "3"}
    assert Sample.decode(header.encode()) == header


def test_defaults_and_strangers() -> None:
    header = Sample.decode(FULL | {"whatever": "x"})
    assert (header.hold, header.retries, header.logical) == (None, 3, None)


class SameFields(TopicHeader):
    consumer_group: str = wire("a")
    count_max: Int32 = wire("b")
    offset: int = wire("c")
    hold: bool | None = wire("d", default=None)
    colour: Colour | None = wire("e", default=None)
    retries: Int32 = wire("f", default=3)


def test_a_header_like_another_one() -> None:
    same = SameFields.like(Sample.decode(FULL))
    assert same == SameFields(consumer_group="g", count_max=32, offset=-7)
    assert same.encode() == {"a": "g", "b": "32", "c": "-7", "f": "3"}
    with pytest.raises(AssertionError, match="TopicHeader has other fields than Sample"):
        TopicHeader.like(Sample.decode(FULL))


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sample.decode(FULL).offset = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", FULL)
def test_missing_field_is_named(name: str) -> None:
    with pytest.raises(HeaderError, match=f"'{name}' of Sample is missing"):
        Sample.decode({key: value for key, value in FULL.items() if key != name})


def test_empty_number_counts_as_missing_but_empty_text_does_not() -> None:
    with pytest.raises(HeaderError, match="'offset' of Sample is missing"):
        Sample.decode(FULL | {"offset": ""})
    assert Sample.decode(FULL | {"retryTimes": ""}).retries == 3
    assert Sample.decode(FULL | {"consumerGroup": ""}).consumer_group == ""


@pytest.mark.parametrize(
    "text", ["x", "1.0", " 1", "1_0", "--1", "+-1", "+", "0x10", "١", "9" * 5000, "2147483648", "-2147483649"]
)
def test_bad_number_is_named(text: str) -> None:
    with pytest.raises(HeaderError, match=r"'maxMsgNums' of Sample is .*: expected a 32-bit integer"):
        Sample.decode(FULL | {"maxMsgNums": text})


@pytest.mark.parametrize(("text", "value"), [("2147483647", (1 << 31) - 1), ("-2147483648", -(1 << 31)), ("+5", 5)])
def test_numbers_at_the_edge(text: str, value: int) -> None:
    assert integer(text, "x", "y", 32) == value


def test_booleans_and_enums_as_java_reads_them() -> None:
    assert Sample.decode(FULL | {"hold": "TRUE"}).hold is True
    assert Sample.decode(FULL | {"hold": "yes"}).hold is False
    assert Sample.decode(FULL | {"colour": "green"}).colour is Colour.GREEN
    assert Sample.decode(FULL | {"colour": "blue"}).colour is Colour.RED


def test_a_code_is_claimed_once() -> None:
    assert Header.requests[RequestCode.PULL_MESSAGE].__name__ == "PullMessage"
    with pytest.raises(AssertionError, match="both claim"):

        class Again(Header, code=RequestCode.PULL_MESSAGE):
            pass


@given(st.dictionaries(st.sampled_from(sorted(Sample.wire_names.values())), st.text(max_size=25)))
def test_any_map_is_read_or_refused(ext: dict[str, str]) -> None:
    try:
        header = Sample.decode(ext)
    except HeaderError:
        return
    assert Sample.decode(header.encode()) == header

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.config.properties import TEXT_BYTES_MAX, parse, parse_bytes, render
from kappamq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# c\n! d\n\n   \n", {}),
        ("a=1\nb = 2\nc: 3\nd 4\ne\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("a=b=c:d\n", {"a": "b=c:d"}),
        ("a=1   \r\nb=2\r", {"a": "1", "b": "2"}),
        ("a=1,\\\n    2,\\\n\t3\n", {"a": "1,2,3"}),
        ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
        ("a\\ b\\=c=1", {"a b=c": "1"}),
        ("a=\\u00e4\\t\\q", {"a": "ä\tq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=grün # no comment", {"a": "grün # no comment"}),
        ("a=1\na=1\n", {"a": "1"}),
        ("a=last\\", {"a": "last"}),
        ("\\\na=1", {"a": "1"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=1\n=2\n", "broker.conf, line 2: no name before"),
        ("a=1\n\na=2\n", "line 3: a was already given in line 1"),
        ("a=\\u00g1", "line 1: .*four hexadecimal digits"),
        ("a=\\u1", "four hexadecimal digits"),
        ("a=\\ud83d", "surrogate"),
        ("a" * (TEXT_BYTES_MAX + 1), "too many"),
    ],
)
def test_malformed_text_names_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, where="broker.conf")


@pytest.mark.parametrize(
    ("data", "message"), [(b"a=\xff", "byte 2"), (b"a=\0", "zero bytes"), (b"a" * (TEXT_BYTES_MAX + 1), "too many")]
)
def test_malformed_bytes(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_bytes(data)


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda name: name.strip(" \t\f") == name
)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).filter(
    lambda value: value.rstrip(" \t\f") == value
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_rendered_is_read_back(properties: dict[str, str]) -> None:
    assert parse(render(properties)) == properties


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_bytes(data)
    except ConfigError:
        pass

"""Words, and what a wrong one is told."""

from __future__ import annotations

import pytest

from kappamq.filters import LENGTH_MAX
from kappamq.filters.words import BadExpression, Sort, Words


def words(text: str) -> list[tuple[str, str]]:
    source, found = Words(text), []
    while source.current.sort is not Sort.END:
        word = source.advance()
        found.append((word.sort.name, word.text))
    return found


def test_sorts() -> None:
    assert words("a_1 >= 1.5e3 AND $b in ('it''s','')") == [
        ("NAME", "a_1"), ("SIGN", ">="), ("DECIMAL", "1.5e3"), ("KEYWORD", "AND"), ("NAME", "$b"), ("KEYWORD", "IN"),
        ("SIGN", "("), ("TEXT", "it's"), ("SIGN", ","), ("TEXT", ""), ("SIGN", ")"),
    ]  # fmt: skip
    assert words("12L .5 1. 1e-3 0 01 <><=") == [
        ("INTEGER", "12L"), ("DECIMAL", ".5"), ("DECIMAL", "1."), ("DECIMAL", "1e-3"), ("INTEGER", "0"), ("INTEGER", "0"),
        ("INTEGER", "1"), ("SIGN", "<>"), ("SIGN", "<="),
    ]  # fmt: skip


def test_comments() -> None:
    assert words("a -- b\n c /* d */ e") == [("NAME", "a"), ("NAME", "c"), ("NAME", "e")]
    assert words("--1") == [("SIGN", "-"), ("SIGN", "-"), ("INTEGER", "1")]


def test_positions() -> None:
    source = Words(" ab  <= 'c' ")
    assert [source.advance().position for _ in range(4)] == [1, 5, 8, 12]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'x", "this text has no closing quote"),
        ("/* x", "this comment has no end"),
        ('"x"', "texts stand in single quotes"),
        ("!= 1", "not equal is written <>"),
        ("é", "'é' means nothing here"),
        ("\0", "means nothing here"),
    ],
)
def test_no_word(text: str, reason: str) -> None:
    with pytest.raises(BadExpression, match=reason) as caught:
        words(f"a {text}")
    assert caught.value.position == 2


def test_the_place_is_shown() -> None:
    text = "first = 1 AND\nsecond = 2 AND third ? 3 AND fourth = 4 AND fifth = 5"
    with pytest.raises(BadExpression) as caught:
        words(text)
    assert str(caught.value) == (
        "the SQL92 filter is wrong at line 2, column 22: '?' means nothing here; "
        "here: ...ND\nsecond = 2 AND third >>>? 3 AND fourth = 4 AND f..."
    )


def test_length() -> None:
    assert words("a" * LENGTH_MAX)
    with pytest.raises(BadExpression, match=f"it has {LENGTH_MAX + 1} characters, {LENGTH_MAX} at most"):
        Words("a" * (LENGTH_MAX + 1))

"""The words of a filter expression, one after the other, each with its place in the text."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from kappamq.errors import SubscriptionInvalid
from kappamq.filters import LENGTH_MAX

KEYWORDS: Final = frozenset("AND OR NOT BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH".split())
_SHOWN: Final = 24


class BadExpression(SubscriptionInvalid):
    """A filter expression that cannot be understood; `position` is the index of the character at which it goes wrong."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        before, after = text[max(0, position - _SHOWN) : position], text[position : position + _SHOWN]
        before = f"...{before}" if position > _SHOWN else before
        after = f"{after}..." if len(text) > position + _SHOWN else after
        place = f"line {line}, column {column}" if line > 1 else f"column {column}"
        super().__init__(f"the SQL92 filter is wrong at {place}: {reason}; here: {before}>>>{after}")
        self.reason = reason
        self.position = position


class Sort(Enum):
    END = "the end"
    NAME = "the name of a property"
    KEYWORD = "a keyword"
    TEXT = "a text"
    INTEGER = "an integer"
    DECIMAL = "a decimal number"
    SIGN = "a sign"


class Word(NamedTuple):
    sort: Sort
    text: str  # keywords in upper case; of texts what they mean, without quotes
    position: int

    def __str__(self) -> str:
        if self.sort is Sort.END:
            return "the end"
        shown = f"'{self.text}'" if self.sort is Sort.TEXT else self.text
        return shown if len(shown) <= 2 * _SHOWN else shown[: 2 * _SHOWN] + "..."


# A comment of one line ends with that line: without a line break `--1` is the opposite of -1, as in RocketMQ.
_BLANK = re.compile(r"(?:[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*.*?\*/)*+", re.DOTALL)
_WORD = re.compile(
    r"""(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*+)
      | (?P<DECIMAL>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)? | \.[0-9]++(?:[eE][+-]?[0-9]++)? | [0-9]++[eE][+-]?[0-9]++)
      | (?P<INTEGER>0 | [1-9][0-9]*+[lL]?)
      | (?P<TEXT>'(?:[^']++|'')*+')
      | (?P<SIGN><> | >= | <= | [=<>(),+-])""",
    re.VERBOSE,
)


class Words:
    """`current` is the word to look at, `advance` goes to the next. Raises BadExpression where there is no word."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise BadExpression(f"it has {len(text)} characters, {LENGTH_MAX} at most", text, LENGTH_MAX)
        self.text = text
        self._at = 0
        self.current = self._next()

    def advance(self) -> Word:
        """Return the current word and go to the next."""
        word = self.current
        self.current = self._next()
        return word

    def wrong(self, reason: str, position: int | None = None) -> BadExpression:
        return BadExpression(reason, self.text, self.current.position if position is None else position)

    def _next(self) -> Word:
        text = self.text
        blank = _BLANK.match(text, self._at)
        assert blank is not None
        at = blank.end()
        if at == len(text):
            return Word(Sort.END, "", at)
        found = _WORD.match(text, at)
        if found is None:
            raise BadExpression(_why_no_word(text, at), text, at)
        self._at = found.end()
        sort, word = Sort[found.lastgroup or ""], found.group()
        if sort is Sort.NAME and (keyword := word.upper()) in KEYWORDS:
            return Word(Sort.KEYWORD, keyword, at)
        if sort is Sort.TEXT:
            word = word[1:-1].replace("''", "'")
        return Word(sort, word, at)


def _why_no_word(text: str, at: int) -> str:
    if text[at] == "'":
        return "this text has no closing quote"
    if text.startswith("/*", at):
        return "this comment has no end"
    if text[at] == '"':
        return "texts stand in single quotes"
    if text.startswith("!=", at):
        return "not equal is written <>"
    return f"{text[at]!r} means nothing here"

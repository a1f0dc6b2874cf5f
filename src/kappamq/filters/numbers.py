"""Numbers in texts, read as Java reads them: what it takes as a number and what it refuses decides who gets a message."""

from __future__ import annotations

import re
from typing import Final

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

_PLAIN_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_INTEGER = re.compile(r"([+-]?)0*([\d]+)")  # digits of any script
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_NAMED = re.compile(r"([+-]?)(NaN|Infinity)")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9A-Fa-f]+\.?[0-9A-Fa-f]*|\.[0-9A-Fa-f]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))


def int32(text: str) -> int:
    """Raises ValueError if the text is no integer of 32 bits."""
    value = _integer(text)
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise ValueError(text)
    return value


def int64(text: str) -> int:
    """Raises ValueError if the text is no integer of 64 bits."""
    value = _integer(text)
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise ValueError(text)
    return value


def _integer(text: str) -> int:
    if (len(text) <= 18 and text.isascii() and text.isdecimal()) or _PLAIN_INTEGER.fullmatch(text):
        return int(text)
    found = _INTEGER.fullmatch(text)
    # Java goes by 16-bit characters, so digits beyond them are none.
    if found is None or len(found[2]) > 40 or max(text) > "\uffff":
        raise ValueError(text)
    return int(found[1] + found[2])


def double(text: str) -> float:
    """Raises ValueError if the text is no decimal number."""
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    named = _NAMED.fullmatch(text)
    if named is not None:
        return float(named[1] + named[2].lower())
    hexadecimal = _HEXADECIMAL.fullmatch(text)
    if hexadecimal is None:
        raise ValueError(text)
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return float("-inf" if text[0] == "-" else "inf")


def order(left: float, right: float) -> int:
    """Below 0, 0 or above 0: Java's total order, in which -0.0 comes before 0.0 and NaN after everything."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else (str(left) == "0.0") - (str(right) == "0.0")
    return (left != left) - (right != right)

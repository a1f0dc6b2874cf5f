"""Texts as numbers: what Java's parsers take and refuse (asked of them, see tests/interop)."""

from __future__ import annotations

import math

import pytest

from kappamq.filters import numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("+2", 2),
        ("-2", -2),
        ("٣", 3),
        ("３", 3),
        ("0" * 5000 + "2", 2),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
    ],
)
def test_int32(text: str, value: int) -> None:
    assert numbers.int32(text) == value
    assert numbers.int64(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "+",
            "-",
            "--2",
            " 2",
            "2 ",
            "2L",
            "2.0",
            "0x2",
            "2_0",
            "𝟚",
            "²",
            "2147483648",
            "-2147483649",
            "1" * 50,
            "1" * 9000,
        ),
        "9" * 20,
    ],
)
def test_no_int32(text: str) -> None:
    with pytest.raises(ValueError):
        numbers.int32(text)


def test_int64() -> None:
    assert numbers.int64("9223372036854775807") == 2**63 - 1
    assert numbers.int64("-9223372036854775808") == -(2**63)
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(ValueError):
            numbers.int64(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2.0), (" 2 ", 2.0), ("\t2\n", 2.0), ("2d", 2.0), ("2.5F", 2.5), ("0x1p4", 16.0), ("-0x.8P1f", -1.0), ("1.", 1.0), (".5", 0.5),
        ("1e1", 10.0), ("+2", 2.0), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf), ("-0x1p99999", -math.inf),
    ],
)  # fmt: skip
def test_double(text: str, value: float) -> None:
    assert numbers.double(text) == value


def test_nan() -> None:
    assert math.isnan(numbers.double("NaN"))


@pytest.mark.parametrize(
    "text",
    ["", "x", "infinity", "nan", "inf", "2_0", "٣", "1e", ".", "--2", "0x1", "0x2.5", "2L", "\xa02", "1 2", "ff"],
)
def test_no_double(text: str) -> None:
    with pytest.raises(ValueError):
        numbers.double(text)


def test_order() -> None:
    ascending = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for left in range(len(ascending)):
        for right in range(len(ascending)):
            found = numbers.order(ascending[left], ascending[right])
            assert (found > 0) - (found < 0) == (left > right) - (left < right)

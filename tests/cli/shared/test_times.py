from __future__ import annotations

from datetime import datetime

import pytest
import typer

from kappamq.cli.shared.times import parse_time

NOW = int(datetime(2026, 11, 15, 12, 30, 15, 250_000).timestamp() * 1000)


def at(*parts: int) -> int:
    return int(datetime(*parts).timestamp() * 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW),
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("15m", NOW - 900_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 259_200_000),
        ("250ms", NOW - 250),
        (" 10:00 ", at(2026, 11, 15, 10)),
        ("9:05:07", at(2026, 11, 15, 9, 5, 7)),
        ("2026-11-15", at(2026, 11, 15)),
        ("2026-11-15 10:00", at(2026, 11, 15, 10)),
        ("2026-11-15T10:00:00+00:00", 1_794_736_800_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time("--from", text, NOW) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "12", "1700000000", "-5m", "5 minutes", "٣m"])
def test_what_is_no_time_says_what_is(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a time such as"):
        parse_time("--from", text, NOW)

"""Nobody who names things can write log lines of his own."""

from __future__ import annotations

import logging

import pytest

from kappamq.cli.shared.logs import OneLine, escaped


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> str:
    information = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("kappamq.test", logging.ERROR, __file__, 1, message, arguments, information)
    return OneLine().format(record)


@pytest.mark.parametrize("character", ["\n", "\r", "\x0b", "\x1b", "\x85", "\x9b", "\u2028", "\u202e", "\ud800", "\0"])
def test_an_event_is_one_line_of_plain_characters(character: str) -> None:
    line = formatted("broker %s is gone", f"a{character}2026-01-01 00:00:00,000 ERROR kappamq: forged")
    assert line.isprintable()
    assert line.endswith("forged is gone")
    assert f"broker a\\{character.encode('unicode_escape').decode()[1:]}2026" in line


def test_other_letters_stay_as_they_are() -> None:
    assert escaped("Tee für Zoë, 茶, \\n") == "Tee für Zoë, 茶, \\n"
    assert formatted("all is %s", "well").endswith(" ERROR   kappamq.test: all is well")


def test_a_traceback_stays_readable_and_forges_nothing() -> None:
    with pytest.raises(ValueError, match="forged") as caught:
        raise ValueError("first\n2026-01-01 00:00:00,000 ERROR kappamq: forged \x1b[31m")
    lines = formatted("it failed", error=caught.value).split("\n")
    assert lines[0].endswith("kappamq.test: it failed")
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[2].startswith("      File ")
    assert lines[-2] == "    ValueError: first"
    assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])


def test_a_stack_is_indented_as_well() -> None:
    record = logging.LogRecord("kappamq.test", logging.ERROR, __file__, 1, "here", (), None, sinfo="Stack:\n  File x")
    assert OneLine().format(record).split("\n")[1:] == ["    Stack:", "      File x"]

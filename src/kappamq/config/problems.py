"""All that is wrong with a set of properties, told at once and with its place: nobody likes to start a broker five times."""

from __future__ import annotations

from kappamq.errors import ConfigError


class Written(str):
    """A value that knows where it was written. It is carried through dictionaries like any other text."""

    file: str
    line: int

    def __new__(cls, text: str, file: str, line: int = 0) -> Written:
        made = super().__new__(cls, text)
        made.file, made.line = file, line
        return made


def place_of(value: str) -> str:
    """`broker.conf, line 3`, or nothing if that is not known."""
    if not isinstance(value, Written):
        return ""
    return f"{value.file}, line {value.line}" if value.line else value.file


def file_of(value: str) -> str:
    """The file (or option) alone."""
    return value.file if isinstance(value, Written) else ""


class Problems:
    """Collects what is wrong. Unknown names alone are no reason to stop; beside other problems they are told as well."""

    def __init__(self) -> None:
        self._wrong: list[tuple[str, str]] = []  # (value, what is wrong with it)
        self._unknown: list[tuple[str, str]] = []

    def wrong(self, value: str, text: object) -> None:
        self._wrong.append((value, str(text)))

    def unknown(self, value: str, name: str) -> None:
        self._unknown.append((value, f"unknown property {name}"))

    def settle(self) -> None:
        """Raises ConfigError if anything is wrong."""
        if not self._wrong:
            return
        told = sorted([*self._wrong, *self._unknown], key=lambda one: _order(one[0]))
        lines = [f"{place_of(value)}: {text}" if place_of(value) else text for value, text in told]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        raise ConfigError("\n  ".join([f"{len(lines)} problems:", *lines]))


def _order(value: str) -> tuple[str, int]:
    """As in the file; what has no place comes last."""
    return (value.file, value.line) if isinstance(value, Written) else ("\uffff", 0)

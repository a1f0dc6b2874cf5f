"""Collects all problems of a set of properties with their places, so that a broker need not be started once per problem."""

from __future__ import annotations

from kappamq.errors import ConfigError


class Written(str):
    """A value with the place it came from. It can be used like any other str."""

    file: str
    line: int

    def __new__(cls, text: str, file: str, line: int = 0) -> Written:
        made = super().__new__(cls, text)
        made.file, made.line = file, line
        return made


def place_of(value: str) -> str:
    """Return `broker.conf, line 3`, or an empty str if that is unknown."""
    if not isinstance(value, Written):
        return ""
    return f"{value.file}, line {value.line}" if value.line else value.file


def file_of(value: str) -> str:
    """Return the file (or option) alone."""
    return value.file if isinstance(value, Written) else ""


class Problems:
    """Collects problems. Unknown names alone are not an error; beside other problems they are reported as well."""

    def __init__(self) -> None:
        self._wrong: list[tuple[str, str]] = []  # value, problem
        self._unknown: list[tuple[str, str]] = []

    def wrong(self, value: str, text: object) -> None:
        self._wrong.append((value, str(text)))

    def unknown(self, value: str, name: str) -> None:
        self._unknown.append((value, f"unknown property {name}"))

    def settle(self) -> None:
        """Raise ConfigError if there are problems."""
        if not self._wrong:
            return
        told = sorted([*self._wrong, *self._unknown], key=lambda one: _order(one[0]))
        lines = [f"{place_of(value)}: {text}" if place_of(value) else text for value, text in told]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        raise ConfigError("\n  ".join([f"{len(lines)} problems:", *lines]))


def _order(value: str) -> tuple[str, int]:
    """In the order of the file; values without a place come last."""
    return (value.file, value.line) if isinstance(value, Written) else ("\uffff", 0)

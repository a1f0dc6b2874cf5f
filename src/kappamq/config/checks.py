"""The few checks that configuration values share. Each names the field, the value and what would be right."""

from __future__ import annotations

import re

from kappamq.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HOST = re.compile(r"\[[0-9a-fA-F:.%]+\]|(?!\d+$)[^\[\]:\s/;,]+", re.ASCII)  # digits alone: rather a port
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\[\]:\s/;,]+):(\d{1,5})", re.ASCII)


def between(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low} to {high}; got {value!r}")


def at_least(name: str, value: float, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= low:
        raise ConfigError(f"{name} must be a number of at least {low}; got {value!r}")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def address(name: str, value: str) -> None:
    """`host:port`, `1.2.3.4:port` or `[ipv6]:port`."""
    found = _ADDRESS.fullmatch(value)
    if found is None or not 0 < int(found[1]) <= 65535:
        raise ConfigError(f"{name} must be host:port (an IPv6 host in brackets); got {value!r}")


def with_port(text: str, port: int) -> str:
    """`host` or `[ipv6]` -> with the port that is usual; anything else as it is, for `address` to judge."""
    return f"{text}:{port}" if _HOST.fullmatch(text) else text


def not_empty(name: str, value: str) -> None:
    if not value or value != value.strip():
        raise ConfigError(f"{name} must be a text that is not empty and has no blanks around it; got {value!r}")


def durations_ms(name: str, value: str) -> tuple[int, ...]:
    """`1s 5m 2h` -> milliseconds of each."""
    found = [re.fullmatch(r"(\d{1,9})([smhd])", part, re.ASCII) for part in value.split()]
    if not found or None in found:
        raise ConfigError(f"{name} must be durations such as 1s 5m 2h 1d, separated by blanks; got {value!r}")
    return tuple(int(part[1]) * _UNIT_MS[part[2]] for part in found if part is not None)

"""Checks shared by configuration classes. Each error names the field, the value and what is accepted."""

from __future__ import annotations

import functools
import ipaddress
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Final, get_args, get_type_hints

from kappamq.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

HOST_CHARACTERS_MAX: Final = 255
"""The longest name that DNS knows has 253."""

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HOST = re.compile(r"\[[0-9a-fA-F:.%]+\]|(?!\d+$)[^\[\]:\s/;,]+", re.ASCII)  # not digits alone, which are rather a port
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\[\]:\s/;,]+):(\d{1,5})", re.ASCII)


def between(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low} to {high}; got {value!r}")


def at_least(name: str, value: float, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= low:
        raise ConfigError(f"{name} must be a number of at least {low}; got {value!r}")


def of_declared_types(config: object) -> None:
    """Refuse values of a dataclass that do not have their field's type. A str is converted where a Path is expected."""
    for name, kinds in _plain_types(type(config)).items():  # type: ignore[arg-type]  # a class can be hashed
        value = getattr(config, name)
        if isinstance(value, str) and Path in kinds:
            object.__setattr__(config, name, Path(value))
        elif (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            accepted = " or ".join(_KINDS.get(kind, kind.__name__) for kind in kinds)
            raise ConfigError(f"{name} must be {accepted}; got {value!r}")


@functools.cache
def _plain_types(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the fields of a dataclass that are numbers, strings, paths or booleans, or None. Others have their own checks."""
    found: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(kind).items():
        parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if all(part in _KINDS for part in parts):
            found[name] = parts
    return found


_KINDS: Final[dict[type, str]] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
}


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def address(name: str, value: str) -> None:
    """`host:port`, `1.2.3.4:port` or `[ipv6]:port`."""
    found = _ADDRESS.fullmatch(value)
    if found is None or not 0 < int(found[1]) <= 65535 or not could_be_host(value.rpartition(":")[0].strip("[]")):
        raise ConfigError(f"{name} must be host:port (an IPv6 host in brackets); got {value!r}")


def could_be_host(host: str) -> bool:
    """Whether a resolver can be asked for this host at all: for others asyncio and socket raise a ValueError, not an OSError."""
    if not host or len(host) > HOST_CHARACTERS_MAX or not host.isprintable():
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            host.encode("idna")
        except UnicodeError:
            return False
    return True


def with_port(text: str, port: int) -> str:
    """Add the default port to `host` or `[ipv6]`; anything else is unchanged, for `address` to validate."""
    return f"{text}:{port}" if _HOST.fullmatch(text) else text


def not_empty(name: str, value: str) -> None:
    if not value or value != value.strip():
        raise ConfigError(f"{name} must be a non-empty string without leading or trailing blanks; got {value!r}")


def durations_ms(name: str, value: str) -> tuple[int, ...]:
    """Convert `1s 5m 2h` to milliseconds."""
    found = [re.fullmatch(r"(\d{1,9})([smhd])", part, re.ASCII) for part in value.split()]
    if not found or None in found:
        raise ConfigError(f"{name} must be durations such as 1s 5m 2h 1d, separated by blanks; got {value!r}")
    return tuple(int(part[1]) * _UNIT_MS[part[2]] for part in found if part is not None)

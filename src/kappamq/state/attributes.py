"""Attributes of topics and groups: `+key=value` sets one, `-key` removes it. Pure.

Only keys that we know and values that we implement are accepted: a topic that promises compaction and does not compact would be
a trap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kappamq.errors import InvalidParameter

_TOPIC_VALUES: dict[str, tuple[str, ...]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
_NOT_YET = {"BatchCQ", "RocksDBCQ", "COMPACTION", "MIXED"}
_NUMBERS = {"reserve.time": (-1, 1 << 62), "priority.factor": (0, 100)}
_TOPIC_KEYS = {*_TOPIC_VALUES, "reserve.time"}
_GROUP_KEYS = {"priority.factor"}


def parse(text: str | None) -> list[str]:
    """Parse `+a=1,-b` into single changes. Raises InvalidParameter for anything else."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def listed(attributes: Mapping[str, str]) -> list[str]:
    """Attributes as they appear in a body, the sign before the key; a key without a sign is set."""
    return [
        key if key.startswith("-") else f"{key}={value}" if key.startswith("+") else f"+{key}={value}"
        for key, value in attributes.items()
    ]


def altered_topic(current: Mapping[str, str], changes: Iterable[str]) -> dict[str, str]:
    return _altered(current, changes, "topic", _TOPIC_KEYS)


def altered_group(current: Mapping[str, str], changes: Iterable[str]) -> dict[str, str]:
    return _altered(current, changes, "group", _GROUP_KEYS)


def _altered(current: Mapping[str, str], changes: Iterable[str], owner: str, known: set[str]) -> dict[str, str]:
    result = dict(current)
    seen: set[str] = set()
    for change in changes:
        sign, rest = change[:1], change[1:]
        key, equals, value = rest.partition("=")
        if sign not in ("+", "-") or not key or (sign == "+") != bool(equals):
            raise InvalidParameter(f"attribute {change!r}: write +key=value to set one, -key to remove one")
        if key in seen:
            raise InvalidParameter(f"attribute {key} is named twice")
        seen.add(key)
        if sign == "-":
            if key not in result:
                raise InvalidParameter(f"attempt to delete attribute {key}, which the {owner} does not have")
            del result[key]
            continue
        if key not in known:
            raise InvalidParameter(f"unsupported key: {key}; a {owner} has {', '.join(sorted(known))}")
        result[key] = _checked(key, value)
    return result


def _checked(key: str, value: str) -> str:
    if key in _NUMBERS:
        low, high = _NUMBERS[key]
        if not value.lstrip("-").isdecimal() or not low <= int(value) <= high:
            raise InvalidParameter(f"attribute {key} is a number from {low} to {high}, not {value!r}")
        return value
    allowed = _TOPIC_VALUES[key]
    if value in _NOT_YET:
        raise InvalidParameter(f"attribute {key}={value} is not supported by this version of the broker")
    if value not in allowed:
        raise InvalidParameter(f"attribute {key} is one of {', '.join(allowed)}, not {value!r}")
    return value

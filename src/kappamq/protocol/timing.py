"""When a message is to be delivered: what its properties ask for, and what they say once it is parked."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from kappamq.errors import IllegalMessage
from kappamq.protocol.records import properties, record

PRECISION_MS: Final = 1000
_ASKING: Final = ((properties.TIMER_DELAY_SECONDS, 1000), (properties.TIMER_DELAY_MS, 1))
_DELAYS: Final = tuple(f"{name}\x01".encode() for name, _factor in _ASKING)
_DIGITS_MAX: Final = 18  # what fits into 64 bits for sure
_INT: Final = struct.Struct(">i")


def number(pairs: Mapping[str, str], name: str) -> int | None:
    """A property that is to be a whole number, None if it is missing. Raises IllegalMessage for anything else."""
    text = pairs.get(name)
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise IllegalMessage(f"the property {name} must be a whole number, got {text[:40]!r}")
    return int(text)


def asked_ms(pairs: Mapping[str, str], now_ms: int) -> int | None:
    """The time at which a message asks to be delivered, None if it does not ask. Seconds go before milliseconds, and both
    before a time, as with RocketMQ. Raises IllegalMessage for nonsense."""
    for name, factor in _ASKING:
        delay = number(pairs, name)
        if delay is not None:
            return now_ms + delay * factor
    return number(pairs, properties.TIMER_DELIVER_MS)


def due_ms(out_ms: int, exact_ms: int) -> int:
    """When a parked message is due, from TIMER_OUT_MS and TIMER_DELIVER_MS: parked by RocketMQ, it may only have the former,
    and is due when the second is over that begins then."""
    return exact_ms if out_ms < exact_ms <= out_ms + PRECISION_MS else out_ms + PRECISION_MS


class Parked(NamedTuple):
    """What a record of the timer topic says."""

    due_ms: int
    stored_ms: int
    real_topic: bytes
    cancels: bytes  # the key of the message that is not to be delivered, empty for a message itself
    is_delay: bool = False  # its sender asked for a delay and not for a time


def parked(data: bytes | memoryview) -> Parked | None:
    """Read a record of the timer topic; None if it is none. Only what is needed: it is done once for every timer."""
    try:
        sys_flag = _INT.unpack_from(data, record.SYS_FLAG_AT)[0]
        at = record.STORED_MS_AT + (record.IPV6_EXTRA_BYTES if sys_flag & record.SYS_BORN_IPV6 else 0)
        stored_ms = int.from_bytes(data[at : at + 8], "big")
        at += 8 + (20 if sys_flag & record.SYS_STORE_IPV6 else 8) + 12
        at += 4 + _INT.unpack_from(data, at)[0]
        magic = _INT.unpack_from(data, record.MAGIC_AT)[0]
        at += 1 + data[at] if magic == record.MAGIC_V1 else 2 + int.from_bytes(data[at : at + 2], "big")
        text = bytes(data[at + 2 :])
        out_ms = int(value(text, b"TIMER_OUT_MS\x01"))
    except (struct.error, IndexError, ValueError):
        return None
    exact = value(text, b"TIMER_DELIVER_MS\x01")
    exact_ms = int(exact) if exact.isdigit() and len(exact) <= _DIGITS_MAX else 0
    is_delay = any(value(text, name) for name in _DELAYS)
    return Parked(
        due_ms(out_ms, exact_ms),
        stored_ms,
        value(text, b"REAL_TOPIC\x01"),
        value(text, b"TIMER_DEL_UNIQKEY\x01"),
        is_delay,
    )


def value(text: bytes, name: bytes) -> bytes:
    """One property of an encoded text, b"" if it is not there; `name` comes with its separator."""
    at = text.rfind(name)
    while at > 0 and text[at - 1] != 2:  # the name within another name or value
        at = text.rfind(name, 0, at)
    if at < 0:
        return b""
    end = text.find(b"\x02", at)
    return text[at + len(name) : end] if end >= 0 else text[at + len(name) :]

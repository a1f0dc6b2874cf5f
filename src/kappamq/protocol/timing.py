"""The delivery time of a message: as requested by its properties, and as stored once it is parked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kappamq.errors import IllegalMessage
from kappamq.protocol.records import properties
from kappamq.protocol.records.fields import RecordError
from kappamq.protocol.records.view import RecordView, view_at

PRECISION_MS: Final = 1000
_ASKING: Final = ((properties.TIMER_DELAY_SECONDS, 1000), (properties.TIMER_DELAY_MS, 1))
_DELAYS: Final = tuple(name.encode() for name, _factor in _ASKING)
_OF_TIMERS: Final = b"TIMER_", b"REAL_TOPIC\x01"
_DIGITS_MAX: Final = 18  # always fits into 64 bits


def number(pairs: Mapping[str, str], name: str) -> int | None:
    """Return an integer property, None if it is missing. Raises IllegalMessage for anything else."""
    text = pairs.get(name)
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise IllegalMessage(f"the property {name} must be an integer, got {text[:40]!r}")
    return int(text)


def asked_ms(pairs: Mapping[str, str], now_ms: int) -> int | None:
    """Return the requested delivery time, None if there is none. A delay in seconds takes precedence over one in
    milliseconds, and both over a time, as in RocketMQ. Raises IllegalMessage for invalid values."""
    for name, factor in _ASKING:
        delay = number(pairs, name)
        if delay is not None:
            return now_ms + delay * factor
    return number(pairs, properties.TIMER_DELIVER_MS)


def due_ms(out_ms: int, exact_ms: int) -> int:
    """Return when a parked message is due, from TIMER_OUT_MS and TIMER_DELIVER_MS: one parked by RocketMQ may only have the
    former, and is due at the end of that second."""
    return exact_ms if out_ms < exact_ms <= out_ms + PRECISION_MS else out_ms + PRECISION_MS


class Parked(NamedTuple):
    """The content of a record in the timer topic."""

    due_ms: int
    stored_ms: int
    real_topic: bytes
    cancels: bytes  # the key of the cancelled message, empty for a message itself
    is_delay: bool = False  # its sender requested a delay and not a time


def parked(data: bytes | memoryview) -> Parked | None:
    """Decode a record of the timer topic; None if it is not one."""
    try:
        return parked_in(view_at(data, check_crc=False))
    except RecordError:
        return None


def parked_in(record: RecordView) -> Parked | None:
    """The same of a record that can be read. Decodes only what is needed, since it runs once per timer."""
    try:
        said = {
            name: found
            for name, _, found in [
                pair.partition(b"\x01")
                for pair in record.all_property_bytes.split(b"\x02")
                if pair.startswith(_OF_TIMERS)
            ]
        }
        out_ms = int(said.get(b"TIMER_OUT_MS", b""))
    except ValueError:
        return None
    exact = said.get(b"TIMER_DELIVER_MS", b"")
    exact_ms = int(exact) if exact.isdigit() and len(exact) <= _DIGITS_MAX else 0
    is_delay = bool(said.get(_DELAYS[0]) or said.get(_DELAYS[1]))
    topic, cancels = said.get(b"REAL_TOPIC", b""), said.get(b"TIMER_DEL_UNIQKEY", b"")
    return Parked(due_ms(out_ms, exact_ms), record.stored_ms, topic, cancels, is_delay)


def value(text: bytes, name: bytes) -> bytes:
    """Return one property of an encoded text, b"" if it is missing; `name` includes its separator."""
    at = text.rfind(name)
    while at > 0 and text[at - 1] != 2:  # the name is part of another name or value
        at = text.rfind(name, 0, at)
    if at < 0:
        return b""
    end = text.find(b"\x02", at)
    return text[at + len(name) : end] if end >= 0 else text[at + len(name) :]

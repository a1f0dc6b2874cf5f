"""Parsing of times: `2026-11-15 10:00`, `10:00`, `15m` (ago), `now`, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import datetime

from kappamq.cli.shared.usage import wrong

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EARLIEST_MS = 10_000_000_000  # smaller numbers are more likely seconds, or a typo, than milliseconds in 1970
EXPECTED = "a time such as '2026-11-15 10:00', '10:00', '15m' for 15 minutes ago, or milliseconds since 1970"


def parse_time(option: str, text: str, now_ms: int, others: tuple[str, ...] = ()) -> int:
    """Return milliseconds since 1970, in local time where no zone is given. Raises a usage error that names the option, and `others`,
    which it takes as well."""
    text = text.strip()
    if text == "now":
        return now_ms
    ago = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text, re.ASCII)
    if ago:
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        if 0 < int(text) < _EARLIEST_MS:
            raise wrong(option, f"{text} would be in early 1970; expected {EXPECTED}")
        return int(text)
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text, re.ASCII)
    try:
        if clock:
            today = datetime.fromtimestamp(now_ms / 1000)
            moment = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
        else:
            moment = datetime.fromisoformat(text)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise wrong(
            option, f"{text!r} is not a time; expected {', '.join(others)}{' or ' * bool(others)}{EXPECTED}"
        ) from None

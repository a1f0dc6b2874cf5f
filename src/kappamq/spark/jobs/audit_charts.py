"""Plots as SVG text, for a page without other resources. All displayed text is escaped here."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

COLOURS: Final = ("#2563eb", "#f59e0b", "#10b981", "#8b5cf6", "#ef4444", "#9ca3af")
"""The colours of a plot's series; the last one is for "all others"."""
WIDTH: Final = 960
_LABEL: Final = 250
_BAR: Final = 26
_LEFT: Final = 70
_HEIGHT: Final = 240
_BOTTOM: Final = 46
_TOP: Final = 30
_LABEL_CHARACTERS: Final = 36


def short(number: float) -> str:
    """Format a number for reading at a glance: 1,234 / 12.3k / 4.5M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            divided = number / (1e3 if unit == "k" else limit)
            return f"{divided:.0f}{unit}" if abs(divided) >= 100 else f"{divided:.3g}{unit}"
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.2g}"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def duration(ms: float | None) -> str:
    if ms is None:
        return "-"
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    if ms < 1000:
        return f"{sign}{ms:.0f} ms"
    for limit, factor, unit in ((60e3, 1e3, "s"), (3600e3, 60e3, "min"), (86400e3 * 2, 3600e3, "h")):
        if ms < limit:
            return f"{sign}{ms / factor:.3g} {unit}"
    return f"{sign}{ms / 86400e3:,.1f} days"


def moment(ms: int | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time in UTC; times outside of the calendar are shown as numbers."""
    if ms is None:
        return "-"
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms"


def clipped(text: str, characters: int = _LABEL_CHARACTERS) -> str:
    """Shorten a long name in the middle, since names differ at the end as often as at the beginning."""
    if len(text) <= characters:
        return text
    half = (characters - 1) // 2
    return f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def bars(title: str, rows: Sequence[tuple[str, float, str]], colour: str = COLOURS[0]) -> str:
    """Draw horizontal bars: (label, value, text after the bar)."""
    most = max((value for _label, value, _text in rows), default=0) or 1
    room = WIDTH - _LABEL - 190
    parts = []
    for number, (label, value, text) in enumerate(rows):
        y = number * _BAR
        wide = max(1.0, room * max(0, value) / most)
        parts.append(
            f'<g><title>{shown(label)}: {shown(text)}</title>'
            f'<text class="label" x="{_LABEL - 8}" y="{y + 17}" text-anchor="end">{shown(clipped(label))}</text>'
            f'<rect x="{_LABEL}" y="{y + 5}" width="{wide:.1f}" height="16" rx="3" fill="{colour}"/>'
            f'<text class="value" x="{_LABEL + wide + 6:.1f}" y="{y + 17}">{shown(text)}</text></g>'
        )  # fmt: skip
    return _svg(title, len(rows) * _BAR + 4, parts)


def columns(title: str, labels: Sequence[str], values: Sequence[float], unit: str, colour: str = COLOURS[0]) -> str:
    """Draw vertical bars, as in a histogram; empty ones at both ends are left out."""
    filled = [number for number, value in enumerate(values) if value]
    first, last = (min(filled), max(filled)) if filled else (0, 0)
    # Keep a few empty ones around them, so that a single bar is recognisable.
    first, last = max(0, min(first, last - 5)), min(len(values) - 1, max(last, first + 5))
    labels, values = labels[first : last + 1], values[first : last + 1]
    axis, top = _axis(max(values, default=0))
    step = (WIDTH - _LEFT - 10) / max(1, len(values))
    parts = _grid(axis, top, unit)
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, tall = _LEFT + number * step, _HEIGHT * value / top
        middle = x + step / 2
        parts.append(
            f'<g><title>{shown(label)}: {value:,} {shown(unit)}</title>'
            f'<rect x="{x + step * 0.1:.1f}" y="{_TOP + _HEIGHT - tall:.1f}" width="{step * 0.8:.1f}" height="{tall:.1f}" rx="2" '
            f'fill="{colour}"/>'
            f'<text class="tick" x="{middle:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{shown(label)}</text></g>'
        )  # fmt: skip
        if value:
            parts.append(
                f'<text class="tick" x="{middle:.1f}" y="{_TOP + _HEIGHT - tall - 4:.1f}" text-anchor="middle">{short(value)}</text>'
            )
    return _svg(title, _TOP + _HEIGHT + _BOTTOM - 20, parts)


def stacked(
    title: str, times_ms: Sequence[int], series: Sequence[tuple[str, Sequence[float]]], width_ms: int, unit: str
) -> str:
    """Draw stacked areas over time: (name, value at each time), with a legend below."""
    totals = [sum(values) for values in zip(*(values for _name, values in series), strict=True)]
    axis, top = _axis(max(totals, default=0))
    room = WIDTH - _LEFT - 20
    step = room / max(1, len(times_ms))
    parts = _grid(axis, top, unit)
    base = [0.0] * len(times_ms)
    for number, (name, values) in enumerate(series):
        upper = [low + value for low, value in zip(base, values, strict=True)]
        edge = [_point(at, step, value, top) for at, value in enumerate(upper)]
        lower = [_point(at, step, value, top) for at, value in enumerate(base)]
        outline = (
            " ".join(p for pair in edge for p in pair) + " " + " ".join(p for pair in lower[::-1] for p in pair[::-1])
        )
        parts.append(
            f'<polygon points="{outline}" fill="{_colour(number, len(series))}" fill-opacity="0.85">'
            f"<title>{shown(name)}: {sum(values):,.0f}</title></polygon>"
        )  # fmt: skip
        base = upper
    parts += _time_axis(times_ms, step, width_ms)
    parts += _legend([name for name, _values in series], _TOP + _HEIGHT + 40)
    return _svg(title, _TOP + _HEIGHT + 52, parts)


def _point(number: int, step: float, value: float, top: float) -> tuple[str, str]:
    """Return both upper corners of an interval: values are counts over an interval, not at a moment."""
    y = _TOP + _HEIGHT - _HEIGHT * value / top
    x = _LEFT + number * step
    return f"{x:.1f},{y:.1f}", f"{x + step:.1f},{y:.1f}"


def _time_axis(times_ms: Sequence[int], step: float, width_ms: int) -> list[str]:
    if not times_ms:
        return []
    span = times_ms[-1] - times_ms[0] + width_ms
    form = "%H:%M:%S" if span < 1_800_000 else "%m-%d %H:%M" if span < 20 * 86_400_000 else "%Y-%m-%d"
    every = max(1, ceil(len(times_ms) / 8))
    return [
        f'<text class="tick" x="{_LEFT + number * step:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">'
        f"{shown(moment(times_ms[number], form))}</text>"
        for number in range(0, len(times_ms), every)
    ]


def _legend(labels: Sequence[str], y: int) -> list[str]:
    parts, x = [], float(_LEFT)
    for number, label in enumerate(labels):
        name = clipped(label, 24)
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" rx="2" fill="{_colour(number, len(labels))}"/>'
            f'<text class="tick" x="{x + 17:.0f}" y="{y}">{shown(name)}</text>'
        )
        x += 32 + 6.6 * len(name)
    return parts


def _colour(number: int, count: int) -> str:
    is_rest = number == count - 1 and count == len(COLOURS)
    return COLOURS[-1] if is_rest else COLOURS[number % (len(COLOURS) - 1)]


def _axis(most: float) -> tuple[list[float], float]:
    """Return round numbers from 0 to a little more than `most`, and the last of them."""
    if most <= 0:
        return [0.0, 1.0], 1.0
    magnitude = 10.0 ** floor(log10(most))
    step = next(magnitude * part for part in (0.2, 0.25, 0.5, 1, 2) if most / (magnitude * part) <= 5)
    step = max(step, 1.0)  # only counts are shown
    marks = [step * number for number in range(ceil(most / step) + 1)]
    return marks, marks[-1]


def _grid(marks: Sequence[float], top: float, unit: str) -> list[str]:
    parts = [f'<text class="tick" x="{_LEFT - 40}" y="12">{shown(unit)}</text>'] if unit else []
    for mark in marks:
        y = _TOP + _HEIGHT - _HEIGHT * mark / top
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(mark)}</text>'
        )
    return parts


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{shown(title)}">{"".join(parts)}</svg>'


def shown(text: str) -> str:
    """Escape text, and remove characters that XML does not allow."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))

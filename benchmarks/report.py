"""Figures as a table on the screen, as JSON, and as the marked section of benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bench import Figure

README = Path(__file__).with_name("README.md")
BEGIN = "<!-- results of `{name}` -->"
END = "<!-- end of `{name}` -->"


def machine() -> str:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return f"{os.cpu_count()} cores, {memory} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def verdict(figure: Figure) -> str:
    if figure.value is None:
        return "not measured"
    return {True: "yes", False: "NO", None: ""}[figure.holds]


def rows(figures: list[Figure]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("scenario", "figure", "value", "unit", "min - max", "goal", "held", "remarks")]
    for figure in figures:
        spread = f"{number(min(figure.samples))} - {number(max(figure.samples))}" if len(figure.samples) > 1 else ""
        table.append(
            (
                figure.scenario,
                figure.what,
                number(figure.value),
                figure.unit,
                spread,
                figure.goal,
                verdict(figure),
                figure.note,
            )
        )
    return table


def text(figures: list[Figure]) -> str:
    table = rows(figures)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown(figures: list[Figure]) -> str:
    table = rows(figures)
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines)


def as_json(figures: list[Figure], command: str) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "machine": machine(),
        "figures": [{**asdict(figure), "goal": figure.goal, "holds": figure.holds} for figure in figures],
    }


def write_json(path: Path, figures: list[Figure], command: str) -> None:
    path.write_text(json.dumps(as_json(figures, command), indent=1) + "\n")


def update_section(readme: Path, name: str, command: str, figures: list[Figure]) -> None:
    """Replace what stands between the two marks of `name`; everything around them stays. Adds the section if it is missing."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    section = f"{begin}\n{time.strftime('%Y-%m-%d')}, `{command}`, {machine()}\n\n{markdown(figures)}\n{end}"
    old = readme.read_text() if readme.exists() else "# Benchmarks\n"
    if begin in old and end in old:
        head, _, rest = old.partition(begin)
        new = head + section + rest.partition(end)[2]
    else:
        new = f"{old.rstrip()}\n\n{section}\n"
    readme.write_text(new)


def failures(figures: list[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.holds is False]


def publish(figures: list[Figure], module: str, arguments: list[str], options: argparse.Namespace, section: str) -> int:
    """Print the figures, and put them where the options say; how many goals were missed, each told on standard error."""
    print(text(figures))
    command = shlex.join(["python", "-m", module, *arguments])
    if options.json is not None:
        write_json(options.json, figures, command)
    if options.update_readme:
        update_section(README, section, command, figures)
    missed = failures(figures)
    for figure in missed:
        print(f"missed: {figure.scenario}: {figure.what}: {number(figure.value)}, goal {figure.goal}", file=sys.stderr)
    return len(missed)

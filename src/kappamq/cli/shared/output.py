"""Output of commands: for people (rich) or for programs (`-o json`: one JSON value per line on standard output).

Results go to standard output, everything else (progress, warnings, errors) to standard error, so that a pipe gets only
results. With `-o json` an error is a JSON line as well: {"error": ..., "kind": ..., "exit": ...} on standard error.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.logs import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


class Format(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


class Output:
    """Passed to every command. Imports rich only when it is needed."""

    def __init__(self, format: Format = Format.TEXT) -> None:
        self.format = format
        self._consoles: dict[bool, Console] = {}

    @property
    def json(self) -> bool:
        return self.format is Format.JSON

    def console(self, *, err: bool = False) -> Console:
        if err not in self._consoles:
            from rich.console import Console

            self._consoles[err] = Console(stderr=err, highlight=False, soft_wrap=True)
        return self._consoles[err]

    def line(self, text: str, **values: Any) -> None:
        """Print one result: `text` for people (rich markup), `values` for programs."""
        if self.json:
            self.raw(values)
        else:
            self.console().print(text)

    def raw(self, value: Any) -> None:
        sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Print rows keyed by column. JSON has every row as an object, including fields that are not columns; text shows `a_b` as a b."""
        rows = list(rows)
        if self.json:
            for row in rows:
                self.raw(row)
            return
        self.console().print(_table(title, columns, rows))

    @contextmanager
    def live(self) -> Iterator[Callable[[str, Sequence[str], Sequence[Mapping[str, Any]]], None]]:
        """Yield a function that shows a table in place of the one before; where there is no terminal, it prints each."""
        if self.json or not self.console().is_terminal:
            yield self.table
            return
        from rich.live import Live

        with Live(console=self.console(), auto_refresh=False) as shown:
            yield lambda title, columns, rows: shown.update(_table(title, columns, rows), refresh=True)

    def note(self, text: str) -> None:
        """Print information that is not a result. Not printed for programs."""
        if not self.json:
            from rich.text import Text

            self.console(err=True).print(Text(_printable(text), style="dim"))

    def warn(self, text: str) -> None:
        if self.json:
            print(json.dumps({"warning": text}, ensure_ascii=False), file=sys.stderr, flush=True)
        else:
            from rich.text import Text

            self.console(err=True).print(Text(f"warning: {_printable(text)}", style="yellow"))

    def error(self, error: BaseException | str, code: Exit) -> None:
        text = error if isinstance(error, str) else str(error) or type(error).__name__
        if self.json:
            kind = "error" if isinstance(error, str) else type(error).__name__
            line = json.dumps({"error": text, "kind": kind, "exit": int(code)}, ensure_ascii=False)
            print(line, file=sys.stderr, flush=True)
        else:
            from rich.text import Text

            self.console(err=True).print(Text(f"error: {_printable(text)}", style="bold red"))

    @contextmanager
    def progress(self, title: str, total: float | None, *, unit: str = "") -> Iterator[Any]:
        """Show a progress bar on standard error; yields a function to report progress. Silent for programs."""
        if self.json or not self.console(err=True).is_terminal:
            yield lambda done, total=None: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=self.console(err=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(title, total=total)
            yield lambda done, total=None: bar.update(
                task, completed=done, **({} if total is None else {"total": total})
            )


def _table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    numeric = {column for column in columns if rows and all(isinstance(row.get(column), (int, float)) for row in rows)}
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(show(row.get(column))) for column in columns))
    return table


def _printable(text: str) -> str:
    """`text` in its lines, without other control characters: what brokers and files say is no command to the terminal."""
    return "\n".join(map(escaped, text.split("\n")))


def _plain(value: Any) -> Any:
    """Convert values that JSON does not support."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)


def literal(text: str) -> str:
    """`text` for a line with rich markup, as it is: brackets are no markup in it, and control characters do not reach the terminal."""
    text = escaped(text)
    if "[" not in text and not text.endswith("\\"):
        return text
    from rich.markup import escape

    return escape(text)


def show(value: Any) -> str:
    """Format a value for a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple, set)):
        return ", ".join(map(show, value))
    return escaped(str(value))


def when(ms: int | None) -> str:
    """Format milliseconds since 1970 as local time; a dash for "never"."""
    if not ms or ms <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms"


def counted(count: int, thing: str) -> str:
    """1 message, 2 messages, 1 address, 2 addresses, 1 entry, 2 entries."""
    if count != 1:
        thing = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count} {thing}"


def listed(names: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

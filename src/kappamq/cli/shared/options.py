"""Options shared by several commands, and the handling of errors: a sentence and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from kappamq import interrupts
from kappamq.cli.shared.exits import Exit, exit_for
from kappamq.cli.shared.output import Format, Output
from kappamq.cli.shared.usage import topic_name, wrong
from kappamq.errors import ConfigError, KappaError, StoreError

F = TypeVar("F", bound=Callable[..., Any])

HOME_VARIABLE = "KAPPAMQ_HOME"

OutputOption = Annotated[Format, typer.Option("--output", "-o", help="text for people, json for programs.")]
TopicArgument = Annotated[str, typer.Argument(help="The topic's name.", show_default=False, callback=topic_name)]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help=f"The data directory; else ${HOME_VARIABLE}, else ~/.kappamq.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PROPERTY=VALUE", help="A property as in broker.conf; may be repeated."),
]
ListenOption = Annotated[str, typer.Option("--listen", help="The address to listen on.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also log informational messages to standard error.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.001, max=3600, help="Seconds to wait for an answer.")]


def spoken(function: F) -> F:
    """Wrap a command: an error becomes a sentence (or a JSON line) and its exit code, never a stack trace.

    Only expected errors are caught. A bug still shows its stack trace.
    """

    @functools.wraps(function)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        interrupts.raise_again()  # from here on Ctrl-C needs a clean-up
        try:
            return function(*arguments, **options)
        except BrokenPipeError:
            # `kappamq tail | head`: the reader has closed the pipe. Nothing more may be written, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except (KappaError, OSError, KeyboardInterrupt) as error:
            # Servers also have --json, which means -o json.
            json = options.get("json") is True
            fail(Output(Format.JSON if json else options.get("output", Format.TEXT)), error)

    return wrapper  # type: ignore[return-value]


def fail(out: Output, error: BaseException | str, code: Exit | None = None) -> NoReturn:
    if code is None:
        code = exit_for(error) if isinstance(error, BaseException) else Exit.FAILED
    if code is Exit.INTERRUPTED:
        out.note(str(error) or "interrupted")
    else:
        out.error(error, code)
    raise typer.Exit(int(code))


def data_directory(given: Path | None) -> Path:
    """Return `--data`, else $KAPPAMQ_HOME, else ~/.kappamq; absolute, so that the printed path can be used anywhere."""
    if given is None:
        named = os.environ.get(HOME_VARIABLE, "")
        given = Path(named) if named else Path("~/.kappamq")
    try:
        found = given.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"cannot find the home directory for {given}: {error}; set --data") from error
    for place in (found, *found.parents):
        if place.is_file():
            raise StoreError(f"the data directory cannot be {found}: {place} is a file; choose a directory with --data")
    return found


def store_directory(given: Path | None) -> Path:
    """Return the directory of an existing store. Raises StoreError, which says where the path came from if it was not given."""
    from kappamq.store.reader import check_is_store

    root = data_directory(given)
    try:
        check_is_store(root)
    except StoreError as error:
        if given is not None:
            raise
        raise StoreError(f"{error}. This path is {why_this_directory(given)}") from None
    return root


def why_this_directory(given: Path | None) -> str:
    """Explain in words where `data_directory` got the path from."""
    if given is not None:
        return "given by --data"
    if os.environ.get(HOME_VARIABLE, ""):
        return f"given by ${HOME_VARIABLE}"
    return f"the default, since neither --data nor ${HOME_VARIABLE} is set"


def properties(given: list[str] | None) -> dict[str, str]:
    """Convert `--set name=value ...` to properties. Unlike in a file, an unknown name is an error here: it is a typo."""
    from kappamq.config import apache
    from kappamq.config.problems import Written

    found: dict[str, str] = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        name = name.strip()
        if not separator or not name:
            raise wrong("--set", f"{text}: write it as property=value")
        if not apache.is_known(name):
            raise ConfigError(f"--set: unknown property {apache.unknown_name(name)}")
        found[name] = Written(value.strip(), f"--set {name}")
    return found

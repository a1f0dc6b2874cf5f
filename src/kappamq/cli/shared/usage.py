"""Usage errors: what can be detected from the command line alone ends with exit code 2.

typer detects unknown options, missing arguments and numbers out of range. For other values (times, addresses, topic
names) raise `wrong`, which is the same kind of error, so both end in the same way: with `-o json` as a JSON line.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from kappamq.cli.shared.exits import Exit

# typer has either click's class or its own, depending on the version; BadParameter is always derived from it.
UsageError: Any = typer.BadParameter.__mro__[1]

_SENTENCE_END = re.compile(r"(?<=[a-z`)])\.\s+(?=[A-Z`])")

ALSO: dict[tuple[str, str], tuple[str, ...]] = {
    ("broker", "transfer-leader"): ("transfer-leader",),
    ("broker", "replace"): ("member", "replace"),
}
"""Other names of commands; `broker` alone starts one."""
IN_FRONT = ("-o", "--output", "-n", "--nameserver")


def wrong(what: str, why: object) -> typer.BadParameter:
    """Return the error for `what`, an option or argument as typed, to be raised."""
    return typer.BadParameter(str(why), param_hint=what)


def one_of(what: str, given: str, known: Sequence[str]) -> None:
    """Refuse a word that the option `what` does not have."""
    if given not in known:
        raise wrong(what, f"it must be {', '.join(known[:-1])} or {known[-1]}; got {given!r}")


def topic_name(given: str | None) -> str | None:
    """Callback for options and arguments that take a topic name."""
    from kappamq.errors import InvalidParameter
    from kappamq.protocol.names import check_topic

    try:
        return given if given is None else check_topic(given)
    except InvalidParameter as error:
        raise typer.BadParameter(str(error)) from None


class Family(TyperGroup):
    """A group of commands. An unknown command is answered with a list of the known ones."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first sentence of each, in as many lines as it takes: click would cut it."""
        rows = [
            (name, _first_sentence(command.help or "")) for name, command in self.commands.items() if not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0][:1] != "-" and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise UsageError(
                f"Unknown command '{ctx.command_path} {args[0]}'.{guess} Commands: {', '.join(self.commands)}.",
                ctx=ctx,
            )
        return super().resolve_command(ctx, args)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return _SENTENCE_END.split(paragraph, maxsplit=1)[0].rstrip(".")


class Commands(Family):
    """The root of all commands. With -o json usage errors are JSON lines like all others."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = self._output_behind(list(sys.argv[1:] if args is None else args))
        also = ALSO.get((given[0], given[1])) if len(given) > 1 else None
        if also is not None:
            given[:2] = also
        if not standalone_mode or not wants_json(given):
            return super().main(given, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except UsageError as error:
            self._tell(error.format_message(), "UsageError", Exit.USAGE)
        except typer.Abort:
            self._tell("not confirmed: nothing was done", "Abort", Exit.FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def _output_behind(self, given: list[str]) -> list[str]:
        """`-o json topic list` -> `topic list -o json`: accept options of most commands in front of them, too."""
        front = 0
        while front < len(given) and given[front].startswith(IN_FRONT):
            front += 2 if given[front] in IN_FRONT else 1
        if not front:
            return given
        option, rest = given[:front], given[front:]
        command = self.commands.get(rest[0]) if rest else None
        if command is None:
            return given
        words = 2 if isinstance(command, TyperGroup) or tuple(rest[:2]) in ALSO else 1
        return [*rest[:words], *option, *rest[words:]]

    @staticmethod
    def _tell(text: str, kind: str, code: Exit) -> None:
        line = json.dumps({"error": text, "kind": kind, "exit": int(code)}, ensure_ascii=False)
        print(line, file=sys.stderr, flush=True)
        sys.exit(int(code))


def wants_json(arguments: Sequence[str]) -> bool:
    """Detected without parsing, in case parsing fails."""
    alone = {"--json", "-ojson", "--output=json"}
    pairs = itertools.pairwise(arguments)
    return bool(alone & set(arguments)) or any(name in ("-o", "--output") and value == "json" for name, value in pairs)

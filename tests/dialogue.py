"""Tests as dialogues: text files of commands and what the tested part says to them. docs/TESTING.md shows how they are written.

A file is a list of blocks. A block is some commands, a line `----`, and what they say, up to the next empty line:

    # Comments stand before commands.
    given store flush=async
    when append 100
    then marks
    ----
    written 100, flushed 0

`given` at the beginning of a block begins a new scenario: everything before it is gone. Each command is a method of the class that the
test hands in: `when append 100` calls `when_append(100)`, `given store flush=async` calls `given_store(flush="async")`. Types come from
the method's annotations. What the methods return (a text, some lines or nothing) is compared, line by line.

`pytest --rewrite-dialogues` writes what was said into the files instead of comparing it; the change is then reviewed as text.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import shlex
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

OPTION = "--rewrite-dialogues"
LINE = "----"
KEYWORDS = ("given", "when", "then")
Said = str | Iterable[str] | None
"""What a command says: a text, some lines, or nothing."""


class DialogueError(Exception):
    """A script that cannot be played: malformed, or with a command that does not exist."""


@dataclass(frozen=True)
class Command:
    """One line: `when append 100 topic=tea`."""

    where: str
    text: str

    @property
    def keyword(self) -> str:
        return self.text.split(maxsplit=1)[0]

    def error(self, text: str) -> DialogueError:
        return DialogueError(f"{self.where}: `{self.text}`: {text}")

    def call(self, part: object) -> Said | Awaitable[Said]:
        """Find the method with the longest name that the line begins with, and call it with the rest of the line."""
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise self.error(str(error).lower()) from None
        for count in range(len(words), 1, -1):
            method = getattr(part, "_".join(words[:count]).lower(), None)
            if method is not None:
                positional, named = self._arguments(method, words[count:])
                said: Said | Awaitable[Said] = method(*positional, **named)
                return said
        known = ", ".join(f"`{name}`" for name in commands_of(part))
        raise self.error(f"there is no such command; there are {known}")

    def _arguments(self, method: Callable[..., Any], words: list[str]) -> tuple[list[Any], dict[str, Any]]:
        signature, types = inspect.signature(method), typing.get_type_hints(method)
        names = {name for name, parameter in signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}
        named, positional = {}, []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name in names:
                named[name] = value
            else:
                positional.append(word)
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            raise self.error(f"{error}; it takes {signature}") from None
        for name, value in bound.arguments.items():
            kind = types.get(name, str)
            try:
                bound.arguments[name] = (
                    tuple(_converted(each, kind) for each in value)
                    if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                    else _converted(value, kind)
                )
            except ValueError:
                raise self.error(f"{name}={value!r} is no {kind.__name__}") from None
        return list(bound.args), bound.kwargs


def _converted(value: str, kind: type) -> Any:
    if kind is bool:
        if value not in ("yes", "no"):
            raise ValueError(value)
        return value == "yes"
    return kind(value)


def commands_of(part: object) -> list[str]:
    return [name.replace("_", " ") for name in dir(part) if name.startswith(tuple(f"{word}_" for word in KEYWORDS))]


@dataclass
class Block:
    """Some commands and what they are expected to say. `before`: empty lines and comments in front of it."""

    where: str
    before: list[str]
    source: list[str]
    commands: list[Command]
    expected: list[str]
    said: list[str] = field(default_factory=list)

    async def play(self, part: object) -> None:
        for command in self.commands:
            try:
                said = command.call(part)
                if isinstance(said, Awaitable):
                    said = await said
            except DialogueError:
                raise
            except Exception as error:
                error.add_note(f"while playing {command.where}: `{command.text}`")
                raise
            for text in [said] if isinstance(said, str) else said or []:
                self.said += text.splitlines()
        self.said = [line.rstrip() for line in self.said]
        if not self.said:
            raise DialogueError(f"{self.where}: these commands say nothing, so nothing is tested: end with a `then`")
        if "" in self.said:
            raise DialogueError(f"{self.where}: an empty line would end the expectation; these commands said one")

    @property
    def difference(self) -> str:
        """What is not as expected, as a diff; empty if all is."""
        if self.said == self.expected:
            return ""
        lines = difflib.ndiff(self.expected, self.said)
        return "\n".join([f"{self.where}:", *(f"    {line}" for line in self.source), *(f"  {line}" for line in lines)])


class Scenario:
    """The blocks from one `given` to the next."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    async def play(self, part: object) -> None:
        """Say everything to `part`, in order."""
        for block in self.blocks:
            await block.play(part)

    def run(self, part: object) -> None:
        """The same on an event loop of its own, for parts that need no particular one."""
        asyncio.run(self.play(part))

    def run_without_loop(self, part: object) -> None:
        """The same for parts that wait for nothing, and may have an event loop of their own."""
        playing = self.play(part)
        try:
            playing.send(None)
        except StopIteration:
            return
        playing.close()
        raise DialogueError("a command waits for something: it needs an event loop")


class Script:
    """One file."""

    def __init__(self, path: Path, rewriting: bool = False) -> None:
        self.path = path
        self.rewriting = rewriting
        self.text = path.read_text(encoding="utf-8")
        self.blocks, self._after = self._parse()
        self.scenarios: list[Scenario] = []
        for block in self.blocks:
            if block.commands[0].keyword == "given":
                self.scenarios.append(Scenario())
            elif not self.scenarios:
                raise DialogueError(f"{block.where}: a scenario begins with `given`")
            self.scenarios[-1].blocks.append(block)

    def _at(self, number: int) -> str:
        return f"{self.path.name}:{number}"

    def _parse(self) -> tuple[list[Block], list[str]]:
        blocks: list[Block] = []
        lines = enumerate(self.text.splitlines(), 1)
        before: list[str] = []
        for number, line in lines:
            if not line or line.startswith("#"):
                before.append(line)
            else:
                blocks.append(self._block(number, line, before, lines))
                before = [""]
        if not blocks:
            raise DialogueError(f"{self.path.name}: there is no command in it")
        return blocks, before[1:]

    def _block(self, number: int, line: str, before: list[str], lines: Iterator[tuple[int, str]]) -> Block:
        where, source, commands = self._at(number), [], []
        while line != LINE:
            if not line:
                raise DialogueError(
                    f"{where}: no expectation: a line `{LINE}` and what is said must follow the commands"
                )
            source.append(line)
            if not line.startswith("#"):
                if line.split(maxsplit=1)[0] not in KEYWORDS or len(line.split()) < 2:
                    raise DialogueError(
                        f"{self._at(number)}: {line!r} does not begin with given, when or then and a command"
                    )
                commands.append(Command(self._at(number), line))
            number, line = next(lines, (number + 1, ""))
        if not commands:
            raise DialogueError(f"{where}: there is no command before `{LINE}`")
        expected = []
        for number, line in lines:
            if not line:
                break
            if line == LINE:
                raise DialogueError(f"{self._at(number)}: a second `{LINE}` in one block; an empty line is missing")
            expected.append(line)
        if not expected and not self.rewriting:
            raise DialogueError(f"{where}: nothing is expected; pytest {OPTION} writes what is said")
        return Block(where, before, source, commands, expected)

    def replay(self, perform: Callable[[Scenario], None]) -> None:
        """Have each scenario played by `perform`, which hands it a fresh part. Compares, or rewrites the file."""
        for scenario in self.scenarios:
            perform(scenario)
        if self.rewriting:
            text = self.rewritten()
            if text != self.text:
                self.path.write_text(text, encoding="utf-8")
            return
        differences = [block.difference for block in self.blocks if block.difference]
        if differences:
            legend = f"- expected, + said; `pytest {OPTION}` accepts what was said"
            pytest.fail("\n\n".join([f"{self.path}: {legend}", *differences]), pytrace=False)

    def rewritten(self) -> str:
        lines: list[str] = []
        for block in self.blocks:
            lines += [*block.before, *block.source, LINE, *block.said]
        return "\n".join([*lines, *([""] if self._after else []), *self._after, ""])


def scripts(test_file: str, *names: str) -> pytest.MarkDecorator:
    """Parametrize a test with scripts of the folder `dialogues` beside it. The test gets each as `dialogue`, a path."""
    folder = Path(test_file).parent / "dialogues"
    return pytest.mark.parametrize("dialogue", [folder / f"{name}.txt" for name in names], ids=names)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, action="store_true", help="write what was said into the dialogues (tests/**/dialogues/*.txt)"
    )


@pytest.fixture
def script(dialogue: Path, request: pytest.FixtureRequest) -> Script:
    """The script that `scripts` chose."""
    return Script(dialogue, rewriting=bool(request.config.getoption(OPTION)))


def table(rows: Iterable[Iterable[object]]) -> list[str]:
    """Rows with columns below each other."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*texts, fillvalue="")]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in texts]

"""The runner of dialogues: what it compares, what it refuses, what it rewrites."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.dialogue import DialogueError, Scenario, Script, table

GOOD = """\
# About counting.

given counter start=5
# in between
when add 2 3
then value
----
10

when add 1
then value
----
11

# Another one.
given counter
then value
----
0

# The end.
"""


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def given_counter(self, *, start: int = 0, quiet: bool = True) -> str | None:
        self.value = start
        return None if quiet else "hello"

    def when_add(self, *numbers: int) -> None:
        self.value += sum(numbers)

    async def when_add_slowly(self, number: int) -> list[str]:
        self.value += number
        return ["slowly", str(self.value)]

    async def when_wait(self) -> str:
        await asyncio.sleep(0)
        return "waited"

    def when_it_fails(self) -> None:
        raise KeyError("broken")

    def then_value(self) -> str:
        return f"{self.value}  "

    def then_gap(self) -> str:
        return "a\n\nb"


def perform(scenario: Scenario) -> None:
    scenario.run(Counter())


def written(folder: Path, text: str) -> Path:
    path = folder / "counting.txt"
    path.write_text(text)
    return path


def replay(folder: Path, text: str) -> None:
    Script(written(folder, text)).replay(perform)


def test_each_given_begins_anew(tmp_path: Path) -> None:
    replay(tmp_path, GOOD)


def test_a_wrong_expectation_fails_with_a_diff_that_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        replay(tmp_path, GOOD.replace("\n11\n", "\n12\n"))
    text = str(failed.value)
    assert "counting.txt:10:\n    when add 1\n    then value\n  - 12\n" in text
    assert "  + 11" in text
    assert "counting.txt:3" not in text, "only what differs is shown"


@pytest.mark.parametrize(("found", "wanted"), [("11\n12", "11"), ("", "11")], ids=["more", "less"])
def test_a_missing_or_an_extra_line_is_a_difference(tmp_path: Path, found: str, wanted: str) -> None:
    text = "given counter start=11\nwhen add slowly 0\n----\nslowly\n" + wanted.replace("11", found or "slowly") + "\n"
    with pytest.raises(pytest.fail.Exception):
        replay(tmp_path, text)


def test_rewriting_changes_expectations_and_nothing_else(tmp_path: Path) -> None:
    for text in (GOOD.replace("\n11\n", "\n12\n13\n"), GOOD.replace("\n11\n", "\n")):
        path = written(tmp_path, text)
        Script(path, rewriting=True).replay(perform)
        assert path.read_text() == GOOD
    Script(path).replay(perform)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "counting.txt: there is no command"),
        ("# only a comment\n", "counting.txt: there is no command"),
        ("given counter\nthen value\n", "counting.txt:1: no expectation"),
        ("given counter\nthen value\n\n0\n", "counting.txt:1: no expectation"),
        ("given counter\nthen value\n----\n", "counting.txt:1: nothing is expected"),
        ("given counter\nthen value\n----\n\n0\n", "counting.txt:1: nothing is expected"),
        ("----\n0\n", "counting.txt:1: there is no command before"),
        ("given counter\nvalue\n----\n0\n", "counting.txt:2: 'value' does not begin with"),
        ("given counter\nthen\n----\n0\n", "counting.txt:2: 'then' does not begin with"),
        ("when add 1\nthen value\n----\n1\n", "counting.txt:1: a scenario begins with `given`"),
        ("given counter\nthen value\n----\n0\nthen value\n----\n0\n", "counting.txt:6: a second `----`"),
        ("given counter\nwhen subtract 1\n----\n0\n", r"counting.txt:2: .*no such command; there are .*`when add`"),
        ("given counter\nwhen value\n----\n0\n", r"counting.txt:2: .*no such command"),
        ("given counter begin=5\nthen value\n----\n0\n", "counting.txt:1: .*too many positional"),
        ("given counter\nwhen add slowly\n----\n0\n", "counting.txt:2: .*missing a required argument: 'number'"),
        ("given counter\nwhen add one\n----\n0\n", "counting.txt:2: .*is no int"),
        ("given counter quiet=perhaps\n----\n0\n", "counting.txt:1: .*is no bool"),
        ("given counter\nwhen add '1\n----\n0\n", "counting.txt:2: .*no closing quotation"),
        ("given counter\nwhen add 1\n----\n0\n", "counting.txt:1: these commands say nothing"),
        ("given counter\nthen gap\n----\na\n", "counting.txt:1: an empty line would end"),
    ],
)
def test_a_script_that_cannot_be_played_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DialogueError, match=error):
        Script(path).replay(perform)
    if "nothing is expected" not in error:  # that is what rewriting is for
        with pytest.raises(DialogueError, match=error):
            Script(path, rewriting=True).replay(perform)
    assert path.read_text() == text, "an error rewrites nothing"


def test_an_error_of_the_tested_part_says_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="broken") as failed:
        replay(tmp_path, "given counter\nwhen it fails\n----\n0\n")
    assert failed.value.__notes__ == ["while playing counting.txt:2: `when it fails`"]


def test_without_a_loop_nothing_can_be_waited_for(tmp_path: Path) -> None:
    plain = "given counter\nwhen add slowly 1\n----\nslowly\n1\n"
    Script(written(tmp_path, plain)).replay(lambda scenario: scenario.run_without_loop(Counter()))
    waiting = "given counter\nwhen wait\n----\nwaited\n"
    replay(tmp_path, waiting)
    with pytest.raises(DialogueError, match="needs an event loop"):
        Script(written(tmp_path, waiting)).replay(lambda scenario: scenario.run_without_loop(Counter()))


def test_columns_stand_below_each_other() -> None:
    assert table([["a", 10], ["long", 2, "x"]]) == ["a     10", "long  2   x"]

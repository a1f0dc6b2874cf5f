from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.output import Format, Output, counted, literal, show, size, when
from kappamq.errors import TopicNotFound


@dataclass
class Thing:
    name: str


def test_json_is_one_value_a_line_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(Format.JSON)
    out.line("[bold]for people[/]", offset=3, body=b"\xc3\xa4\xff", path=Path("/x"), thing=Thing("t"), many={2, 1})
    out.table("title", ["a"], [{"a": 1, "b": [2]}, {"a": None}])
    out.note("not for programs")
    captured = capsys.readouterr()
    assert [json.loads(line) for line in captured.out.splitlines()] == [
        {"offset": 3, "body": "ä�", "path": "/x", "thing": {"name": "t"}, "many": [1, 2]},
        {"a": 1, "b": [2]},
        {"a": None},
    ]
    assert captured.err == ""


def test_text_shows_rows_and_keeps_results_apart(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.line("[bold]hello[/]", x=1)
    out.table("queues", ["id", "name"], [{"id": 1, "name": "[red]literal[/]"}, {"id": 22, "name": None}])
    out.note("a note")
    out.warn("a warning")
    captured = capsys.readouterr()
    assert "hello" in captured.out
    assert "[red]literal[/]" in captured.out
    assert "22" in captured.out
    assert "note" not in captured.out
    assert "a note" in captured.err
    assert "warning: a warning" in captured.err


def test_errors_are_sentences_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error(TopicNotFound("no topic tea"), Exit.NOT_FOUND)
    assert "error: no topic tea" in capsys.readouterr().err
    Output(Format.JSON).error(TopicNotFound("no topic tea"), Exit.NOT_FOUND)
    Output(Format.JSON).error("plain", Exit.FAILED)
    Output(Format.JSON).warn("careful")
    captured = capsys.readouterr()
    assert [json.loads(line) for line in captured.err.splitlines()] == [
        {"error": "no topic tea", "kind": "TopicNotFound", "exit": 5},
        {"error": "plain", "kind": "error", "exit": 1},
        {"warning": "careful"},
    ]
    assert captured.out == ""


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("working", 10) as at:
        at(5)
        at(10, total=20)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_cells() -> None:
    assert [show(value) for value in (None, True, 1234.56, 7, "x", [1, None])] == [
        "-",
        "yes",
        "1,234.6",
        "7",
        "x",
        "1, -",
    ]
    assert [size(value) for value in (0, 1023, 1024, 5 << 20, 3 << 30, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "1024.0 TiB",
    ]


def test_times() -> None:
    assert when(0) == when(None) == when(-1) == "-"
    assert len(when(1_700_000_000_123)) == len("2023-11-14 22:13:20.123")
    assert when(1_700_000_000_123).endswith(".123")
    assert when(1 << 62).endswith(" ms")


def test_counted() -> None:
    assert [counted(n, "queue") for n in (0, 1, 2)] == ["0 queues", "1 queue", "2 queues"]
    assert counted(2, "broker address") == "2 broker addresses"
    assert (counted(1, "entry"), counted(2, "entry")) == ("1 entry", "2 entries")


def test_a_live_table_where_there_is_no_terminal_is_printed_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    for out in (Output(), Output(Format.JSON)):
        with out.live() as show_table:
            show_table("first", ["id"], [{"id": 41}])
            show_table("second", ["id"], [{"id": 42}])
        lines = capsys.readouterr().out
        assert (lines.count("41"), lines.count("42")) == (1, 1)
        assert ("first" in lines) is not out.json


def test_a_live_table_on_a_terminal_replaces_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    out = Output()
    terminal = Console(file=text, force_terminal=True, width=40)
    monkeypatch.setattr(out, "console", lambda err=False: terminal)
    with out.live() as show_table:
        show_table("first", ["id"], [{"id": 41}])
        show_table("second", ["id"], [{"id": 42}])
    first, second = text.getvalue().index("41"), text.getvalue().index("42")
    assert "\x1b[1A" in text.getvalue()[first:second], "the cursor goes back up"


def test_what_others_say_is_no_command_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a[/]\x1b]0;title\x07"
    out = Output()
    out.line(f"[bold]{literal(evil)}[/]")
    out.table("brokers", ["name"], [{"name": evil}])
    out.note(evil)
    out.warn(evil)
    out.error(evil, Exit.FAILED)
    captured = capsys.readouterr()
    assert "\x1b]" not in captured.out + captured.err
    assert captured.out.count(r"a[/]\x1b]0;title\x07") == 2


@pytest.mark.parametrize("text", ["a[1]", "[/]", "\\[/]", "\\\\[bold]", "ends with \\", "[link=x]", "plain"])
def test_a_literal_is_shown_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output().line(f"[bold]{literal(text)}[/]")
    assert capsys.readouterr().out == text + "\n"

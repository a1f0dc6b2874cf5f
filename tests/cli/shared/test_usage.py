"""One rule for wrong arguments: what can be seen in the command line alone ends with 2, also for programs."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from kappamq.cli.shared.usage import Commands, topic_name, wants_json, wrong
from tests.cli.conftest import run_kappamq

SEND = ["send", "-t", "tea", "-b", "x"]

WRONG = [
    ([*SEND, "--teapot"], "--teapot"),
    (["send", "-b", "x"], "--topic"),
    (["send", "-t", "tea"], "--body TEXT"),
    (["send", "-t", "tea", "-b", "x", "--lines"], "--lines"),
    ([*SEND, "--count", "0"], "--count"),
    ([*SEND, "--timeout", "soon"], "--timeout"),
    ([*SEND, "--key", "a b"], "must not contain blanks"),
    ([*SEND, "--property", "teapot"], "name=value"),
    (["send", "-t", "no/topic", "-b", "x"], "not allowed"),
    (["send", "-t", "", "-b", "x"], "empty"),
    (["tail", "no topic"], "not allowed"),
    (["tail", "tea", "--from", "teatime"], "is not a time; expected start, end or "),
    (["query", "time", "tea", "--from", "teatime"], "--from"),
    (["query", "time", "tea", "--from", "1h", "--to", "17"], "--to"),
    (["query", "time", "tea", "--from", "1h", "--to", "2h"], "is after --to"),
    (["query", "key", "x" * 300, "k"], "the limit is"),
    (["query", "id", "0", "--topic", "a/b"], "not allowed"),
    (["topic", "create", "../tea"], "not allowed"),
    (["topic", "create", "tea", "--queues", "0"], "--queues"),
    (["topic", "list", "-n", "tea pot"], "host:port"),
    (["topic", "list", "-n", " ; "], "contains no address"),
    (["topic", "list", "--tls-cert", "c.pem"], "--tls-key"),
    (["topic", "brew"], "'kappamq topic brew'. Commands: list, create, "),
    (["topic", "creat"], "Did you mean 'create'?"),
    (["query", "id", "zzz"], "not an id"),
    (["tpic"], "Did you mean 'topic'?"),
    (["bench", "--batch", "100", "--size", "1000000"], "4 MiB"),
    (["store", "inspect", "--topic", "a/b"], "not allowed"),
    (["doctor", "-n", "localhost:0"], "host:port"),
    (["up", "--set", "teapot"], "property=value"),
    (["up", "--broker-port", "70000"], "--broker-port"),
]


@pytest.mark.parametrize(
    ("arguments", "text"), WRONG, ids=lambda value: "_".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_command_line_is_2(arguments: list[str], text: str) -> None:
    shown = run_kappamq(*arguments)
    assert (shown.exit_code, shown.out) == (2, "")
    assert text in shown.err
    told = run_kappamq(*arguments, "-o", "json")
    assert (told.exit_code, told.out) == (2, "")
    assert text in told.problem["error"]
    assert told.problem["exit"] == 2


def test_the_environment_counts_as_the_option_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", "tea:pot")
    assert run_kappamq("topic", "list").exit_code == 2


def test_what_the_command_line_names_may_be_wrong_as_well_and_that_is_3(kappamq: Any, tmp_path: Any) -> None:
    for arguments in (
        ["send", "-t", "tea", "-f", str(tmp_path / "none")],
        ["topic", "list", "--tls-ca", str(tmp_path / "none.pem")],
        ["up", "--data", str(tmp_path / "d"), "--set", "teapot=1"],
        ["up", "--data", str(tmp_path / "d"), "-c", str(tmp_path / "none.conf")],
    ):
        ran = kappamq(*arguments, "-o", "json")
        assert (ran.exit_code, ran.problem["exit"]) == (3, 3), ran


def test_a_question_that_is_answered_no_is_1_for_programs_too(kappamq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.cli.topic.on_a_terminal", lambda: True)
    assert kappamq("send", "-t", "tea", "-b", "x").exit_code == 0
    ran = kappamq("topic", "delete", "tea", "-o", "json", stdin="n\n")
    assert ran.exit_code == 1
    assert '{"error": "not confirmed: nothing was done"' in ran.err


def test_json_is_seen_before_anything_is_parsed() -> None:
    for arguments in (["-o", "json"], ["--output", "json"], ["--output=json"], ["-ojson"], ["up", "--json"]):
        assert wants_json(arguments)
    for arguments in ([], ["-o"], ["-o", "text", "json"], ["send", "-b", "json"]):
        assert not wants_json(arguments)


def test_the_output_option_may_stand_in_front(kappamq: Any) -> None:
    behind = kappamq("version", "-o", "json").json
    for option in (["-o", "json"], ["-ojson"], ["--output=json"], ["--output", "json"]):
        assert kappamq(*option, "version").json == behind
    assert kappamq("-o", "json", "topic", "list").out == kappamq("topic", "list", "-o", "json").out
    nowhere = kappamq("-n", "127.0.0.1:1", "-ojson", "topic", "list", "--timeout", "1")
    assert (nowhere.exit_code, "127.0.0.1:1" in nowhere.problem["error"]) == (4, True)
    assert kappamq("-o", "json", "topic").problem["exit"] == 2
    assert kappamq("-o", "json").exit_code == 2


def test_pieces() -> None:
    assert (topic_name(None), topic_name("tea")) == (None, "tea")
    with pytest.raises(typer.BadParameter):
        topic_name("a b")
    assert "--from" in wrong("--from", "not a time").format_message()
    assert issubclass(Commands, typer.core.TyperGroup)

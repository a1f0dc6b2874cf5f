"""The command line as a whole: what it offers, how quick it is, and that it is documented."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kappamq
from tests.cli.conftest import run_kappamq

COMMANDS = "up nameserver broker topic send tail query bench store pipeline doctor shop version".split()
DOCUMENT = (Path(__file__).parents[2] / "docs" / "CLI.md").read_text(encoding="utf-8")


def test_help_names_every_command() -> None:
    ran = run_kappamq("--help")
    assert ran.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in ran.out
        assert f"kappamq {command}" in DOCUMENT, f"docs/CLI.md does not tell about `kappamq {command}`"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    assert run_kappamq(command, "--help").exit_code == 0


def all_commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found += all_commands(command, (*path, name))
        else:
            found.append(((*path, name), command))
    return found


def test_every_command_has_json_output() -> None:
    import typer.main

    from kappamq.cli import app

    for path, command in all_commands(typer.main.get_command(app)):
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"-o", "--output"} <= options, f"kappamq {' '.join(path)} has no -o json"


def test_version() -> None:
    assert run_kappamq("--version").out.startswith(f"kappamq {kappamq.__version__} ")
    (told,) = run_kappamq("version", "-o", "json").json
    assert told["version"] == kappamq.__version__
    assert told["kernel"] in ("native", "twin")


@pytest.mark.parametrize(
    "arguments", [["tea"], ["send"], ["send", "--count", "0", "-t", "x"], ["up", "--broker-port", "x"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    assert run_kappamq(*arguments).exit_code == 2


def test_help_is_quick() -> None:
    """In CPU time, against what the parts of the standard library cost that every such program loads: a neighbour
    makes both slower. What it must not do is load the broker, the client or Spark."""
    start_up = min(cpu_seconds("-c", "pass") for _ in range(3))
    ratios: list[float] = []
    while len(ratios) < 20 and min(ratios, default=9.0) >= 2.5:
        standard = cpu_seconds("-c", "import argparse, asyncio, json, logging") - start_up
        ratios.append((cpu_seconds("-m", "kappamq", "--help") - start_up) / standard)
    assert min(ratios) < 2.5, ratios


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=30)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_a_pipe_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m kappamq topic --help | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True, env=os.environ
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("family", [[], ["topic"], ["member"], ["store"], ["pipeline"], ["query"], ["scope"]])
def test_no_description_of_a_command_is_cut(family: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run_kappamq(*family, "--help").out
    listing = shown.partition("Commands:")[2]
    assert listing
    assert "..." not in listing
    assert max(map(len, shown.splitlines())) <= 80

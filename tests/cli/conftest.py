"""One small cluster for all tests of the command line, and a way to run commands against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kappamq.cli import app
from kappamq.local import Local, LocalThread

# Small files: the default log file has 1 GiB, and a test machine may be short of disk.
SMALL = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "maxMessageSize": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "brokerName": "broker-a",
}


@dataclass
class Ran:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def problem(self) -> Any:
        """The last JSON line on standard error."""
        return json.loads(self.err.splitlines()[-1])


def run_kappamq(*arguments: str, stdin: str | bytes | None = None) -> Ran:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    data = tmp_path_factory.mktemp("cluster")
    with LocalThread(small_local(data)) as local:
        yield local


def small_local(data: Path) -> Local:
    return Local.at(data, nameserver_port=0, broker_port=0, host="127.0.0.1", properties=SMALL)


@pytest.fixture
def kappamq(cluster: Local, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command against the cluster; its name server comes from the environment, as a user would set it."""
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", cluster.nameserver)
    return run_kappamq


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    return "t_" + "".join(char if char.isalnum() else "_" for char in request.node.name)[:60]

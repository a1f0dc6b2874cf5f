"""Ctrl-C while Spark starts and while it works: nothing of it is left, and nothing but a word is told."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kappamq.spark import gateway
from tests.waiting import eventually

pytestmark = pytest.mark.spark

START = """
from kappamq.spark.engine import command_session
try:
    with command_session("local[1]"):
        pass
except KeyboardInterrupt:
    print("interrupted")
"""
WORK = """
import sys, time
from pathlib import Path
from kappamq.spark.engine import command_session, told

place = sys.argv[1]  # a worker has other arguments

def wait(_row):
    Path(place).touch()
    time.sleep(600)

try:
    with command_session("local[1]") as spark, told():
        spark.sparkContext.parallelize([1]).foreach(wait)
except KeyboardInterrupt:
    print("interrupted")
"""


def processes(session: int) -> dict[int, str]:
    """Those of a session of processes that are alive, and their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _parent, _group, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(of) == session and state != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue  # it has just ended
    return found


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, path: str = "") -> subprocess.Popen[str]:
        # A file, not a pipe: what is left behind would hold a pipe open.
        with (tmp_path / "output").open("w") as output:
            command = [sys.executable, "-c", program, *arguments]
            environment = os.environ | {"PATH": path + os.environ["PATH"]}
            child = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=environment,
            )
        children.append(child)
        return child

    yield start
    for child in children:
        for left in processes(child.pid):
            os.kill(left, signal.SIGKILL)
        child.wait()


def interrupt(child: subprocess.Popen[str]) -> None:
    """As a terminal does it: to the whole group."""
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(60) == 0
    # Spark's launcher, a short-lived Java, may still be about to end.
    eventually(lambda: not processes(child.pid), text=f"the end of {processes(child.pid)}")


def told(folder: Path) -> list[str]:
    """What the program and its children wrote, without what a whole JDK says of itself."""
    lines = (folder / "output").read_text().splitlines()
    return [line for line in lines if line != "WARNING: Using incubator modules: jdk.incubator.vector"]


def test_an_interrupt_while_java_starts_leaves_no_process(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = started(START)
    eventually(lambda: any("SparkSubmit" in line for line in processes(child.pid).values()), timeout=60)
    interrupt(child)
    assert told(tmp_path) == ["interrupted"]


def test_an_interrupt_before_java_starts_leaves_no_process(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The scripts of Spark are still finding out what to start: here their shell does not come to an end."""
    folder, began = tmp_path / "bin", tmp_path / "began"
    folder.mkdir()
    (folder / "bash").write_text(f"#!/bin/sh\ntouch '{began}'\nexec sleep 600\n")
    (folder / "bash").chmod(0o755)
    child = started(START, path=f"{folder}:")
    eventually(began.exists, timeout=60)
    interrupt(child)
    assert told(tmp_path) == ["interrupted"]


def test_an_interrupted_job_is_told_without_a_traceback(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = started(WORK, str(tmp_path / "working"))
    eventually((tmp_path / "working").exists, timeout=60)
    interrupt(child)
    assert told(tmp_path) == ["interrupted"]


def test_only_py4j_is_kept_from_logging(caplog: pytest.LogCaptureFixture) -> None:
    with gateway.without_py4j_tracebacks():
        for path in ("/x/py4j/java_gateway.py", "/x/ours.py"):
            logging.root.handle(logging.LogRecord("root", logging.ERROR, path, 1, path, (), None))
    assert caplog.messages == ["/x/ours.py"]


def test_pyspark_does_not_log_what_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        with gateway.without_py4j_tracebacks():
            logging.getLogger(name).error("with its stack")
        assert not caplog.messages
        logging.getLogger(name).error("after it")
        assert caplog.messages.pop() == "after it"
        caplog.clear()


def test_a_process_that_was_never_made_needs_no_end() -> None:
    gateway.end(object.__new__(subprocess.Popen))


def test_a_process_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_PATIENCE_S", 0.05)
    deaf = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gateway.end(process)
        assert process.returncode == -signal.SIGKILL

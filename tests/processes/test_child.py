"""Real processes: what they say, how they end, and that they end with us."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from kappamq.errors import ConfigError, KappaError, StoreError
from kappamq.event_loop import run
from kappamq.processes.child import LAST_LINES, LINE_BYTES_MAX, Child, lines, object_of
from tests.waiting import eventually, eventually_async

READY = "import sys, time; print('{\"a\": 1}', flush=True); "
UNTIL_EOF = "sys.stdin.read()"


def with_child(program: str, work: Callable[[Child, list[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        heard: list[str] = []
        child = await Child.start("the child", [sys.executable, "-c", program], heard.append)
        try:
            async with asyncio.timeout(60):
                await work(child, heard)
        finally:
            await child.stop(0)

    run(main())


def test_ready_and_stopped() -> None:
    async def work(child: Child, heard: list[str]) -> None:
        assert await child.ready(60) == {"a": 1}
        assert child.running
        assert await child.stop(60)
        assert await child.ended() == -signal.SIGTERM
        assert child.how_it_ended() == f"(process {child.pid}) was ended by SIGTERM"

    with_child(READY + UNTIL_EOF, work)


@pytest.mark.parametrize(("code", "kind"), [(3, ConfigError), (7, StoreError), (1, KappaError)])
def test_an_end_before_it_was_ready_is_an_error_of_its_kind(code: int, kind: type[KappaError]) -> None:
    async def work(child: Child, heard: list[str]) -> None:
        with pytest.raises(kind) as caught:
            await child.ready(60)
        assert type(caught.value) is kind
        assert f"the child (process {child.pid}) ended with exit code {code}\n  why: no luck" in str(caught.value)
        assert heard == ["why: no luck"]

    with_child(f"import sys; print('why: no luck', file=sys.stderr); sys.exit({code})", work)


def test_one_that_is_never_ready() -> None:
    async def work(child: Child, heard: list[str]) -> None:
        await eventually_async(lambda: heard, text="its log is read")
        with pytest.raises(KappaError, match=r"the child was not ready within 0.01 s; its last lines:\n  loading"):
            await child.ready(0.01)

    with_child("import sys; print('loading', file=sys.stderr, flush=True); " + UNTIL_EOF, work)


def test_one_that_does_not_stop_is_killed() -> None:
    async def work(child: Child, heard: list[str]) -> None:
        await child.ready(60)
        assert not await child.stop(0.05)
        assert await child.ended() == -signal.SIGKILL

    with_child("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + UNTIL_EOF, work)


def test_only_the_last_lines_are_kept_and_no_line_is_endless() -> None:
    program = "import sys; [print(text, file=sys.stderr) for text in (*range(100), 'x' * 1_000_000, 'end')]"

    async def work(child: Child, heard: list[str]) -> None:
        assert await child.ended() == 0
        assert len(heard) == 102
        assert len(child.last_lines) == LAST_LINES
        assert list(child.last_lines)[-3:] == ["99", "x" * LINE_BYTES_MAX, "end"]

    with_child(program, work)


def test_lines_of_a_stream_in_any_pieces() -> None:
    async def main() -> list[str]:
        reader = asyncio.StreamReader()
        for piece in (b"a\nb", b"c\n\n", b"x" * (LINE_BYTES_MAX + 1), b"y" * 10, b"\nlast \xff"):
            reader.feed_data(piece)
        reader.feed_eof()
        return [line async for line in lines(reader)]

    assert asyncio.run(main()) == ["a", "bc", "", "x" * LINE_BYTES_MAX, "last �"]


PARENT = """
import asyncio, sys
from kappamq.event_loop import run
from kappamq.processes.child import Child
async def main():
    child = await Child.start("c", [sys.executable, "-c", sys.argv[1]], print)
    await child.ready(60)
    print(child.pid, flush=True)
    await child.ended()
run(main())
"""


def test_no_orphan_is_left_when_we_are_killed() -> None:
    command = [sys.executable, "-c", PARENT, READY + UNTIL_EOF]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    eventually(lambda: not is_running(pid), text="the child ends, too")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError):
        return False


def test_errors_and_warnings_of_a_program_are_told_from_its_log() -> None:
    assert object_of('{"error": "no luck", "exit": 7}') == {"error": "no luck", "exit": 7}
    assert object_of("2026-11-18 WARNING x: {}") == object_of("{not json") == object_of("[1]") == {}

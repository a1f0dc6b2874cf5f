"""`kappamq pipeline ...` in a process group of its own, killed with -9 in the middle of its batches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kappamq.testing import BrokerKit
from tests.waiting import eventually

START_S_MAX = 300.0


def killed(command: list[str], broker: BrokerKit, log: Path, when: Callable[[], bool]) -> None:
    """Start the command, and kill it and its Java when `when` is true. It must not have ended by itself."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kappamq", "pipeline", *command, "--master", "local[2]"],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "KAPPAMQ_NAMESERVER": broker.nameserver, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        eventually(lambda: when() or process.poll() is not None, timeout=START_S_MAX)
        assert process.poll() is None, f"it ended by itself:\n{log.read_text()[-3000:]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def last_batch(broker: BrokerKit, scope: str) -> int:
    """The last batch that was decided, -1 before the first one."""
    with broker.admin() as admin:
        return max((state.last for state in admin.scopes(scope).get(scope, {}).values()), default=-1)


def staged(broker: BrokerKit, scope: str) -> int:
    """Chunks that are staged and not published."""
    with broker.admin() as admin:
        return sum(state.staged_chunks for state in admin.scopes(scope).get(scope, {}).values())

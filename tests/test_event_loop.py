from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from kappamq.event_loop import loop_factory, run


async def name_of_the_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert run(name_of_the_loop()).startswith("uvloop")


def test_asyncio_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
    assert run(name_of_the_loop()).startswith("asyncio")


def test_errors_come_out() -> None:
    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run(fail())


def test_what_is_loaded_is_not_looked_at_again() -> None:
    """In a process of its own: the collector's settings belong to all of it."""
    code = (
        "import gc; from kappamq import event_loop; import kappamq.broker.broker\n"
        "event_loop.spare_garbage_collections()\n"
        "assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()\n"
        "assert gc.get_threshold() == event_loop.GARBAGE_THRESHOLDS\n"
        "assert gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

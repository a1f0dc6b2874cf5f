from __future__ import annotations

import asyncio
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

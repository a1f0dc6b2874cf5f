"""Requests of a scope are repeated for a while, if that can help."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.client.batches.patience import Patience
from kappamq.errors import IllegalMessage, NoPermission, NotConnected
from tests.broker.running import run


def test_what_may_pass_is_repeated_for_so_long() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        patience, began = Patience(0.4), loop.time()
        away = NotConnected("away")
        await patience.wait_after(away)
        await patience.wait_after(away)
        assert loop.time() - began >= 0.3, "0.1 and 0.2 s"
        with pytest.raises(NotConnected, match="away"):
            await patience.wait_after(away)

    run(test())


def test_what_never_passes_is_raised_at_once() -> None:
    async def test() -> None:
        for error in (IllegalMessage("too large"), NoPermission("not yours")):
            with pytest.raises(type(error), match=str(error)):
                await Patience(100).wait_after(error)

    run(test())

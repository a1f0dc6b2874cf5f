"""Servers on one loop share its turns."""

from __future__ import annotations

import asyncio
import gc
import weakref

from kappamq.net.requests.loop_share import LoopShare


def test_one_for_each_loop() -> None:
    async def share() -> LoopShare:
        assert LoopShare.of_this_loop() is LoopShare.of_this_loop()
        return LoopShare.of_this_loop()

    assert asyncio.run(share()) is not asyncio.run(share())


def test_the_last_server_that_stops_ends_it() -> None:
    async def test() -> None:
        share = LoopShare.of_this_loop()
        for _ in range(2):
            share.start()
        share.stop()
        assert share.beside._thread is not None
        share.stop()
        assert share.beside._thread is None
        share.start()
        assert share.beside._thread is not None, "a server may start again on the same loop"
        share.stop()

    asyncio.run(test())


def test_a_loop_that_is_closed_is_let_go() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def serve(*, started: bool) -> None:
        share = LoopShare.of_this_loop()
        if started:
            share.start()
            share.stop()
        loops.append(weakref.ref(asyncio.get_running_loop()))

    for started in (False, True, True):
        asyncio.run(serve(started=started))
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


def test_a_server_that_starts_after_the_last_one_stopped_shares_with_those_that_follow() -> None:
    async def test() -> None:
        share = LoopShare.of_this_loop()
        share.start()
        share.stop()
        share.start()
        assert LoopShare.of_this_loop() is share
        share.stop()

    asyncio.run(test())

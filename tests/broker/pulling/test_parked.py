"""Parked pulls are tried again when their queue grows or their time is up; between the store and pulls there is nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from kappamq import native
from kappamq.broker.machine import new_kernel
from kappamq.broker.pulling import waking
from kappamq.broker.pulling.parked import ParkedPulls
from kappamq.broker.pulling.waking import PullRequest
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection
from kappamq.store.message_store import MessageStore
from tests.store.stores import BOOT, Writer, config, kernels


class Peer:
    is_open = True
    is_stalled = False


def never(job: Coroutine[Any, Any, None]) -> None:
    job.close()
    raise AssertionError("there was time for all of them")


@pytest.mark.parametrize("kind", kernels())
def test_the_store_wakes_them(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "SLICE_S", 60.0)  # however busy the machine is, they are woken in one turn

    async def test() -> None:
        settings, module = config(tmp_path), native.load(kind)
        kernel = new_kernel(module, BrokerConfig(), settings, NetConfig())
        parked = ParkedPulls(kernel, FairTurns(), never, 10, 3)
        store = MessageStore(settings, module, kernel, grown=parked.grown)
        store.open(BOOT)
        again: list[tuple[int, int]] = []

        def request(peer: Peer, queue_id: int, number: int) -> PullRequest:
            return PullRequest(
                cast(Connection, peer), "g", "t", queue_id, 0, 32, None, 1000, number, False,
                lambda woken: again.append((woken.opaque, woken.suspend_ms)),
            )  # fmt: skip

        one, two = Peer(), Peer()
        for number, (peer, queue_id) in enumerate([(one, 0), (one, 1), (two, 1), (two, 2)]):
            assert parked.park(request(peer, queue_id, number), until=float(number))
        assert (parked.count, parked.waits_for("t", 1, cast(Connection, one))) == (4, 1)
        writer = Writer(store)
        writer.send(b"x", "t", 1)
        assert again == []
        writer.write()
        assert again == [(1, 1000), (2, 1000)]
        parked.expire(now=0.5)
        assert again[2:] == [(0, 0)], "it wants an answer now"
        parked.park(request(one, 0, 7), until=9.0)
        assert [waiting.opaque for waiting in parked.take("t", 2)] == [3]
        assert [waiting.opaque for waiting in parked.take_of(cast(Connection, one), "t")] == [7]
        parked.park(request(two, 0, 8), until=9.0)
        parked.lost(cast(Connection, two))
        assert parked.count == 0
        assert [parked.park(request(one, 0, 9), until=9.0) for _ in range(4)] == [True, True, True, False]
        store.close()

    asyncio.run(asyncio.wait_for(test(), 30))

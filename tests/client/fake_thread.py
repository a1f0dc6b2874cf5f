"""The fake cluster on a loop of its own thread, for blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.client.fake import FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    made: list[FakeCluster] = []

    async def serve() -> None:
        async with fake_cluster(brokers=1, tea=4) as running:
            made.append(running)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield made[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()

"""A broker that dies at each of its changes on disk while a batch is staged, decided and published: each message is there once."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from kappamq.broker.batches.participant import ASK_S
from kappamq.broker.delivery import agenda
from kappamq.protocol.bodies.batches import ChunkList
from tests.broker.batches.batching import Batcher
from tests.broker.batches.crashing import Node, TwoBrokers
from tests.broker.operating import make_topic, ok
from tests.store.stores import kernels
from tests.waiting import eventually_async

T = TypeVar("T")
COORDINATOR, PARTICIPANT = "a", "b"
STEPS_MIN = 5
"""Changes on disk that a batch takes at least, on each broker: fewer would mean that nothing was tried."""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoBrokers]:
    monkeypatch.setattr(agenda, "_LOOK_S", 0.01)
    found = TwoBrokers(tmp_path, kernels()[-1], monkeypatch)
    try:
        for node in found.nodes.values():
            found.run(make_topic(node.client, "t", 1))
            found.run(speaker(node).open())
        yield found
    finally:
        found.stop()


def speaker(node: Node) -> Batcher:
    return Batcher(node.client, coordinator=COORDINATOR)


class Doomed:
    """A broker whose machine goes off before a certain change on its disk."""

    def __init__(self, node: Node, step: int, kept: float) -> None:
        self._node, self._left, self._kept = node, step, kept
        self._random = Random(step)
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        node.before_each_change(self._change)

    def _change(self) -> None:  # on a worker, too
        self._left -= 1
        if self._left <= 0:
            self._loop.call_soon_threadsafe(self._gone.set)
            raise OSError(errno.EIO, "the machine is off")

    @property
    def has_gone(self) -> bool:
        return self._gone.is_set()

    async def survived(self, work: Callable[[], Awaitable[T]]) -> T:
        """What a client does: if the broker goes meanwhile, the same once more when it is back."""
        asked = asyncio.ensure_future(work())
        gone = asyncio.ensure_future(self._gone.wait())
        back = self.has_gone
        try:
            await asyncio.wait({asked, gone} - ({gone} if back else set()), return_when=asyncio.FIRST_COMPLETED)
            if back or (asked.done() and asked.exception() is None and not self.has_gone):
                return await asked
            await gone  # an error for another reason ends here, by the time limit of the test
        finally:
            gone.cancel()
            asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await self._node.crash(self._random, self._kept)
        return await work()

    def spare(self) -> None:
        self._node.before_each_change(lambda: None)


@pytest.mark.parametrize("kept", [1.0, 0.0], ids=["kill -9", "power cut"])
@pytest.mark.parametrize("name", [COORDINATOR, PARTICIPANT], ids=["coordinator", "participant"])
def test_a_broker_dies_at_each_step(two: TwoBrokers, name: str, kept: float) -> None:
    async def batch(number: int) -> bool:
        """Whether the broker died on the way."""
        doomed = Doomed(two.nodes[name], number + 1, kept)
        transaction = await doomed.survived(lambda: speaker(two.nodes[COORDINATOR]).begin(number))
        assert transaction is not None
        chunks = {
            node.name: [
                await doomed.survived(
                    lambda node=node, part=part: speaker(node).stage(
                        number, transaction, b"%d.%da" % (number, part), b"%d.%db" % (number, part)
                    )
                )
                for part in range(2)
            ]
            for node in two.nodes.values()
        }

        async def decide() -> None:
            it = speaker(two.nodes[COORDINATOR])
            await ok(it.client, it.decision(number, transaction, 8, number), ChunkList(chunks).encode())

        await doomed.survived(decide)

        async def is_published() -> bool:
            two.clock.advance(ASK_S + 1)  # who has heard nothing asks
            return not any(node.broker.delivery_tables.staged.table for node in two.nodes.values())

        await doomed.survived(lambda: eventually_async(is_published, text="it is published"))
        doomed.spare()
        for node in two.nodes.values():
            found = [record.body for record in await node.client.read("t")]
            wanted = [b"%d.%d%c" % (n, part, half) for n in range(number + 1) for part in (0, 1) for half in b"ab"]
            assert found == wanted, f"{node.name} after a crash of {name} before change {number + 1}"
        return doomed.has_gone

    steps = next(number for number in itertools.count() if not two.run(batch(number)))
    assert steps >= STEPS_MIN

"""Members of a group come, go, die and are cut off: who reads and who has locked which queue, on a virtual clock."""

from __future__ import annotations

import asyncio

from kappamq.client.consumer.consumer import AsyncConsumer
from tests.client.simulation import Process, World, simulate
from tests.dialogue import Scenario, Script, scripts


class Dialogue:
    """One broker, topic `tea`, group `g`. Members are named; times are seconds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.members: dict[str, tuple[Process, AsyncConsumer]] = {}

    def given_topic(self, *, queues: int, ordered: bool = False) -> None:
        self.world.cluster.create("tea", queues)
        self.ordered = ordered

    def when_topic_grows(self, queues: int) -> None:
        self.world.cluster.create("tea", queues)

    async def when_joins(self, name: str) -> None:
        process = Process(name)
        consumer = AsyncConsumer(
            self.world.cluster.address, group="g", topics="tea", ordered=self.ordered, consume_from="first",
            listener=lambda message: None, instance=name,
        )  # fmt: skip
        await process.run(consumer.start)
        self.members[name] = process, consumer

    async def when_leaves(self, name: str) -> None:
        process, consumer = self.members.pop(name)
        await process.run(consumer.close)

    def when_dies(self, name: str, *, silently: bool = False) -> None:
        """`silently`: its machine is gone, too, and nobody closes its connections."""
        self.members.pop(name)[0].kill(silently=silently)

    def when_cut_off(self, name: str) -> None:
        self.members[name][0].cut_off = True

    def when_back(self, name: str) -> None:
        self.members[name][0].cut_off = False

    async def when_time_passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # virtual

    def then_queues(self) -> list[str]:
        """What each member reads; with locks, whose the broker says they are."""
        told = []
        for name, (_process, consumer) in self.members.items():
            queues = [str(queue.queue_id) for queue in consumer.assigned if queue.topic == "tea"]
            told.append(f"{name} reads {' '.join(queues) or 'nothing'}")
        locks = self.world.cluster.broker.locks
        owners = sorted(
            (queue.queue_id, owner.split("@")[1]) for (_, queue), (owner, _) in locks.items() if queue.topic == "tea"
        )
        return told + (
            [f"locked: {', '.join(f'{queue} by {owner}' for queue, owner in owners) or 'nothing'}"]
            if self.ordered
            else []
        )


@scripts(__file__, "rebalance")
def test_rebalance(script: Script) -> None:
    def played(scenario: Scenario) -> None:
        simulate(World(seed=1), lambda world: scenario.play(Dialogue(world)))

    script.replay(played)

"""What changes who may pull what gets to the rows of the kernel."""

from __future__ import annotations

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import Speaker


@on_broker()
async def test_the_kernel_answers_alone_only_while_everything_allows_it(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await client.send("t", b"x")
    await client.subscribe("g", "t")

    async def fast() -> bool:
        before = broker.kernel.left_frames
        await client.pull("t", 0)
        return broker.kernel.left_frames == before

    assert await fast()
    for change in (
        lambda: broker.topics.update(TopicConfig("t", 5, 5, 6)),
        lambda: broker.groups.update(SubscriptionGroupConfig(name="g", retry_times_max=3)),
    ):
        change()
        assert not await fast(), "it is judged anew"
        assert await fast()
    assert set(broker.events.listeners()) >= {
        "TopicChanged",
        "TopicDeleted",
        "GroupChanged",
        "ResetChanged",
        "Resubscribed",
    }

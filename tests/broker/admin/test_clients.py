"""Who is connected, and who reads what."""

from __future__ import annotations

import time

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.admin import (
    ConsumerConnection,
    GroupList,
    ProducerConnection,
    ProducerTable,
    QuerySubscriptionResponse,
)  # fmt: skip
from kappamq.protocol.bodies.clients import ConsumeType, MessageModel
from kappamq.protocol.bodies.topics import TopicList
from kappamq.protocol.codes import VERSION, ResponseCode
from kappamq.protocol.headers.admin import (
    GetAllProducers,
    GetConsumerConnections,
    GetProducerConnections,
    QueryGroupsOfTopic,
    QuerySubscription,
    QueryTopicsOfGroup,
)  # fmt: skip
from kappamq.protocol.headers.client import UnregisterClient, UpdateConsumerOffset
from tests.broker.operating import beat, fill, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, speaking


@on_broker()
async def test_consumers_of_a_group(broker: Broker, client: Speaker) -> None:
    await refused(client, GetConsumerConnections(consumer_group="g"), ResponseCode.CONSUMER_NOT_ONLINE, "g")
    await make_topic(client, "t")
    async with speaking(broker, binary=True) as other:
        await beat(client, "one", consumers={"g": ["t"]})
        await beat(other, "two", consumers={"g": ["t"]})
        found = ConsumerConnection.decode((await ok(client, GetConsumerConnections(consumer_group="g"))).body)
        assert {each.client_id: each.client_address for each in found.connections} == {
            "one": client.channel.local_address,
            "two": other.channel.local_address,
        }
        assert {(each.language, each.version) for each in found.connections} == {("PYTHON", VERSION)}
        assert found.subscriptions.keys() == {"t"}
        assert (found.consume_type, found.message_model) == (ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING)
    await ok(client, UnregisterClient(client_id="one", consumer_group="g"))
    await refused(client, GetConsumerConnections(consumer_group="g"), ResponseCode.CONSUMER_NOT_ONLINE)


@on_broker()
async def test_producers_of_a_group_and_all(broker: Broker, client: Speaker) -> None:
    await refused(client, GetProducerConnections(producer_group="p"), ResponseCode.SYSTEM_ERROR, "p")
    assert ProducerTable.decode((await ok(client, GetAllProducers())).body).groups == {}
    await beat(client, "one", producers=("p", "q"))
    found = ProducerConnection.decode((await ok(client, GetProducerConnections(producer_group="p"))).body)
    assert [(each.client_id, each.client_address) for each in found.connections] == [
        ("one", client.channel.local_address)
    ]
    table = ProducerTable.decode((await ok(client, GetAllProducers())).body).groups
    assert table.keys() == {"p", "q"}
    (info,) = table["q"]
    assert (info.client_id, info.remote_ip, info.language) == ("one", client.channel.local_address, "PYTHON")
    assert abs(info.last_update_ms / 1000 - time.time()) < 60


@on_broker()
async def test_who_reads_a_topic_and_what_a_group_reads(broker: Broker, client: Speaker) -> None:
    for topic in ("t", "u"):
        await make_topic(client, topic)
        await fill(client, topic, [3])
    await beat(client, "one", consumers={"online": ["t"], "reader": ["u"]})
    for topic in ("t", "u"):
        await ok(client, UpdateConsumerOffset(consumer_group="reader", topic=topic, queue_id=0, commit_offset=1))
    groups = GroupList.decode((await ok(client, QueryGroupsOfTopic(topic="t"))).body).groups
    assert groups == ["online", "reader"], "who subscribes, and who has read"
    assert GroupList.decode((await ok(client, QueryGroupsOfTopic(topic="nobody"))).body).groups == []
    topics = TopicList.decode((await ok(client, QueryTopicsOfGroup(group="reader"))).body).topics
    assert topics == ["t", "u"]


@on_broker()
async def test_the_subscription_of_a_group(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await client.subscribe("g", "t", "A || B")
    answer = QuerySubscriptionResponse.decode((await ok(client, QuerySubscription(group="g", topic="t"))).body)
    assert (answer.group, answer.topic) == ("g", "t")
    assert answer.subscription is not None
    assert answer.subscription.expression == "A || B"
    answer = QuerySubscriptionResponse.decode((await ok(client, QuerySubscription(group="nobody", topic="t"))).body)
    assert answer.subscription is None

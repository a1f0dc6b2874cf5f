"""A broker that a name server knows, and that the test does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kappamq.net.channel import Channel
from kappamq.protocol.bodies.topics import RegisterBrokerBody, TopicConfig, TopicTable
from kappamq.protocol.headers.nameserver import RegisterBroker
from kappamq.protocol.names import AUTO_CREATE_TOPIC


@asynccontextmanager
async def announced(nameserver: str, name: str, address: str, topic: str = "t") -> AsyncIterator[None]:
    """It is known for as long as the connection that told of it is open."""
    header = RegisterBroker(
        broker_name=name, broker_address=address, cluster="DefaultCluster", ha_address=address, broker_id=0,
        timeout_ms=None, acting_master=False, compressed=False, body_crc=0,
    )  # fmt: skip
    channel = await Channel.connect(nameserver)
    try:
        topics = {name: TopicConfig(name, 1, 1, 6) for name in (topic, AUTO_CREATE_TOPIC)}
        answer = await channel.request(header, RegisterBrokerBody(topics=TopicTable(topics=topics)).encode())
        assert answer.code == 0, answer.remark
        yield
    finally:
        channel.close()

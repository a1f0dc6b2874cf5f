"""For tests of the operator's side: a broker and somebody who asks it things, in two words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetGroup, UpdateGroup, UpdateTopic
from kappamq.protocol.headers.client import HeartBeat
from kappamq.protocol.headers.header import Header
from tests.broker.running import Speaker, running, speaking
from tests.store.stores import kernels

Test = Callable[[Broker, Speaker], Awaitable[None]]


def on_broker(**options: Any) -> Callable[[Test], Callable[..., None]]:
    """Run `test(broker, client)` with each kernel; `options` are those of `running`."""

    def decorate(test: Test) -> Callable[..., None]:
        @pytest.mark.parametrize("kernel", kernels())
        def run(tmp_path: Path, kernel: str) -> None:
            async def main() -> None:
                async with running(tmp_path, kernel, **options) as broker, speaking(broker) as client:
                    await test(broker, client)

            asyncio.run(asyncio.wait_for(main(), 60))

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate


async def ok(client: Speaker, header: Header, body: bytes = b"") -> Frame:
    answer = await client.ask(header, body)
    assert answer.code == 0, (answer.code, answer.remark)
    return answer


async def refused(client: Speaker, header: Header, code: int, *texts: str, body: bytes = b"") -> str:
    """The request is answered with `code`, and the remark holds these texts."""
    answer = await client.ask(header, body)
    assert answer.code == code, (answer.code, answer.remark)
    remark = answer.remark or ""
    for text in texts:
        assert text in remark, remark
    return remark


async def make_topic(client: Speaker, name: str, queues: int = 4, **changes: Any) -> None:
    await ok(client, topic_header(name, queues, **changes))


async def make_groups(client: Speaker, *names: str) -> None:
    """Those of them that do not exist yet."""
    for name in names:
        if (await client.ask(GetGroup(group=name))).code:
            await ok(client, UpdateGroup(), SubscriptionGroupConfig(name=name).encode())


def topic_header(name: str, queues: int = 4, **changes: Any) -> UpdateTopic:
    values: dict[str, Any] = {
        "topic": name, "default_topic": "TBW102", "read_queues": queues, "write_queues": queues, "permission": 6,
        "filter_type": "SINGLE_TAG",
    }  # fmt: skip
    return UpdateTopic(**(values | changes))


async def fill(client: Speaker, topic: str, counts: list[int]) -> None:
    """`counts[i]` messages into queue i."""
    for queue_id, count in enumerate(counts):
        for number in range(count):
            answer = await client.send(topic, f"{queue_id}:{number}".encode(), queue_id)
            assert answer.code == 0, answer.remark


async def beat(
    client: Speaker, client_id: str, *, consumers: dict[str, list[str]] | None = None, producers: tuple[str, ...] = ()
) -> None:  # fmt: skip
    """A heartbeat: `consumers` is group -> topics."""
    data = HeartbeatData(
        client_id=client_id,
        producers=[ProducerData(group) for group in producers],
        consumers=[
            ConsumerData(group=group, subscriptions=[SubscriptionData(topic=topic, version=1) for topic in topics])
            for group, topics in (consumers or {}).items()
        ],
    )
    await ok(client, HeartBeat(), data.encode())


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "b", queue_id)


async def bare(client: Speaker, code: int, body: bytes = b"", **ext: str) -> Frame:
    """A request without a declared header."""
    return await client.channel.request(Frame(code=int(code), ext=ext, body=body))

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kappamq.cli.shared.cluster import Cluster
from kappamq.cli.shared.output import Format, Output
from kappamq.cli.tailing import Tail
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import NotConnected
from kappamq.event_loop import run
from kappamq.local import Local
from kappamq.message import Message, MessageQueue


def test_messages_appear_as_they_come(
    cluster: Local, kappamq: Any, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both while somebody else sends; and what was there before stays unseen."""
    assert kappamq("topic", "create", topic, "-q", "2").exit_code == 0
    assert kappamq("send", "-t", topic, "-b", "before").exit_code == 0

    async def both() -> int:
        tail = Tail(topic, "end", "*", 5, True, Cluster(cluster.nameserver), Output(Format.JSON))
        following = asyncio.create_task(tail.run())
        async with AsyncProducer(cluster.nameserver) as producer:
            number = 0
            while not following.done():
                await producer.send(Message(topic, f"{number}".encode()))
                number += 1
        return await following

    assert run(both()) == 5
    shown = [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 5
    assert "before" not in shown
    assert len(set(shown)) == 5


def test_messages_of_all_queues_are_shown_as_they_were_stored(kappamq: Any, topic: str) -> None:
    """Also when one queue has far more than is read at once."""
    assert kappamq("topic", "create", topic, "-q", "3").exit_code == 0
    assert kappamq("send", "-t", topic, "-b", "x", "--order-key", "one queue", "--count", "150").exit_code == 0
    assert kappamq("send", "-t", topic, "-b", "y", "--count", "30").exit_code == 0
    for command in (
        ["tail", topic, "--from", "start", "--no-follow"],
        ["tail", topic, "--from", "start", "--count", "180"],
        ["tail", topic, "--from", "start", "--count", "100"],
        ["query", "time", topic, "--from", "1h", "--count", "180"],
    ):
        rows = kappamq(*command, "-o", "json").json
        assert len(rows) == (100 if "100" in command else 180)
        places = [row["log_offset"] for row in rows]
        assert places == sorted(places), command


def test_a_queue_that_fails_does_not_hold_up_the_others(
    cluster: Local, kappamq: Any, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kappamq("topic", "create", topic, "-q", "2").exit_code == 0

    async def two_to_each_queue() -> None:
        async with AsyncProducer(cluster.nameserver) as producer:
            for queue in await producer.queues(topic) * 2:
                await producer.send(Message(topic, b"cup"), queue=queue)

    run(two_to_each_queue())
    pull = AsyncPullConsumer.pull

    async def failing(self: AsyncPullConsumer, queue: MessageQueue, *rest: Any, **options: Any) -> Any:
        if queue.queue_id == 0:
            raise NotConnected("somebody pulled the plug")
        return await pull(self, queue, *rest, **options)

    monkeypatch.setattr(AsyncPullConsumer, "pull", failing)
    tail = Tail(topic, "start", "*", 2, True, Cluster(cluster.nameserver), Output(Format.JSON))
    assert run(tail.run()) == 2
    shown = capsys.readouterr()
    assert {json.loads(line)["queue"] for line in shown.out.splitlines()} == {1}
    assert "pulled the plug; retrying" in shown.err

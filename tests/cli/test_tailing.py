from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kappamq.cli.output import Format, Output
from kappamq.cli.tailing import Tail
from kappamq.client.producer import AsyncProducer
from kappamq.event_loop import run
from kappamq.local import Local
from kappamq.message import Message


def test_messages_appear_as_they_come(
    cluster: Local, kappamq: Any, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both while somebody else sends; and what was there before stays unseen."""
    assert kappamq("topic", "create", topic, "-q", "2").exit_code == 0
    assert kappamq("send", "-t", topic, "-b", "before").exit_code == 0

    async def both() -> int:
        tail = Tail(topic, "end", "*", 5, True, cluster.nameserver, Output(Format.JSON))
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

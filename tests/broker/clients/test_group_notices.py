"""Members hear of a change once, however often their group changed in the same turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from kappamq.broker.clients.group_notices import GroupNotices
from kappamq.broker.clients.registry import Client, ConsumerGroup
from kappamq.broker.events import MembersChanged
from kappamq.config.broker import BrokerConfig
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.frame import decode
from kappamq.state.groups import Groups
from tests.state.committing import committing


class Peer:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def send(self, data: bytes) -> None:
        self.heard.append(decode(data).ext["consumerGroup"])


def known(*configured: SubscriptionGroupConfig) -> Groups:
    groups = committing(lambda commit: Groups(BrokerConfig(), lambda: 1, commit))
    for group in configured:
        groups.update(group)
    return groups


@pytest.mark.parametrize("enabled", [True, False])
def test_nobody_is_told_where_it_is_not_wanted(enabled: bool) -> None:
    async def test() -> None:
        tasks: list[asyncio.Task[None]] = []
        groups = known(SubscriptionGroupConfig(name="quiet", notify_changed_enable=False))
        notices = GroupNotices(
            BrokerConfig(notify_consumer_changes=enabled),
            groups,
            FairTurns(),
            lambda job: tasks.append(asyncio.ensure_future(job)),
        )
        peer = Peer()
        connection = cast(Connection, peer)
        for name in ("quiet", "g"):
            group = ConsumerGroup(name, members={connection: Client("c", connection, 0, 0, 0)})
            notices.members_changed(MembersChanged(group))
        await asyncio.gather(*tasks)
        assert peer.heard == (["g"] if enabled else [])

    asyncio.run(asyncio.wait_for(test(), 30))


def test_once_for_each_group() -> None:
    async def test() -> None:
        tasks: list[asyncio.Task[None]] = []

        def run(job: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.create_task(job))

        notices = GroupNotices(BrokerConfig(), known(), FairTurns(), run)
        peer = Peer()
        connection = cast(Connection, peer)
        groups = [
            ConsumerGroup(f"g{number}", members={connection: Client("c", connection, 0, 0, 0)}) for number in range(300)
        ]
        for group in groups + groups:
            notices.members_changed(MembersChanged(group))
        assert not peer.heard, "not in this turn"
        await asyncio.gather(*tasks)
        assert peer.heard == [group.name for group in groups]
        notices.members_changed(MembersChanged(groups[0]))
        await asyncio.gather(*tasks)
        assert peer.heard[-1] == "g0"
        assert len(peer.heard) == 301

    asyncio.run(asyncio.wait_for(test(), 30))


def test_one_group_that_cannot_be_told_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def send(self, data: bytes) -> None:
            raise RuntimeError("broken pipe dream")

    async def test() -> None:
        tasks: list[asyncio.Task[None]] = []

        def run(job: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.create_task(job))

        notices = GroupNotices(BrokerConfig(), known(), FairTurns(), run)
        peer = Peer()
        for name, member in (("broken", Broken()), ("whole", peer)):
            connection = cast(Connection, member)
            notices.members_changed(
                MembersChanged(ConsumerGroup(name, members={connection: Client("c", connection, 0, 0, 0)}))
            )
        await asyncio.gather(*tasks)
        assert peer.heard == ["whole"]
        assert "could not notify members of group broken" in caplog.text
        # Also if the job as a whole is ended.
        connection = cast(Connection, peer)
        group = ConsumerGroup("later", members={connection: Client("c", connection, 0, 0, 0)})
        notices.members_changed(MembersChanged(group))
        await asyncio.sleep(0)  # it has begun
        tasks.pop().cancel()
        await asyncio.sleep(0)
        notices.members_changed(MembersChanged(group))
        await asyncio.gather(*tasks)
        assert peer.heard[-1] == "later"

    asyncio.run(asyncio.wait_for(test(), 30))

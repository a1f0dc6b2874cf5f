"""The connections of a member: one to each other, and those that come; what is said on them is in test_peers.py."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from kappamq.broker.copies.members import peers
from kappamq.replication.frames import Kind
from tests.broker.copies.members.test_group import group_of, members
from tests.broker.copies.members.test_peers import hello
from tests.broker.running import run, speaking
from tests.waiting import eventually_async


def test_each_member_speaks_to_each_other_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            for name, broker in group.running.items():
                assert broker.copies.group is not None
                connections, others = broker.copies.group.connections, sorted(set(group.names) - {name})
                await eventually_async(lambda: connections.connected_to() == others)  # noqa: B023
                before = connections.peer(others[0])
                assert before is not None
                connections.meet({others[0]: before.place})
                assert connections.peer(others[0]) is before, "who is known is not met again"
                assert connections.peer(others[1]) is None, "who is no member is not spoken to"
                await eventually_async(lambda: connections.connected_to() == others)  # noqa: B023
                hello = connections.hello(others[0])
                assert hello is not None
                assert hello.address == group.running[others[0]].address
                assert connections.hello("nobody") is None

    run(test())


def test_strangers_make_room_for_those_that_come_later(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            port = next(port for name, port in group.ports.items() if group.running[name] is leader)
            strangers = [await asyncio.open_connection("127.0.0.1", port + 1) for _ in range(70)]
            async with asyncio.timeout(10):
                assert await strangers[0][0].read() == b"", "the oldest are closed"
            assert leader.copies.group is not None
            assert leader.copies.group.connections.connected_to() == sorted(
                name for name in group.names if group.running[name] is not leader
            )
            for _reader, writer in strangers:
                writer.close()

    run(test())


def test_a_name_has_few_places_and_a_frame_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_FRAME_S", 0.5)

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            ours = leader.copies.group
            assert ours is not None
            name = next(name for name, broker in group.running.items() if broker is not leader)
            port = next(port for each, port in group.ports.items() if group.running[each] is leader)
            said = []
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port + 1)
                writer.write(hello(leader, member=name) + struct.pack(">IIB", 60 << 20, 0, Kind.RAFT))
                await reader.readexactly(4)  # it is greeted
                said.append((reader, writer))
            async with asyncio.timeout(20):
                for reader, _writer in said:
                    with suppress(ConnectionResetError):
                        await reader.read()
            assert ours.why_stopped is None
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            await group.agree()
            for _reader, writer in said:
                writer.close()

    run(test())


def test_who_is_no_member_any_more_is_not_listened_to(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            name = next(name for name, broker in group.running.items() if broker is not leader)
            connections = group_of(leader).connections

            def is_heard() -> bool:
                return any(link.is_greeted and link._hello.member == name for link in connections._links if link._hello)

            await eventually_async(is_heard, text="it is listened to")
            changes = leader.copies.status._changes
            assert changes is not None
            await changes.remove(name)
            await eventually_async(lambda: not is_heard(), text="its connection is closed")

    run(test())

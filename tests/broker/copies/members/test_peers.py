"""Connections between members: strangers and wrong members hear why not; nonsense is closed and the group goes on."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.log_throttle import LogThrottle
from kappamq.broker.copies.members.peers import MemberLink, Peer
from kappamq.broker.copies.question import Questions
from kappamq.config.copies import CopiesConfig
from kappamq.errors import StoreError
from kappamq.raft import MemberId
from kappamq.raft.messages import Join, PreVoteAnswer
from kappamq.replication import raft_messages
from kappamq.replication.frames import OPENING, VERSION, Frames, Kind, frame, text_frame, values_of
from kappamq.replication.greeting import MemberHello
from tests.broker.copies.members.test_group import Members, group_of, members
from tests.broker.running import run, speaking
from tests.waiting import eventually_async


async def said(port: int, data: bytes) -> list[tuple[Kind, bytes]]:
    """What a member answers to these bytes until it closes the connection, or for a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = Frames(crc32)
    answers: list[tuple[Kind, bytes]] = []
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            while came := await reader.read(1 << 16):
                answers += frames.feed(came)
    except (TimeoutError, ConnectionResetError):
        pass
    finally:
        writer.close()
    return answers


def hello(broker: Broker, **changes: Any) -> bytes:
    assert broker.copies.group is not None
    ours = replace(broker.copies.group.ours(), nonce="00", **changes)
    return OPENING.pack(-VERSION) + text_frame(Kind.MEMBER, ours.values(), crc32)


def place_of(group: Members, broker: Broker) -> int:
    return next(port + 1 for name, port in group.ports.items() if group.running[name] is broker)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group": "other", "member": "n1"}, "is no member of"),
        ({"member": "n9", "members": "n0,n1,n9"}, "there is no member n9 in this group"),
        ({}, "needs a dLegerSelfId of its own"),
        ({"segment_bytes": 5, "member": "n1"}, "mappedFileSizeCommitLog"),
        ({"delay_levels": "1s", "member": "n1"}, "messageDelayLevel"),
        ({"group_id": "of somebody else", "member": "n1"}, "another founding"),
    ],
)
def test_who_does_not_belong_hears_why(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            await group.leader()
            ((kind, content),) = await said(group.ports["n0"] + 1, hello(group.running["n0"], **changes))
            assert kind is Kind.REFUSED
            assert text in values_of(content)["why"]

    run(test())


def test_nonsense_is_closed_and_the_group_goes_on(tmp_path: Path) -> None:
    dice = random.Random(7)

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            port = place_of(group, leader)
            name = next(name for name, broker in group.running.items() if broker is not leader)
            good = hello(leader, member=name)
            for bad in (
                OPENING.pack(5),
                OPENING.pack(-VERSION) + text_frame(Kind.HELLO, {}, crc32),
                good + good[8:],
                good + frame(Kind.RAFT, b"", crc32),
                good + frame(Kind.RAFT, raft_messages.encode(_beat("n9")), crc32),
                *(good + frame(Kind.RAFT, dice.randbytes(60), crc32) for _ in range(10)),
                *(OPENING.pack(-VERSION) + dice.randbytes(100) for _ in range(10)),
            ):
                await said(port, bad)
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            await group.agree()

    run(test())


def test_a_term_that_nothing_exceeds_does_not_end_the_group(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            ours = leader.copies.group
            assert ours is not None
            assert ours.node is not None
            term, me = ours.node.term, ours.node.me
            source = next(member for member in ours.node.members.voters if member != me)
            good = hello(leader, member=source.name, incarnation=source.incarnation)
            absurd = raft_messages.encode(PreVoteAnswer(source, me, (1 << 62) - 1, False))
            await said(place_of(group, leader), good + frame(Kind.RAFT, absurd, crc32))
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            assert ours.node.term < term + 1000

    run(test())


@pytest.mark.parametrize("greeted", [1, 0, (1 << 62) - 1])
def test_nobody_takes_the_place_of_a_member_with_an_incarnation_that_is_not_its_own(
    tmp_path: Path, greeted: int
) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            ours = leader.copies.group
            assert ours is not None
            assert ours.node is not None
            me, before = ours.node.me, ours.node.members
            name = next(member.name for member in before.voters if member != me)
            join = Join(MemberId(name, (1 << 62) - 1), me, 0)
            good = hello(leader, member=name, incarnation=greeted)
            await said(place_of(group, leader), good + frame(Kind.RAFT, raft_messages.encode(join), crc32))
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            assert ours.node.members == before

    run(test())


def _beat(source: str) -> Any:
    from kappamq.raft import MemberId
    from kappamq.raft.messages import Beat

    return Beat(MemberId(source, 1), MemberId("n0", 1), 1, 0, 0, 0)


class Side:
    """One of two members: what it hears, and of which connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config = CopiesConfig(
            group="g", members={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2", "n2": "127.0.0.1:3"}, member=name
        )
        self.questions = Questions({})
        self.why_stopped: str | None = None
        self.heard: list[bytes] = []
        self.connections = 0
        self.losses = 0

    def ours(self) -> MemberHello:
        return MemberHello(
            cluster="c", name="b", group="g", members="n0,n1,n2", member=self.name, address="127.0.0.1:9", segment_bytes=1 << 20,
            delay_levels="1s", term=0, end=0, group_id="",
        )  # fmt: skip

    def connected(self, hello: MemberHello) -> None:
        self.connections += 1

    def disconnected(self, member: str) -> None:
        self.losses += 1

    def received(self, hello: MemberHello, content: bytes) -> MemberHello:
        self.heard.append(content)
        return hello


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Side, Side, Peer]]:
    here, there = Side("n0"), Side("n1")
    loop = asyncio.get_running_loop()

    def knows(hello: MemberHello) -> bool:
        return hello.member in there.config.members

    server = await loop.create_server(
        lambda: MemberLink(there, knows, crc32, lambda link: None, LogThrottle()), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    peer = Peer(here, "n1", f"127.0.0.1:{port}", crc32)
    try:
        await eventually_async(lambda: peer.is_connected)
        yield here, there, peer
    finally:
        await peer.stop()
        server.close()


def test_what_is_being_read_keeps_its_place() -> None:
    async def test() -> None:
        async with connected() as (_here, there, peer):
            read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            peer.say(b"first")
            peer.say_later(read)
            peer.say(b"third")
            await eventually_async(lambda: there.heard == [b"first"])
            read.set_result(b"second")
            await eventually_async(lambda: there.heard == [b"first", b"second", b"third"])

    run(test())


def test_what_cannot_be_read_ends_the_connection_and_a_new_one_begins() -> None:
    """Else the other member would wait for ever for what nobody reads again."""

    async def test() -> None:
        async with connected() as (here, there, peer):
            read: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            peer.say_later(read)
            peer.say(b"behind it")
            read.set_exception(StoreError("the log cannot be read at 7"))
            await eventually_async(lambda: here.connections == 2 and here.losses == 1)
            assert there.heard == []
            peer.say(b"anew")
            await eventually_async(lambda: there.heard == [b"anew"])

    run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such limit")
def test_a_connection_to_a_machine_that_is_gone_ends(tmp_path: Path) -> None:
    """On both ends: nobody closes it, and what the system tries by itself takes minutes."""

    async def test() -> None:
        async with members(tmp_path) as group:
            ours = group_of(await group.leader())
            await eventually_async(lambda: len(ours.connections.connected_to()) == 2, text="it speaks to both")
            await eventually_async(
                lambda: sum(link.is_greeted for link in ours.connections._links) == 2, text="both speak to it"
            )
            peers = [ours.connections.peer(name) for name in ours.connections.connected_to()]
            transports = [peer._out.transport for peer in peers if peer is not None and peer._out is not None]
            transports += [link._transport for link in ours.connections._links if link._transport is not None]
            assert len(transports) == 4
            for transport in transports:
                connection = transport.get_extra_info("socket")
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                each = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                count = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert idle + each * count <= 6
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000

    run(test())


def test_a_member_that_takes_no_part_refuses_the_others(tmp_path: Path) -> None:
    """Whoever is connected is believed to hear, and waited for."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            name, broker = next((name, broker) for name, broker in group.running.items() if broker is not leader)
            stopped = group_of(broker)
            await eventually_async(lambda: len(group_of(leader).connections.connected_to()) == 2)
            stopped._stop_taking_part("a reason")
            ((kind, content),) = await said(group.ports[name] + 1, hello(leader))
            assert kind is Kind.REFUSED
            assert "takes no part until a restart: a reason" in values_of(content)["why"]
            await eventually_async(lambda: name not in group_of(leader).connections.connected_to())

    run(test())

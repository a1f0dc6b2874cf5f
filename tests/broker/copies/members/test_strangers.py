"""What somebody who speaks for a member cannot do: get in without the secret, end a follower, or have log files deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest

from kappamq.broker.copies.members.group import Group
from kappamq.raft.messages import Beat
from kappamq.replication import raft_messages
from kappamq.replication.frames import OPENING, VERSION, Frames, Kind, frame, text_frame, values_of
from tests.broker.copies.members.test_group import HOST, Members, group_of, members
from tests.broker.copies.members.test_peers import hello
from tests.broker.running import run, speaking
from tests.waiting import eventually_async


async def frames_of(reader: asyncio.StreamReader) -> AsyncIterator[tuple[Kind, bytes]]:
    frames = Frames(crc32)
    while data := await reader.read(1 << 16):
        for one in frames.feed(data):
            yield one


def test_a_member_that_calls_is_not_made_to_answer_its_own_challenge(tmp_path: Path) -> None:
    """The port of a member that is down: whoever listens there is called, and hands what the caller says back to it."""

    async def test() -> None:
        async with members(tmp_path, copies_changes={"secret": "a long secret"}) as group:
            await group.leader()
            await group.stop("n2")
            answers: list[Kind] = []
            done = asyncio.Event()

            async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if done.is_set():
                    writer.close()
                    return
                await reader.readexactly(OPENING.size)
                calls = frames_of(reader)
                values = values_of((await anext(calls))[1])
                victim = await asyncio.open_connection(HOST, group.ports[values["member"]] + 1)
                other = next(name for name in group.running if name != values["member"])
                claimed = {**values, "member": other, "place": f"{HOST}:1"}
                victim[1].write(OPENING.pack(-VERSION) + text_frame(Kind.MEMBER, claimed, crc32))
                says = frames_of(victim[0])
                challenge = values_of((await anext(says))[1])
                writer.write(text_frame(Kind.CHALLENGE, challenge, crc32))
                proof = values_of((await anext(calls))[1])
                victim[1].write(text_frame(Kind.PROOF, proof, crc32))
                answers.append((await anext(says))[0])
                victim[1].close()
                writer.close()
                done.set()

            server = await asyncio.start_server(called, HOST, group.ports["n2"] + 1)
            async with server:
                await asyncio.wait_for(done.wait(), 30)
            assert set(answers) == {Kind.REFUSED}

    run(test())


async def follower_and_leader(group: Members) -> tuple[Group, Group]:
    leader = group_of(await group.leader())
    await group.agree()
    return next(found for found in map(group_of, group.running.values()) if found is not leader), leader


async def told_by(leader: Group, group: Members, follower: Group, *frames: bytes) -> None:
    """The follower hears this from somebody with the leader's name, and has asked the leader itself."""
    assert leader.node is not None
    greeting = hello(group.running[follower.me], member=leader.me, incarnation=leader.node.me.incarnation)
    _reader, writer = await asyncio.open_connection(HOST, group.ports[follower.me] + 1)
    try:
        writer.write(greeting + b"".join(frames))
        await eventually_async(lambda: follower.seeding._looking is not None and follower.seeding._looking.done())
    finally:
        writer.close()


def test_a_follower_begins_anew_only_if_its_leader_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            follower, leader = await follower_and_leader(group)
            ended: list[str] = []
            monkeypatch.setattr(follower.seeding, "_too_far_behind", lambda place, why: ended.append(why))
            await told_by(leader, group, follower, frame(Kind.SEED, b"", crc32))
            assert ended == []
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            await group.agree()

    run(test())


def test_log_files_go_only_when_the_leader_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            follower, leader = await follower_and_leader(group)
            begins: list[int] = []
            monkeypatch.setattr(follower._upkeep, "delete_with_master", begins.append)
            assert leader.node is not None
            assert follower.node is not None
            beat = Beat(leader.node.me, follower.node.me, leader.node.term, 0, 0, 0)
            await told_by(leader, group, follower, frame(Kind.RAFT, raft_messages.encode(beat, log_min=1 << 40), crc32))
            assert begins == [group.running[leader.me].store.log.min]

    run(test())

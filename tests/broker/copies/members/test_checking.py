"""What no leader says is refused before the node believes it: a connection ends, and the member goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kappamq.raft import Append, Message
from kappamq.raft.messages import Beat, Diverged
from kappamq.replication import raft_messages
from kappamq.replication.frames import BadStream
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import group_of, members
from tests.broker.running import run, speaking
from tests.waiting import eventually_async


@pytest.mark.parametrize("wrong", ["within a record", "no record", "divided below what is confirmed"])
def test_what_no_leader_says_ends_a_connection_and_no_members_part(tmp_path: Path, wrong: str) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"before")).code == 0
            await group.agree()
            name = next(name for name, broker in group.running.items() if broker is not leader)
            ours = group.running[name].copies.group
            assert ours is not None
            node = ours.node
            assert node is not None
            other = next(member for member in node.members.voters if member not in (node.me, node.leader))
            await eventually_async(lambda: ours.confirmed == node.log.end, text="all is confirmed")
            end, confirmed, term = (
                node.log.end,
                node.log.confirmed,
                node.term + 1,
            )  # whoever says it has just been elected
            data = bytes(ours._store.pread(0, 90) if wrong == "within a record" else b"\0\0\0\x64" + b"z" * 96)
            message: Message = Append(other, node.me, term, 1, end, end + len(data), node.log.last_term, (), 0)
            if wrong == "divided below what is confirmed":
                message, data = Diverged(other, node.me, term, node.log.last_term, end, 0, 0), b""
            hello = replace(ours.ours(), member=other.name, incarnation=other.incarnation)
            with pytest.raises(BadStream, match="no leader"):
                ours.received(hello, raft_messages.encode(message, data))
            assert ours.why_stopped is None
            assert (node.log.end, node.log.confirmed) == (end, confirmed)
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"after")).code == 0
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_who_does_not_lead_the_term_stops_nobody(tmp_path: Path) -> None:
    """One message in the name of another member was enough for each of them, until it was restarted."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            await group.agree()
            leads = group_of(leader).me
            for broker in group.running.values():
                ours = group_of(broker)
                node = ours.node
                assert node is not None
                other = next(member for member in sorted(node.members.voters) if member.name not in (ours.me, leads))
                hello = replace(ours.ours(), member=other.name, incarnation=other.incarnation)
                with pytest.raises(BadStream, match=f"no leader would: {leads} leads term {node.term}"):
                    ours.received(hello, raft_messages.encode(Beat(other, node.me, node.term, 0, 0, 0)))
                assert ours.why_stopped is None
            async with speaking(await group.leader()) as speaker:
                assert (await speaker.send("tea", b"after")).code == 0

    run(test())

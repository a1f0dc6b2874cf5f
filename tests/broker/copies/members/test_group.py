"""A Raft group of real brokers on loopback: one leads, what a majority has is answered, and another leads when it is gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.members import group as group_module
from kappamq.broker.copies.members.group import Group
from kappamq.broker.copies.members.member_files import MemberFiles
from kappamq.config.copies import CopiesConfig
from kappamq.errors import MaybeStored, NotMaster, StoreError, for_code
from kappamq.protocol.codes import ResponseCode
from kappamq.raft import Confirmed, Cut, TermRecord, Terms
from kappamq.raft.messages import Append, Beat
from kappamq.store.files import Files
from tests.broker.copies.copying import same_logs
from tests.broker.running import run, running, speaking
from tests.free_ports import free_ports
from tests.store.stores import kernels
from tests.waiting import eventually_async

HOST = "127.0.0.1"


class Members:
    """Members of one group, started and stopped one by one."""

    def __init__(self, root: Path, stack: AsyncExitStack, mode: str, count: int = 3) -> None:
        self.root, self._stack, self._mode = root, stack, mode
        self.names = [f"n{number}" for number in range(count)]
        self.ports = dict(zip(self.names, free_ports(count), strict=True))
        self.running: dict[str, Broker] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def start(self, name: str, *, copies_changes: dict[str, Any] | None = None, **changes: Any) -> Broker:
        copies = CopiesConfig(
            group="g",
            members={each: f"{HOST}:{port + 1}" for each, port in self.ports.items()},
            member=name,
            **(copies_changes or {}),
        )
        own = self._stacks[name] = AsyncExitStack()
        self._stack.push_async_callback(own.aclose)
        broker = await own.enter_async_context(
            running(self.root / name, self._mode, port=self.ports[name], copies=copies, **changes)
        )
        self.running[name] = broker
        return broker

    async def stop(self, name: str) -> None:
        del self.running[name]
        await self._stacks[name].aclose()

    async def leader(self, but: Broker | None = None) -> Broker:
        """The one that leads, once it serves. `but`: another one than this."""

        def serving() -> list[Broker]:
            brokers = [broker for broker in self.running.values() if broker is not but]
            return [broker for broker in brokers if broker.node_role.is_master and broker.role.is_held]

        await eventually_async(lambda: len(serving()) == 1, text="one member leads")
        return serving()[0]

    async def agree(self) -> None:
        """Every member has, and shows, what the leader has."""
        leader = await self.leader()

        def same() -> bool:
            leader.writer.end_turn()
            end = leader.store.log.end
            return all(broker.store.marks.dispatched.offset == end for broker in self.running.values())

        await eventually_async(same, text="all members have and show the same")


@asynccontextmanager
async def members(root: Path, mode: str = "twin", count: int = 3, **changes: Any) -> AsyncIterator[Members]:
    async with AsyncExitStack() as stack:
        group = Members(root, stack, mode, count)
        await asyncio.gather(*(group.start(name, **changes) for name in group.names))
        yield group


@pytest.mark.parametrize("mode", kernels())
def test_one_leads_and_the_others_have_what_it_stores(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with members(tmp_path, mode) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                await speaker.subscribe("g", "tea")
                for number in range(20):
                    assert (await speaker.send("tea", b"%d" % number)).code == 0
                assert [record.body for record in await speaker.read("tea")] == [b"%d" % n for n in range(20)]
            await group.agree()
            same_logs(*group.running.values())
            for broker in group.running.values():
                async with speaking(broker) as reader:
                    assert [record.body for record in await reader.read("tea")] == [b"%d" % n for n in range(20)]

    run(test())


def test_others_name_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            for broker in group.running.values():
                if broker is leader:
                    continue

                async def named(broker: Broker = broker) -> bool:
                    async with speaking(broker) as speaker:
                        answer = await speaker.send("tea", b"x")
                        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                        return NotMaster(answer.remark or "").leader == leader.address

                await eventually_async(named, text="a follower names the leader")

    run(test())


@pytest.mark.parametrize("mode", kernels())
def test_another_leads_when_the_leader_is_gone_and_nothing_answered_is_lost(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with members(tmp_path, mode) as group:
            sent: list[bytes] = []
            for life in range(3):
                leader = await group.leader()
                async with speaking(leader) as speaker:
                    await speaker.subscribe("g", "tea")
                    for number in range(5):
                        body = b"%d/%d" % (life, number)
                        assert (await speaker.send("tea", body)).code == 0
                        sent.append(body)
                name = next(name for name, broker in group.running.items() if broker is leader)
                await group.stop(name)
                leader = await group.leader()
                async with speaking(leader) as speaker:
                    assert [record.body for record in await speaker.read("tea")] == sent
                await group.start(name)
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_a_leader_without_majority_answers_nothing_with_success(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            others = [name for name, broker in group.running.items() if broker is not leader]
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"with all")).code == 0
                for name in others:
                    await group.stop(name)
                answer = await speaker.send("tea", b"alone")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                await eventually_async(lambda: not leader.role.is_held, text="it steps down")
            for name in others:
                await group.start(name)
            await group.agree()
            async with speaking(await group.leader()) as speaker:
                await speaker.subscribe("g", "tea")
                bodies = [record.body for record in await speaker.read("tea")]
                assert bodies[0] == b"with all"
            same_logs(*group.running.values())

    run(test())


def test_a_deposed_leader_does_not_say_that_nothing_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            others = [broker for broker in group.running.values() if broker is not leader]
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"first")).code == 0
                await group.agree()
                muted = [group_of(broker).connections.peer(group_of(leader).me) for broker in others]
                for peer in muted:  # they get everything, and what they say to the leader is lost
                    assert peer is not None
                    peer.say = lambda content: None  # type: ignore[method-assign]
                answer = await speaker.send("tea", b"second")
                assert isinstance(for_code(answer.code, answer.remark), MaybeStored)
            for peer in muted:
                del peer.say  # type: ignore[union-attr]
            async with speaking(await group.leader()) as speaker:
                await speaker.subscribe("g", "tea")
                assert [record.body for record in await speaker.read("tea")] == [b"first", b"second"]

    run(test())


def test_a_whole_group_restarts(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            for life in range(3):
                async with speaking(await group.leader()) as speaker:
                    await speaker.subscribe("g", "tea")
                    assert (await speaker.send("tea", b"%d" % life)).code == 0
                    assert [record.body for record in await speaker.read("tea")] == [b"%d" % n for n in range(life + 1)]
                await group.agree()
                for name in list(group.running):
                    await group.stop(name)
                await asyncio.gather(*(group.start(name) for name in group.names))
            await group.agree()
            same_logs(*group.running.values())

    run(test())


def test_a_member_with_an_empty_disk_joins_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            async with speaking(await group.leader()) as speaker:
                for number in range(10):
                    assert (await speaker.send("tea", b"%d" % number)).code == 0
            await group.agree()
            leader = await group.leader()
            name = next(name for name, broker in group.running.items() if broker is not leader)
            await group.stop(name)
            (group.root / name).rename(group.root / "gone")
            await group.start(name)
            await group.agree()
            node = group.running[name].copies.group
            assert node is not None
            await eventually_async(
                lambda: node.node is not None and node.node.me in node.node.members.voters, text="it is a voter again"
            )
            same_logs(*group.running.values())

    run(test())


def group_of(broker: Broker) -> Group:
    group = broker.copies.group
    assert group is not None
    return group


async def stops_taking_part(group: Members, broken: Broker, why: str) -> None:
    """`broken`, which led, says why it stopped; another one leads, and whoever asks the broken one is sent there."""
    stopped = broken.copies.group
    assert stopped is not None
    await eventually_async(lambda: why in (stopped.why_stopped or ""), text="it says why")
    leader = await group.leader(but=broken)
    async with speaking(leader) as speaker:
        await speaker.subscribe("g", "tea")
        assert (await speaker.send("tea", b"after")).code == 0
        assert [record.body for record in await speaker.read("tea")] == [b"before", b"after"]
    await eventually_async(
        lambda: not broken.role.is_held and not broken.node_role.is_master, text="it has stepped down"
    )
    async with speaking(broken) as speaker:
        assert (await speaker.send("tea", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    node = stopped.node
    assert node is not None
    end, ballot = node.log.end, node.ballot
    stopped.flushed(end)
    stopped.written(end, b"")
    assert (node.log.end, node.ballot) == (end, ballot)
    assert stopped.connections.connected_to() == []


def test_a_member_whose_node_meets_what_cannot_be_stops_taking_part(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"before")).code == 0
            await group.agree()
            ours = leader.copies.group
            assert ours is not None
            assert ours.node is not None
            other = next(member for member in ours.node.members.voters if member != ours.node.me)
            # Somebody else leads in our term. Messages that say so do not get to the node (test_checking.py).
            node = ours.node
            ours.event(lambda: node.step(Beat(other, node.me, node.term, 1, 0, 0), ours.now()))
            await stops_taking_part(group, leader, "both lead in term")

    run(test())


def test_a_member_that_cannot_do_what_its_node_decides_stops_taking_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error: what follows would be done on top of something that is missing."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            follower, other = [group_of(broker) for broker in group.running.values() if broker is not leader]
            node = follower.node
            assert node is not None

            def fail(*_arguments: object) -> None:
                raise ValueError("nobody expects it")

            monkeypatch.setattr(follower, "_confirm", fail)
            follower._do([Confirmed(node.log.confirmed), Confirmed(node.log.confirmed)])
            assert (follower.why_stopped, list(follower._todo)) == ("ValueError: nobody expects it", [])
            monkeypatch.setattr(other._writer, "cut", fail)
            await other._cut(Cut(other._store.log.end, 1))
            assert other.why_stopped == "ValueError: nobody expects it"

    run(test())


def test_a_leader_whose_disk_fails_makes_way_for_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"before")).code == 0
            await group.agree()
            leader.store.fail("fdatasync of the log failed with errno 5")
            await stops_taking_part(group, leader, "errno 5")

    run(test())


def test_strangers_cannot_push_a_member_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            members = Members(tmp_path, stack, "twin")
            for name in members.names:
                await members.start(name)
            leader = await members.leader()
            group = leader.copies.group
            assert group is not None
            await eventually_async(
                lambda: sum(link.is_greeted for link in group.connections._links) == 2, text="both are connected"
            )
            before = [link for link in group.connections._links if link.is_greeted]
            strangers = [await asyncio.open_connection(HOST, leader.port + 1) for _ in range(70)]
            async with asyncio.timeout(20):
                for reader, _out in strangers[:8]:
                    with suppress(ConnectionError):
                        assert await reader.read() == b""
            assert [link for link in group.connections._links if link.is_greeted] == before
            for _reader, out in strangers:
                out.transport.abort()

    run(test())


def test_a_broker_of_its_own_does_not_take_a_members_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            await group.leader()
        with pytest.raises(StoreError, match="belongs to a member of a Raft group"):
            async with running(tmp_path / "n0", "twin"):
                pass

    run(test())


def test_a_log_that_ends_before_its_group_began_is_refused(tmp_path: Path) -> None:
    """Terms that say more than the log has."""

    async def test() -> None:
        async with members(tmp_path) as group:
            await group.leader()
            root = group.running["n0"].store.config.root
            await group.stop("n0")
            files = MemberFiles(root, Files())
            loaded = files.load_terms()
            assert loaded is not None
            files.save_terms(Terms(TermRecord(1 << 30, 1, loaded[0].last.members)), loaded[1])
            with pytest.raises(StoreError, match="empty data directory"):
                await group.start("n0")

    run(test())


def test_a_member_that_has_lost_its_log_does_not_pass_for_the_one_that_had_it(tmp_path: Path) -> None:
    """Its vote is still there, but others count on it to have what it has confirmed."""

    async def test() -> None:
        async with members(tmp_path) as group:
            for _ in range(2):  # terms
                leader = await group.leader()
                async with speaking(leader) as speaker:
                    assert (await speaker.send("tea", b"x")).code == 0
                name = next(name for name, broker in group.running.items() if broker is leader)
                await group.stop(name)
                await group.leader()
                await group.start(name)
            await group.agree()
            leader = await group.leader()
            name = next(name for name, broker in group.running.items() if broker is not leader)
            await group.stop(name)
            for lost in ("commitlog", "consumequeue", "index", "config"):
                shutil.rmtree(tmp_path / name / lost, ignore_errors=True)
            for lost in ("kappamq.position", "checkpoint"):
                (tmp_path / name / lost).unlink(missing_ok=True)
            with pytest.raises(StoreError, match="has lost its log"):
                await group.start(name)

    run(test())


def test_a_term_that_begins_behind_a_long_message_is_heard_of(tmp_path: Path) -> None:
    """The message is longer than what is sent at once, so more than was wanted is sent to the member that has missed it all."""

    async def test() -> None:
        small = {"append_bytes_max": 300}
        async with members(tmp_path, copies_changes=small) as group:
            leader = await group.leader()
            away, other = [name for name, broker in group.running.items() if broker is not leader]
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
                await group.agree()
                await group.stop(away)
                assert (await speaker.send("tea", b"y" * 10_000)).code == 0
            operations = leader.copies._operations
            assert operations is not None
            await operations.transfer(other)
            successor = await group.leader(but=leader)
            async with speaking(successor) as speaker:
                assert (await speaker.send("tea", b"z")).code == 0
            back = await group.start(away, copies_changes=small)
            await group.agree()
            known = [ours.node.log.terms.records for ours in map(group_of, (back, successor)) if ours.node is not None]
            assert len(known) == 2
            assert known[0] == known[1]
            same_logs(*group.running.values())

    run(test())


def test_what_was_read_for_a_leadership_that_has_ended_is_not_sent(tmp_path: Path) -> None:
    """A worker reads while the leader is deposed, and its log cut and filled by another one."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"x")).code == 0
            ours = group_of(leader)
            node = ours.node
            assert node is not None
            other = next(member for member in node.members.voters if member != node.me)
            end = node.log.end
            order = Append(node.me, other, node.term, 0, 0, end, 0, (), 0)
            assert await ours._read(order, end) is not None
            assert await ours._read(order._replace(term=node.term - 1), end) is None

    run(test())


def test_a_term_is_noted_before_its_bytes_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the end mark of a file and the record it was written for leaves bytes of that term, and no record that says so."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            follower, other = [name for name, broker in group.running.items() if broker is not leader]
            await group.agree()
            led: list[int] = []
            written: list[tuple[int, int, int]] = []  # from, to, and the start of the last term record that is noted

            def noted(name: str) -> int:
                loaded = MemberFiles(tmp_path / name, Files()).load_terms()
                assert loaded is not None
                return loaded[0].last.start

            append, write = group_module.append_term, group.running[follower].writer.store_copy

            def appending(*arguments: Any) -> int:
                led.append(noted(other))
                return append(*arguments)

            def writing(at: int, data: Any) -> int:
                written.append((at, at + len(data), noted(follower)))
                return write(at, data)

            monkeypatch.setattr(group_module, "append_term", appending)
            monkeypatch.setattr(group.running[follower].writer, "store_copy", writing)
            operations = leader.copies._operations
            assert operations is not None
            await operations.transfer(other)
            node = group_of(await group.leader(but=leader)).node
            assert node is not None
            await group.agree()
            begin = node.log.terms.last.start
            assert led == [begin]
            assert [start for at, end, start in written if at <= begin < end] == [begin]

    run(test())


def test_a_member_without_a_log_notes_terms_behind_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between must not look as if a log had been lost: such a member would refuse to start."""

    async def test() -> None:
        async with members(tmp_path) as group:
            leader = await group.leader()
            newcomer, other = [name for name, broker in group.running.items() if broker is not leader]
            await group.agree()
            operations = leader.copies._operations
            assert operations is not None
            await operations.transfer(other)
            leader = await group.leader(but=leader)
            await group.stop(newcomer)
            shutil.rmtree(tmp_path / newcomer)
            saved: list[tuple[int, int]] = []  # terms noted, and the end of the log by then
            save = Group._save_terms

            def saving(self: Group, *coming: TermRecord) -> None:
                assert self.node is not None
                if self.me == newcomer:
                    saved.append((len({record.term for record in self.node.log.terms.records}), self._store.log.end))
                save(self, *coming)

            monkeypatch.setattr(Group, "_save_terms", saving)
            await group.start(newcomer)
            await group.agree()
            assert max(terms for terms, _end in saved) == 2
            assert all(end > 0 for _terms, end in saved)

    run(test())

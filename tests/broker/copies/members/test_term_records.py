"""The terms of a log are in it: a lost or older file of terms is made up for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.broker.copies.members.term_records import find_terms
from kappamq.raft import Members, TermRecord, Terms
from tests.broker.copies.copying import same_logs
from tests.broker.copies.members.test_group import Members as Group
from tests.broker.copies.members.test_group import members
from tests.broker.running import Speaker, run, speaking
from tests.waiting import eventually_async

_LEFT = 250  # bytes in a file: room for a small message, not for a term record


def test_terms_are_found_in_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with members(tmp_path) as group:
            for _ in range(2):
                leader = await group.leader()
                async with speaking(leader) as speaker:
                    assert (await speaker.send("tea", b"x")).code == 0
                name = next(name for name, broker in group.running.items() if broker is leader)
                await group.stop(name)
                await group.leader()
                await group.start(name)
            await group.agree()
            for broker in group.running.values():
                assert broker.copies.group is not None
                assert broker.copies.group.node is not None
                known = broker.copies.group.node.log.terms
                found = Terms(TermRecord(0, 0, Members()))
                find_terms(broker.store, found)
                assert found.records == known.records
                assert len(found.records) >= 3
                older = Terms(known.base, known.records[:1])
                find_terms(broker.store, older)
                assert older.records == known.records

    run(test())


async def _fill(leader: Broker, speaker: Speaker) -> None:
    """Messages until _LEFT bytes are left in the first file."""
    log = leader.store.log
    size = leader.store.config.segment_bytes
    await speaker.send("tea", b"1")
    before = log.end
    await speaker.send("tea", b"1")
    unit = log.end - before - 1
    while size - log.end > 100_000:
        assert (await speaker.send("tea", b"x" * 50_000)).code == 0
    assert (await speaker.send("tea", b"x" * (size - log.end - unit - _LEFT))).code == 0
    assert size - log.end == _LEFT


def _mute(leader: Broker) -> None:
    assert leader.copies.group is not None
    for peer in leader.copies.group.connections._peers.values():
        peer.say = lambda content: None  # type: ignore[method-assign]


def _unmute(leader: Broker) -> None:
    assert leader.copies.group is not None
    for peer in leader.copies.group.connections._peers.values():
        del peer.say  # type: ignore[method-assign]


def _term_starts(broker: Broker) -> list[int]:
    assert broker.copies.group is not None
    assert broker.copies.group.node is not None
    return [record.start for record in broker.copies.group.node.log.terms.records]


async def _written_alone(group: Group, leader: Broker, speaker: Speaker, *, rolls: bool) -> int:
    """What the leader of the first term writes behind what the others have, while it cannot be heard. Where that begins."""
    await _fill(leader, speaker)
    await group.agree()
    at = leader.store.log.end
    _mute(leader)
    sends = [asyncio.ensure_future(speaker.send("tea", b"R"))]
    await eventually_async(lambda: leader.store.log.end > at, text="it has written alone")
    if rolls:
        sends.append(asyncio.ensure_future(speaker.send("tea", b"y" * 20_000, queue_id=2)))
        size = leader.store.config.segment_bytes
        await eventually_async(lambda: leader.store.log.end > size, text="it has written alone into the next file")
    await eventually_async(lambda: not leader.node_role.is_master, text="it steps down")
    await asyncio.gather(*sends)
    return at


def _diverged(root: Path, *, rolls: bool) -> None:
    async def test() -> None:
        async with members(root) as group:
            old = await group.leader()
            async with speaking(old) as speaker:
                at = await _written_alone(group, old, speaker, rolls=rolls)
            leader = await group.leader(but=old)
            _unmute(old)
            async with speaking(leader) as speaker:
                assert (await speaker.send("tea", b"new", queue_id=3)).code == 0
            await group.agree()
            same_logs(*group.running.values())
            for broker in group.running.values():
                assert at in _term_starts(broker)
                assert broker.copies.group is not None
                assert broker.copies.group.node is not None
                known = broker.copies.group.node.log.terms
                found = Terms(TermRecord(0, 0, Members()))
                find_terms(broker.store, found)
                assert found.records == known.records

    run(test())


def test_an_end_mark_before_a_term_record_is_of_its_term(tmp_path: Path) -> None:
    _diverged(tmp_path, rolls=False)


def test_an_end_mark_of_two_leaders_does_not_hide_what_differs_before_it(tmp_path: Path) -> None:
    _diverged(tmp_path, rolls=True)

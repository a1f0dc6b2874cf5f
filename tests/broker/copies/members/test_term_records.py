"""The terms of a log are in it: a lost or older file of terms is made up for."""

from __future__ import annotations

from pathlib import Path

from kappamq.broker.copies.members.term_records import find_terms
from kappamq.raft import Members, TermRecord, Terms
from tests.broker.copies.members.test_group import members
from tests.broker.running import run, speaking


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

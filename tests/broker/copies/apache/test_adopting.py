from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies.apache.adopting import ASKED, TOPICS, Adopting
from kappamq.config.copies import SLAVE, CopiesConfig
from kappamq.errors import KappaError
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.state.events import GroupChanged, TopicChanged
from tests.broker.running import run, running, speaking


def test_tables_of_a_master_become_ours(tmp_path: Path) -> None:
    async def test() -> None:
        config = CopiesConfig(role=SLAVE, master_address="127.0.0.1:1")
        async with (
            running(tmp_path / "m") as master,
            running(tmp_path / "s", copies=config, broker_id=1) as slave,
            speaking(master) as to,
        ):
            await to.subscribe("g", "tea")
            await to.send("tea", b"0")
            await to.send("tea", b"1")
            await to.ask(UpdateConsumerOffset(consumer_group="g", topic="tea", queue_id=0, commit_offset=2))
            changed: list[str] = []
            slave.events.on(TopicChanged, lambda event: changed.append(event.topic.name))
            slave.events.on(GroupChanged, lambda event: changed.append(event.name))
            adopting = Adopting(slave.metadata, slave.tables, slave.events, slave.workers.read)
            end = slave.store.log.end
            for asked in ASKED:
                await adopting.adopt(asked, await to.ask(asked.header()))
            assert "tea" in slave.topics.table
            assert slave.topics.table == master.topics.table
            assert slave.groups.table == master.groups.table
            assert slave.offsets.get("g", "tea", 0) == 2
            assert {"tea", "g"} <= set(changed)
            assert slave.store.log.end == end, "a slave records nothing"
            changed.clear()
            for asked in ASKED[:2]:
                await adopting.adopt(asked, await to.ask(asked.header()))
            assert not changed, "nothing is new"

    run(test())


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigTable": 5}', b"\xff" * 100])
def test_an_answer_without_sense_changes_nothing(tmp_path: Path, body: bytes) -> None:
    async def test() -> None:
        async with running(tmp_path / "s") as slave:
            before = dict(slave.topics.table)
            adopting = Adopting(slave.metadata, slave.tables, slave.events, slave.workers.read)
            for asked in (TOPICS, ASKED[4]):  # a table, and the timer checkpoint, which is no JSON
                with pytest.raises(KappaError):
                    await adopting.adopt(asked, Frame(code=0, body=body))
            assert slave.topics.table == before

    run(test())

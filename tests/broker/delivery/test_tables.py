"""The tables of delivery: each is loaded with the others, and has a snapshot of its own."""

from __future__ import annotations

from pathlib import Path

from tests.broker.running import run, running


def test_every_table_is_a_fold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            known = broker.metadata._tables
            assert all(table in known for table in broker.delivery_tables.all())
            assert len({table.file for table in known}) == len(known), "two tables would share a snapshot"
            assert {*broker.delivery_tables.saved_seldom} <= {table.file for table in broker.delivery_tables.all()}

    run(scenario())

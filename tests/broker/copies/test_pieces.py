"""What goes to another member in one message ends with a whole group of records, and what cannot be read is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies.pieces import read, whole_end
from kappamq.errors import StoreError
from kappamq.raft import Append, MemberId
from tests.broker.running import run, running, speaking

ME, OTHER = MemberId("n0", 1), MemberId("n1", 1)


def wanted(start: int, end: int) -> Append:
    return Append(ME, OTHER, 1, 1, start, end, 0, (), 0)


def test_pieces_are_whole_records_and_the_first_one_however_long(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as speaker:
            await speaker.subscribe("g", "tea")
            for size in (10, 5000):
                assert (await speaker.send("tea", b"x" * size)).code == 0
            small, long = await speaker.read("tea")
            store = broker.store
            broker.writer.end_turn()
            behind = long.log_offset + long.size
            assert whole_end(store, wanted(small.log_offset, long.log_offset + 100)) == long.log_offset
            assert whole_end(store, wanted(long.log_offset, long.log_offset + 100)) == behind
            assert whole_end(store, wanted(small.log_offset, store.log.end)) == store.log.end
            assert b"x" * 5000 in read(store, small.log_offset, behind)
            assert len(read(store, small.log_offset, behind)) == behind - small.log_offset
            with pytest.raises(StoreError, match="cannot be read at"):
                read(store, store.log.end, store.log.end + 1)

    run(test())

"""What is read for another member ends at whole records, across the ends of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies.members.reading import pieces, whole_end
from kappamq.errors import StoreError
from kappamq.raft import Append, MemberId
from tests.broker.copies.copying import log_bytes
from tests.broker.running import run, running, speaking

ONE, OTHER = MemberId("a", 1), MemberId("b", 1)


def asked(start: int, end: int) -> Append:
    return Append(ONE, OTHER, 1, 1, start, end, 0, (), 0)


def test_an_end_within_a_record_is_moved_to_where_one_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as speaker:
            ends = [0]
            for _ in range(12):
                await speaker.send("big", b"x" * 100_000)
                broker.writer.end_turn()
                ends.append(broker.store.log.end)
            store = broker.store
            end = store.log.end
            assert whole_end(store, asked(0, end), end) == end
            assert whole_end(store, asked(0, end), ends[2] + 5) == ends[2]
            assert whole_end(store, asked(ends[2], end), ends[2] + 5) >= ends[3], "the first one, however long it is"
            assert whole_end(store, asked(ends[2], ends[3]), ends[2] + 5) == ends[3], "no term records are known behind"
            everything = b"".join(pieces(store, 0, store.log.end))
            assert everything == log_bytes(broker, 0, store.log.end)
            assert len(pieces(store, 0, store.log.end)) == 2, "a piece for each file"
            with pytest.raises(StoreError, match="cannot be read"):
                pieces(store, store.log.end, store.log.end + 1)

    run(test())

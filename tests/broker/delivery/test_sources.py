"""Reading what is to be copied: from memory on the loop, from disk on a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.delivery.sources import Sources
from kappamq.broker.sending.appending import Draft
from kappamq.protocol.records.record import decode
from tests.broker.running import run, running
from tests.store.stores import kernels


@pytest.mark.parametrize("mode", kernels())
def test_entries_and_records(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path, mode) as broker:
            for number in range(5):
                place = broker.delivery.appender.append(Draft("tea", 1, b"%d" % number))
            await broker.delivery.appender.answerable(place.end)
            sources = Sources(broker.store)
            assert sources.entries("tea", 0, 0, 9) == []
            found = sources.entries("tea", 1, 2, 9)
            assert found is not None
            assert [data and decode(data).body for data in sources.read(found)] == [b"2", b"3", b"4"]
            assert sources.entries("tea", 1, 5, 9) == []
            assert sources.are_warm(found)
            broker.kernel.hot_from = found[1][0]
            assert not sources.are_warm(found)
            assert sources.are_warm(found[1:])
            assert sources.read([(found[0][0] + 1, 100, 0), (1 << 40, 100, 0)]) == [None, None]
            group = broker.delivery.appender.append_group([Draft("tea", 2, b"a"), Draft("tea", 2, b"b")])
            await broker.delivery.appender.answerable(group[-1].end)
            monkeypatch.setattr(broker.store, "record", None)  # nothing is read and checked a second time
            first, second = sources.read([(place.log_offset, place.size, 0) for place in group])
            assert first is not None
            assert second is not None
            assert (decode(first).body, decode(second).body) == (b"a", b"b"), "also the one that opens a group"
        async with running(tmp_path, mode) as broker:
            sources = Sources(broker.store)
            assert sources.read_entries("tea", 1, 2, 3) == found
            assert sources.entries("tea", 1, 2, 9) in (None, found)  # the files may or may not be in memory
            assert not sources.are_warm(found)

    run(scenario())

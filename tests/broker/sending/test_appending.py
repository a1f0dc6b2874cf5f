"""Drafts and groups: what the broker stores by itself, together with what it remembers of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.sending.gate import DISK_FULL
from kappamq.errors import IllegalMessage, InvalidParameter, NotAvailable
from kappamq.protocol.names import HALF_TOPIC
from kappamq.protocol.records.record import Record, decode
from tests.broker.running import crash_copy, run, running
from tests.store.stores import kernels

BORN = bytes([127, 0, 0, 1, 0, 0, 1, 0])


class Counter:
    """A table that counts what it was told."""

    file = "counter.json"
    kinds = ("count",)

    def __init__(self) -> None:
        self.dirty = False
        self.count = 0

    def to_snapshot(self) -> dict[str, Any]:
        return {"count": self.count}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        self.count = table["count"]

    def apply(self, kind: str, change: Any) -> None:
        self.count = change

    def reset(self) -> None:
        self.count = 0


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[Record]:
    found = []
    for offset in range(broker.kernel.queue_state(topic, queue_id).end):
        entry = broker.store.entry(topic, queue_id, offset)
        assert entry is not None
        data = broker.store.record(entry[0])
        assert data is not None
        found.append(decode(data))
    return found


@pytest.mark.parametrize("mode", kernels())
def test_a_copy_names_its_source(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, mode) as broker:
            draft = Draft("tea", 2, b"x", {"KEYS": "k"}, flag=7, born_ms=5, born=BORN, reconsume_times=3)
            place = broker.delivery.appender.append(draft)
            await broker.delivery.appender.answerable(place.end)
            (record,) = stored(broker, "tea", 2)
            assert (record.log_offset, record.flag, record.born_ms, record.reconsume_times) == (
                place.log_offset,
                7,
                5,
                3,
            )
            copy = Draft.of(record)
            assert copy.source == place.log_offset
            assert (copy.born, copy.properties, copy.body) == (BORN, {"KEYS": "k"}, b"x")
            copy.topic = "coffee"
            await broker.delivery.appender.answerable(broker.delivery.appender.append(copy).end)
            assert stored(broker, "coffee", 2)[0].prepared_offset == place.log_offset

    run(scenario())


@pytest.mark.parametrize("mode", kernels())
@pytest.mark.parametrize("torn", [False, True])
def test_a_group_is_found_whole_or_not_at_all(tmp_path: Path, mode: str, torn: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "a", mode) as broker:
            broker.metadata.add(counter := Counter())
            first = broker.delivery.appender.append(Draft("tea", 0, b"before"))
            places = broker.delivery.appender.append_group(
                [Draft("tea", 0, b"a"), Draft("coffee", 1, b"b")], [("count", 2)]
            )
            assert counter.count == 2
            await broker.delivery.appender.answerable(places[-1].end)
            assert [record.body for record in stored(broker, "tea")] == [b"before", b"a"]
            # The mark of the group is on the change: messages stay as they were made, and as long.
            assert "__BATCH#" not in stored(broker, "tea")[1].properties
            await crash_copy(broker, tmp_path / "b")
        if torn:
            path = min((tmp_path / "b" / "commitlog").iterdir())
            with path.open("r+b") as file:  # the end of the last message has not got there
                file.seek(places[-1].end - 10)
                file.write(bytes(1000))
        again = Counter()
        async with running(tmp_path / "b", mode) as broker:
            assert [record.body for record in stored(broker, "tea")] == [b"before"] + [b"a"] * (not torn)
            assert [record.body for record in stored(broker, "coffee", 1)] == [b"b"] * (not torn)
            broker.metadata.add(again)
            broker.metadata._loaded_to[again.file] = first.end
            broker.metadata._at = 0
            broker.metadata.follow()
            assert again.count == (0 if torn else 2)

    run(scenario())


def test_placers_see_what_is_meant_for_consumers(tmp_path: Path) -> None:
    def elsewhere(draft: Draft, now_ms: int) -> None:
        if draft.properties.get("bad"):
            raise InvalidParameter("no")
        draft.topic = "elsewhere"

    async def scenario() -> None:
        async with running(tmp_path) as broker:
            appender = Appender(broker.kernel, broker.writer, broker.metadata, broker.clock, placers=[elsewhere])
            appender.append(Draft("tea", 0, b"a"))
            appender.append(Draft("tea", 0, b"committed", sys_flag=8))
            appender.append(Draft("half", 0, b"half", sys_flag=4))
            appender.append(Draft(HALF_TOPIC, 0, b"half", {"bad": "1"}))
            with pytest.raises(InvalidParameter):
                appender.append_group([Draft("tea", 0, b"a"), Draft("tea", 0, b"a", {"bad": "1"})])
            await appender.answerable(broker.kernel.append_offset)
            assert [record.body for record in stored(broker, "elsewhere")] == [b"a", b"committed"]
            assert not stored(broker, "tea")

    run(scenario())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(IllegalMessage, match="properties"):
                broker.delivery.appender.append(Draft("tea", 0, b"a", {"k": "v" * 40_000}))
            with pytest.raises(IllegalMessage, match="log file"):
                broker.delivery.appender.append(Draft("tea", 0, b"a" * (1 << 20)))
            broker.store.fail("for a test")
            place = broker.delivery.appender.append(Draft("tea", 0, b"a"))
            with pytest.raises(NotAvailable):
                await broker.delivery.appender.answerable(place.end)

    run(scenario())


def test_a_full_disk_has_room_for_what_the_broker_must_remember(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            broker.gate.close(DISK_FULL, NotAvailable("full"))
            with pytest.raises(NotAvailable, match="full"):
                broker.delivery.appender.append(Draft("tea", 0, b"a"))
            with pytest.raises(NotAvailable, match="full"):
                broker.delivery.appender.append_group([Draft("tea", 0, b"a")])
            broker.delivery.appender.append(Draft("tea", 0, b"b"), own=True)
            (place,) = broker.delivery.appender.append_group([Draft("tea", 0, b"c")], own=True)
            await broker.delivery.appender.answerable(place.end)
            assert [record.body for record in stored(broker, "tea")] == [b"b", b"c"]

    run(scenario())

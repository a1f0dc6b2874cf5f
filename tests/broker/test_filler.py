"""Filler in a queue says that a message is gone for good: it must never stand for one that the log still has."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.upkeep import scrub as scrub_module
from kappamq.native.layout import ENTRY, FILLER_BYTES
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.store.verify.verify import verify
from tests.broker.running import MODES, run, running, speaking
from tests.broker.upkeep.test_damage import drain, fill

pytestmark = pytest.mark.timeout(120)
FAST = {"scrub_bytes_per_second": 1 << 30}
COUNT = 60


@pytest.fixture(autouse=True)
def _all_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "_SHARE", 1)


def spoil(root: Path, first: int, entries: bytes) -> None:
    with (root / "consumequeue" / "t" / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(first * ENTRY.size)
        file.write(entries)


async def filled(root: Path, mode: str) -> list[bytes]:
    async with running(root, mode) as broker, speaking(broker) as client:
        return await fill(client, COUNT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [0, 20])
def test_repairing_one_entry_of_a_lost_page_hides_no_other(tmp_path: Path, mode: str, first: int) -> None:
    async def test() -> None:
        bodies = await filled(tmp_path, mode)
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            spoil(tmp_path, first, bytes(20 * ENTRY.size))
            answer = await client.pull("t", first + 15, explicit=True)
            assert answer.code == 0, answer
            assert await drain(client, COUNT) == bodies
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            assert await drain(client, COUNT) == bodies
            assert broker.kernel.queue_state("t", 0).first == 0

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_flush_behind_a_lost_entry_hides_no_message(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        bodies = await filled(tmp_path, mode)
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            spoil(tmp_path, COUNT - 5, bytes(5 * ENTRY.size))
            bodies += await fill(client, 3)
            await broker.upkeep.write_derived()
            assert await drain(client, COUNT + 3) == bodies

    run(test())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [0, 20])
def test_a_scrub_that_resumes_in_a_lost_page_hides_no_message(tmp_path: Path, mode: str, first: int) -> None:
    async def test() -> None:
        bodies = await filled(tmp_path, mode)
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            entry = broker.store.entry("t", 0, first + 10)
            assert entry is not None
            spoil(tmp_path, first, bytes(20 * ENTRY.size))
            broker.scrubber.is_busy = lambda: False
            position = broker.scrubber._position
            position.running, position.log_offset = True, entry[0]
            assert len(await broker.scrubber.run_pass()) == 10
            assert await drain(client, COUNT) == bodies

    run(test())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("healed_by", ["pull", "scrub"])
def test_wrong_filler_of_an_earlier_version_is_noticed_and_healed(tmp_path: Path, mode: str, healed_by: str) -> None:
    async def test() -> None:
        bodies = await filled(tmp_path, mode)
        spoil(tmp_path, 20, ENTRY.pack(0, FILLER_BYTES, 0) * 15)
        report = verify(tmp_path, index_slots=997, index_entries=10_000)
        assert [problem.offset for problem in report.problems if problem.place == "t/0"] == list(range(20, 35))
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            assert broker.kernel.queue_state("t", 0).first == 0
            broker.scrubber.is_busy = lambda: False
            if healed_by == "scrub":
                assert len(await broker.scrubber.run_pass()) == 15
                assert broker.damage.repaired == 15
            assert await drain(client, COUNT) == bodies
            assert await broker.scrubber.run_pass() == []
        assert verify(tmp_path, index_slots=997, index_entries=10_000).ok

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_wrong_filler_at_the_beginning_is_healed_by_the_scrub(tmp_path: Path, mode: str) -> None:
    """The files look as if the topic had been deleted and made again, but the broker knows that it was not."""

    async def test() -> None:
        bodies = await filled(tmp_path, mode)
        spoil(tmp_path, 0, ENTRY.pack(0, FILLER_BYTES, 0) * 15)
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            broker.scrubber.is_busy = lambda: False
            assert len(await broker.scrubber.run_pass()) == 15
            assert broker.kernel.queue_state("t", 0).first == 0
            assert await drain(client, COUNT) == bodies
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            assert await drain(client, COUNT) == bodies

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_what_was_deleted_with_its_topic_stays_deleted(tmp_path: Path, mode: str) -> None:
    """The log still has its records, and filler stands where their entries were."""

    async def test() -> None:
        await filled(tmp_path, mode)
        async with running(tmp_path, mode, store=FAST) as broker, speaking(broker) as client:
            assert (await client.ask(DeleteTopic(topic="t"))).code == 0
            await fill(client, 5)
            await broker.upkeep.write_derived()
            broker.scrubber.is_busy = lambda: False
            assert await broker.scrubber.run_pass() == []
        assert verify(tmp_path, index_slots=997, index_entries=10_000).ok
        async with running(tmp_path, mode, store=FAST) as broker:
            broker.scrubber.is_busy = lambda: False
            assert await broker.scrubber.run_pass() == []
            assert broker.kernel.queue_state("t", 0)[:2] == (COUNT, COUNT + 5)

    run(test())

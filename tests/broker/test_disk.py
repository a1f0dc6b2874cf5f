"""A whole broker reaches the disk through `Files` and nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import kappamq
from kappamq.broker.upkeep import scrub
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.sim.brokers.memory_disk import MemoryDisk
from kappamq.store.files import Files
from tests.broker.disk_watch import watched_disk
from tests.broker.running import MODES, on_disk, running, speaking
from tests.waiting import eventually_async as eventually

NOWHERE = Path("/nowhere/kappamq")
STORE = {"segment_bytes": 256 << 10, "message_bytes_max": 16 << 10, "scrub_bytes_per_second": 1 << 30, "flush": "sync"}
COUNT = 80


@pytest.fixture(autouse=True)
def _all_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_SHARE", 1)


async def lives(root: Path, mode: str, files: Files) -> None:
    """Start, send over several log files, deliver a timer, commit, delete a topic, scrub, stop; start again and read."""
    bodies = [b"%04d" % number * 1500 for number in range(COUNT)]
    async with running(root, mode, files=files, store=STORE) as broker, speaking(broker) as client:
        for body in bodies:
            assert (await client.send("t", body)).code == 0
        assert (await client.send("gone", b"x")).code == 0
        assert (await client.send("t", b"later", 1, "UNIQ_KEY\x01later\x02TIMER_DELAY_MS\x011\x02")).code == 0
        await client.subscribe("g", "t")
        answer = await client.ask(UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=7))
        assert answer.code == 0, answer.remark
        await eventually(lambda: broker.kernel.queue_state("t", 1)[1] == 1, text="the timer's message is delivered")
        await broker.upkeep.write_derived()
        assert "gone" in files.list(root / "consumequeue")
        assert (await client.ask(DeleteTopic(topic="gone"))).code == 0
        await on_disk(broker)
        await eventually(lambda: "gone" not in files.list(root / "consumequeue"))
        assert broker.store.log.end > 256 << 10, "more than one log file"
    async with running(root, mode, files=files, store=STORE) as broker, speaking(broker) as client:
        assert broker.recovered.clean
        assert [record.body for record in await client.read("t")] == bodies
        assert broker.offsets.get("g", "t", 0) == 7
        broker.scrubber.is_busy = lambda: False  # type: ignore[method-assign]
        assert await broker.scrubber.run_pass() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_broker_lives_on_a_disk_in_memory(mode: str) -> None:
    disk = MemoryDisk()
    asyncio.run(lives(NOWHERE, mode, disk))
    assert not NOWHERE.parent.exists()
    assert disk.opened == 0, "every descriptor was closed"
    assert {"lock", "checkpoint", "kappamq.position", "config/topics.json", "timerwheel"} <= set(disk.tree(NOWHERE))
    assert "abort" not in disk.tree(NOWHERE)


@pytest.mark.parametrize("mode", MODES)
def test_only_files_ask_the_system(tmp_path: Path, mode: str) -> None:
    with watched_disk(tmp_path) as watch:
        asyncio.run(lives(tmp_path, mode, Files()))
    assert watch.around == []
    assert watch.seen >= set(
        "close fdatasync listdir lockf open pread pwrite replace rmdir stat statvfs unlink".split()
    )


def test_the_watch_sees_who_goes_around(tmp_path: Path) -> None:
    place = Path(kappamq.__file__).parent / "store" / "planted.py"
    planted = compile("path.write_text('x')\nos.close(fd)\nos.getcwd()", str(place), "exec")
    fd = os.open(tmp_path, os.O_RDONLY)
    with watched_disk(tmp_path) as watch:
        exec(planted, {"os": os, "path": tmp_path / "file", "fd": fd})  # noqa: S102
        (tmp_path / "file").unlink()  # a test may
    assert [line.split(" calls ")[1].split("(")[0] for line in watch.around] == ["open", "close"]
    assert watch.around[1].startswith(f"{place}:2 ")

"""One flipped bit in what lies beside the log: the broker starts, loses nothing that the log knows, and says what it found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from kappamq.store.checkpoint import USED_BYTES
from tests.broker.operating import make_topic
from tests.broker.running import crash_copy, run, running, speaking

SENT = 50
DAY_MS = 24 * 3600 * 1000
FLIPS = 90


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed in good order, and one as kill -9 leaves it; offset 40 of group g is in the log and in snapshots."""
    root = tmp_path_factory.mktemp("stores")

    async def make() -> None:
        async with running(root / "clean") as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            for number in range(SENT):
                assert (await client.send("t", b"%d" % number)).code == 0
            for offset in (20, 40):
                await client.subscribe("g", "t")
                commit = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=offset)
                assert (await client.ask(commit)).code == 0
                broker.offsets.dirty = True
                await broker.upkeep._record_and_save(last=True)
            await broker.upkeep.write_derived()
            work = broker.store.collect()
            broker.store.sync_derived(work)
            await crash_copy(broker, root / "killed")

    run(make())
    return root


def places(folder: Path) -> list[tuple[Path, int]]:
    """Every byte that says something: (file, position)."""

    def files() -> Iterator[tuple[Path, int]]:
        yield folder / "checkpoint", USED_BYTES
        for path in (
            folder / "kappamq.position",
            folder / "abort",
            folder / "lock",
            *sorted((folder / "config").iterdir()),
        ):
            if path.exists():
                yield path, path.stat().st_size

    return [(path, at) for path, size in files() for at in range(size)]


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def check(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Start a broker there and look at everything; returns what it logged."""
    caplog.clear()

    async def look() -> None:
        async with running(folder) as broker, speaking(broker) as client:
            assert [int(record.body) for record in await client.read("t")] == list(range(SENT))
            asked = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)
            assert (await client.ask(asked)).ext.get("offset") == "40"
            newest = (await client.read("t"))[-1].stored_ms
            assert newest - 1000 <= broker.store.last_ms <= newest + DAY_MS, "message time was moved"
            assert broker.topics.existing("t").read_queues == 1

    run(look())
    return caplog.text


@pytest.mark.parametrize("kind", ["clean", "killed"])
def test_a_campaign_of_flips(stores: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    dice = Random(f"{kind} 8")
    folder = tmp_path / "store"
    shutil.copytree(stores / kind, folder)
    everywhere = places(folder)
    by_file: dict[str, list[tuple[Path, int]]] = {}
    for path, at in everywhere:
        by_file.setdefault(path.name, []).append((path, at))
    chosen = [dice.choice(several) for several in by_file.values()]
    chosen += [
        dice.choice(by_file[name])
        for name in ("checkpoint", "kappamq.position", "consumerOffset.json")
        for _ in range(8)
    ]
    chosen += [dice.choice(everywhere) for _ in range(FLIPS // 2 - len(chosen))]
    for path, at in chosen:
        shutil.rmtree(folder)
        shutil.copytree(stores / kind, folder)
        bit = dice.randrange(8)
        flip(path, at, bit)
        said = check(folder, caplog)
        if path.name not in ("abort", "lock"):  # these say nothing that could be wrong
            assert path.name.removesuffix(".bak") in said, (path.name, at, bit, said)
        healed = check(folder, caplog)
        assert "damaged" not in healed, (path.name, at, bit, healed)
        assert "cannot be used" not in healed


def test_a_checkpoint_and_its_copy_both_gone(stores: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Years ahead, or before 1970, with nothing of ours beside it to compare with: the log is evidence enough."""
    for at, bit in ((1, 3), (0, 7), (2, 6)):
        folder = tmp_path / f"{at}"
        shutil.copytree(stores / "killed", folder)
        (folder / "kappamq.position").unlink()
        flip(folder / "checkpoint", at, bit)
        assert "the checkpoint file is damaged" in check(folder, caplog)
